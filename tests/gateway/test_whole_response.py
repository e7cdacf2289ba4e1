"""A response that is one write has the bytes of aiohttp's own, whatever the request and the response are."""

import asyncio
import contextlib
import gc
from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from slipway_gateway.forwarding.relay import Relay, WholeResponse
from slipway_gateway.telemetry.metrics import RequestRecord

from .harness import Handler, echo, gateway, streaming, upstream

Headers = Sequence[tuple[str, str]]
DATE = ("Date", "Thu, 26 Nov 2026 00:00:00 GMT")  # else the two responses may be of two seconds
JSON = ("Content-Type", "application/json")

REQUESTS = {
    "plain": b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "get": b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n",
    "head": b"HEAD /%b HTTP/1.1\r\nHost: x\r\n\r\n",
    "close": b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "old": b"POST /%b HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    "old and kept": b"POST /%b HTTP/1.0\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
}
RESPONSES: dict[str, tuple[int, Headers, bytes]] = {
    "json": (200, (JSON, DATE), b'{"a":1}'),
    "empty": (200, (DATE,), b""),
    "no type": (200, (DATE,), b"x"),
    "no content": (204, (DATE,), b""),
    "not modified": (304, (DATE, JSON), b""),
    "error": (500, (JSON, DATE), b"{}"),
    "unknown status": (599, (JSON, DATE), b"{}"),
    "own server": (200, (("server", "s"), JSON, DATE), b"{}"),
    "repeated": (200, (("Set-Cookie", "a=1"), ("set-cookie", "b=2"), JSON, DATE, ("X-Text", "é")), b"{}"),
    "long": (200, (JSON, DATE), b"x" * (64 << 10)),
}


class ByAiohttp(web.StreamResponse):
    """Head and body are one write here too, by aiohttp's code."""

    _send_headers_immediately = False


async def received(url: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    writer.write(request)
    whole = await reader.read()
    writer.close()
    return whole


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("request_", REQUESTS)
async def test_it_has_the_bytes_of_aiohttps_own(request_: str, response: str, *, drains: bool) -> None:
    status, headers, body = RESPONSES[response]

    async def whole(request: web.Request) -> web.StreamResponse:
        out = WholeResponse(status, CIMultiDict(headers))
        await out.send(request, body)
        return out

    async def own(request: web.Request) -> web.StreamResponse:
        out = ByAiohttp(status=status, headers=CIMultiDict(headers))
        out.content_length = len(body)
        await out.prepare(request)
        await out.write_eof(body)
        return out

    async def announce(request: web.Request, out: web.StreamResponse) -> None:
        if drains:
            out.headers["Connection"] = "close"
            out.force_close()

    app = web.Application()
    app.on_response_prepare.append(announce)
    app.router.add_route("*", "/whole", whole)
    app.router.add_route("*", "/own", own)
    async with TestServer(app) as server:
        stays = request_ not in ("close", "old")
        sent = REQUESTS[request_] + REQUESTS["close"] * stays
        expected, found = [
            await received(str(server.make_url("/")), sent.replace(b"%b", path)) for path in (b"own", b"whole")
        ]
        assert found == expected
        assert found.count(b"HTTP/1.") == (2 if stays and not drains else 1)


async def test_a_client_that_is_gone_is_an_error() -> None:
    raised: list[type[BaseException]] = []

    async def gone(request: web.Request) -> web.StreamResponse:
        assert request.transport
        request.transport.abort()
        out = WholeResponse(200, CIMultiDict())
        try:
            await out.send(request, b"x")
        except ConnectionError as error:
            raised.append(type(error))
            raise
        return out

    app = web.Application()
    app.router.add_post("/gone", gone)
    async with TestServer(app) as server:
        with contextlib.suppress(ConnectionError):  # the client may get an end or a reset
            await received(str(server.make_url("/")), REQUESTS["plain"] % b"gone")
    assert len(raised) == 1


@pytest.mark.parametrize("answer", [echo, streaming(2)])
async def test_a_request_that_ended_leaves_nothing_to_the_collector_of_cycles(answer: Handler) -> None:
    """Cycles stay until thousands of objects are there: the processor's caches then serve garbage."""
    async with upstream(answer) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                async with await gate.post() as reply:
                    await reply.read()
            await gate.edge.idle()
            # By type: `isinstance` asks each object of this process for its class, and some of torch's then warn.
            left = [type(one).__name__ for one in gc.get_objects() if type(one) in (Relay, RequestRecord)]
        finally:
            gc.enable()
        assert left == [] and gate.outcomes() == {"ok": 3}
