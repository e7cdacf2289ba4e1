"""Gateway and server never disagree on where a request ends: what is smuggled behind one reaches no pod (class 16)."""

import asyncio
import re

import pytest
from aiohttp import http_parser, web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .harness import drop, gateway, until_quiet, upstream

pytestmark = pytest.mark.attack_class(16)

BODY = b'{"model":"chat"}'
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Smuggled: 1\r\nContent-Length: 16\r\n\r\n" + BODY
CHUNKED = b"%x\r\n%s\r\n" % (len(BODY), BODY)
START = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def test_the_parser_is_the_one_in_c() -> None:
    """The gateway starts with the other parser only with a flag: that one had smuggling bugs of its own."""
    assert http_parser.HttpRequestParser is not http_parser.HttpRequestParserPy


def answers(response: bytes) -> int:
    return len(re.findall(rb"HTTP/1\.[01] \d\d\d ", response))


async def exchange(sent: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """What a server behind the gateway got for these bytes of one client, and what that client got."""
    got: list[tuple[str, bytes]] = []

    async def keep(request: web.Request) -> web.StreamResponse:
        got.append((request.headers.get("X-Smuggled", ""), await request.read()))
        return web.json_response({})

    async with upstream(keep) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
        writer.write(sent)
        response = await until_quiet(reader)
        await drop(writer)
        # Whatever came: the next client's request is its own.
        async with await gate.post(b'{"model":"chat","next":1}') as answer:
            assert answer.status == 200
        assert got.pop() == ("", b'{"model":"chat","next":1}')
    return got, response


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED + b"0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\x00\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 16\r\nContent-Length: 0\r\n\r\n" + BODY,
        b"Content-Length: 16, 0\r\n\r\n" + BODY,
        b"Content-Length: +16\r\n\r\n" + BODY,
        b"Content-Length: -1\r\n\r\n" + BODY,
        b"Content-Length: 0x10\r\n\r\n" + BODY,
        b"Content-Length: 1_6\r\n\r\n" + BODY,
        b"Content-Length: 16 \r\nContent_Length: 0\r\n\r\n" + BODY,
        b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + BODY,
    ],
)
async def test_ambiguous_framing_smuggles_nothing(framing: bytes) -> None:
    got, response = await exchange(START + framing + SMUGGLED)
    smuggled = [body for mark, body in got if mark]
    # Refused whole, or read as two requests by the one rule of HTTP; never half of one.
    assert {body for _, body in got} <= {BODY}
    if smuggled:
        assert answers(response) == 2, "the client, too, was answered twice: it sent two requests"
    else:
        assert answers(response) <= 1


@pytest.mark.parametrize(
    "chunks",
    [
        b"10;ext=1\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"0010\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"10\r\n" + BODY + b"\r\n0\r\nX-Smuggled: 1\r\n\r\n",
        b"-10\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"0x10\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"10 \r\n" + BODY + b"\r\n0\r\n\r\n",
        b"10\n" + BODY + b"\n0\n\n",
        b"10\r\n" + BODY + b"XX0\r\n\r\n",
        b"ffffffffffffffff1\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"10\r\n" + BODY + b"\r\n0\r\n",
        b"10;\n" + SMUGGLED + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    ],
)
async def test_odd_chunks_give_the_whole_body_or_nothing(chunks: bytes) -> None:
    got, response = await exchange(START + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert got in ([], [("", BODY)]), "trailers are no headers, and no other body is made up"
    assert answers(response) <= 1


FRAGMENTS = st.sampled_from(
    [b"Content-Length: 16\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", BODY, CHUNKED,
     b"0\r\n\r\n", b"10\r\n", b"\n", b"\r", b"Expect: 100-continue\r\n", b"Connection: close\r\n", START]
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(FRAGMENTS, max_size=8))
async def test_pods_get_only_whole_bodies_whatever_the_head(parts: list[bytes]) -> None:
    got, _ = await exchange(START + b"".join(parts))
    assert {body for _, body in got} <= {BODY}


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nstolen-it",
])  # fmt: skip
async def test_malformed_response_of_one_pod_affects_no_other_request(answer: bytes) -> None:
    """A hostile pod sends more than one answer: the next client of that connection gets none of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(answer)
        writer.close()

    pod = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with gateway() as gate:
        gate.route(("rev", 100, [f"http://127.0.0.1:{pod.sockets[0].getsockname()[1]}"]))
        for n in range(4):
            async with await gate.post(b'{"model":"chat","n":%d}' % n) as got:
                assert b"stolen" not in await got.read() and "Set-Cookie" not in got.headers
    pod.close()
