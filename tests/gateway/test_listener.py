"""Plain paths are found without the application's router, and nothing else of a request changes."""

import asyncio

import pytest

from .harness import drop, echo, gateway, until_quiet, upstream

BODY = b'{"model":"chat"}'


async def responses(gate_url: str, *requests: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gate_url.rsplit(":", 1)[1]))
    writer.write(b"".join(requests))
    found = await until_quiet(reader)
    await drop(writer)
    return found


def request(path: bytes, *lines: bytes, method: bytes = b"POST") -> bytes:
    head = b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % (method, path, len(BODY))
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + BODY


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/chat/completions",
        b"/v1/chat/completions?a=b",
        b"/v1/chat%2Dcompletions",
        b"/v1/%63hat/completions",
        b"/v1/chat/completions#x",
        b"http://x/v1/chat/completions",
        b"/v1//chat/completions",
        b"/v1/chat/completions/",
    ],
)
@pytest.mark.parametrize("method", [b"POST", b"PUT"])
async def test_every_spelling_of_a_path_has_the_response_of_the_router(path: bytes, method: bytes) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        # An expectation goes by the router in any case, and the response to it begins with one more line.
        by_router = await responses(gate.url, request(path, b"Expect: 100-continue", method=method))
        found = await responses(gate.url, request(path, method=method))
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert found.split(b"\r\n", 1)[0] == by_router.removeprefix(interim).split(b"\r\n", 1)[0]
        assert found.split(b"\r\n\r\n", 1)[1] == by_router.removeprefix(interim).split(b"\r\n\r\n", 1)[1]


async def test_an_expectation_that_is_not_met_is_refused_on_a_plain_path() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        assert b" 417 " in await responses(gate.url, request(b"/v1/chat/completions", b"Expect: more"))
        assert not server.seen


async def test_a_draining_gateway_announces_the_close_on_plain_paths() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        assert b"Connection: close" not in await responses(gate.url, request(b"/v1/chat/completions"))
        gate.edge.draining = True
        assert b"Connection: close" in await responses(gate.url, request(b"/v1/chat/completions"))
