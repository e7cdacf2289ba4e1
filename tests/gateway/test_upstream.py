"""Connections to endpoints: what ends an attempt to connect, and requests that pass the session by."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from slipway_gateway.settings import GatewaySettings
from slipway_gateway.upstream.direct import DirectSender
from slipway_gateway.upstream.session import EndpointProtocol, lag_free_timeout, open_direct, open_session
from tests.gateway.harness import echo, fixed_response_upstream, upstream


async def test_block_is_cancelled_after_its_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with lag_free_timeout(0.2):
            await asyncio.sleep(30)


async def test_late_event_loop_fails_no_connect() -> None:
    """The loop is late by more than the whole limit, again and again, while the answer is there."""
    loop = asyncio.get_running_loop()
    async with lag_free_timeout(0.5):
        for _ in range(3):
            answer: asyncio.Future[None] = loop.create_future()
            loop.call_later(0.01, answer.set_result, None)
            loop.call_soon(time.sleep, 0.6)
            await answer


async def test_an_endpoint_that_accepts_is_reached_by_a_late_gateway() -> None:
    async with upstream(echo) as server, open_session(GatewaySettings(connect_timeout_s=0.3)) as session:

        def late() -> None:
            time.sleep(0.4)
            nonlocal timer
            timer = loop.call_soon(late)

        loop = asyncio.get_running_loop()
        asking = asyncio.create_task(session.post(server.url + "/v1/completions", data=b"{}"))
        timer = loop.call_soon(late)
        await asyncio.sleep(1.5)
        timer.cancel()
        async with await asking as answer:
            assert answer.status == 200


async def test_an_endpoint_that_accepts_nothing_is_given_up() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # fill its queue
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with open_session(GatewaySettings(connect_timeout_s=0.3)) as session:
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await session.post(url, data=b"{}")


# -- requests past the session


@contextlib.asynccontextmanager
async def direct(**changes: float) -> AsyncIterator[DirectSender]:
    settings = GatewaySettings(**changes)  # type: ignore[arg-type]
    async with open_session(settings) as session:
        yield open_direct(session)
    # Raw servers learn of the closed connections, and close theirs.
    for _ in range(10):
        await asyncio.sleep(0)


async def test_direct_requests_share_a_connection_and_have_the_endpoints_host_and_path() -> None:
    ports = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response(
            {"host": request.headers["Host"], "path": request.path_qs, "x": request.headers["X-A"]}
        )

    async with upstream(answer) as server, direct() as sender:
        for n in range(3):
            reply = await sender.post(f"{server.url}/base", f"/v1/a%20b?n={n}", CIMultiDict({"X-A": "1"}), b"{}")
            assert (reply.status, reply.content_type) == (200, "application/json")
            found = json.loads(await reply.content.read())
            assert found == {"host": server.url.removeprefix("http://"), "path": f"/base/v1/a%20b?n={n}", "x": "1"}
        assert server.bodies == [b"{}"] * 3
    assert len(ports) == 1


async def test_a_direct_request_passes_over_interim_responses() -> None:
    response = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with fixed_response_upstream(response) as url, direct() as sender:
        reply = await sender.post(url, "/", CIMultiDict(), b"{}")
        assert (reply.status, reply.content_length, await reply.content.read()) == (200, 2, b"ok")


async def test_what_is_no_http_is_a_response_error_and_a_header_cannot_hold_another_one() -> None:
    async with fixed_response_upstream(b"SSH-2.0\r\n\r\n") as url, direct() as sender:
        with pytest.raises(aiohttp.ClientResponseError):
            await sender.post(url, "/", CIMultiDict(), b"{}")
        with pytest.raises(ValueError, match=r"(?i)header"):
            await sender.post(url, "/", CIMultiDict({"X-A": "1\r\nX-B: 2"}), b"{}")


async def test_silence_is_measured_from_the_last_byte_by_one_timer() -> None:
    """Seven pauses that are shorter than the limit are longer than it together."""
    writes = [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", *[b"x"] * 7]
    timers = 0
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(delay: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
        nonlocal timers
        timers += delay == 3.25
        return call_later(delay, *rest, **more)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in writes:
            writer.write(part)
            await asyncio.sleep(0.6)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", counted)
        async with server, direct(idle_timeout_s=3.25) as sender:
            reply = await sender.post(url, "/", CIMultiDict(), b"{}")
            with pytest.raises(aiohttp.ServerTimeoutError):
                await reply.content.read()
            assert reply.content.total_bytes == 7
            reply.close()
    assert timers == 1


async def test_a_closed_connection_leaves_no_timer() -> None:
    protocol = EndpointProtocol(asyncio.get_running_loop())
    protocol.read_timeout = 600.0
    protocol.start_timeout()
    handle = protocol._read_timeout_handle
    assert handle is not None
    protocol.connection_lost(None)
    assert handle.cancelled()
