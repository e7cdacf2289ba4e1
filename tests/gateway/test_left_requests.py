"""Requests whose clients leave, in each phase: nothing of them stays, without a collection of cycles.

In a process that serves for long the oldest generation is collected after millions of objects. What a cycle holds until
then, such as a body of 16 MiB, is in no account.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from slipway_gateway.serving.listener import _Connection
from slipway_gateway.telemetry.metrics import RequestRecord
from slipway_gateway.upstream.connection import EndpointConnection
from testkit.until import until_async

from .harness import Gateway, drop, gateway, streaming, upstream

pytestmark = pytest.mark.attack_class(15)

MANY = 5
BODY = b'{"model":"chat","stream":true}'
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Phase = Callable[[Gateway, Pair], Awaitable[None]]


def head(path: str = "/v1/chat/completions", length: int = len(BODY), end: bytes = b"\r\n\r\n") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}".encode() + end


async def idle(gate: Gateway, pair: Pair) -> None:
    """Nothing is sent."""


async def half_a_head(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head(end=b"\r\nX: " + 4000 * b"a"))


async def half_a_body(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head(length=10_000_000) + b" " * 1_000_000)
    await until_async(lambda: gate.budget.used_bytes > 0, "a piece is read")


async def half_a_message(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head("/v1/messages", 10_000_000) + b" " * 1_000_000)
    await until_async(lambda: gate.budget.used_bytes > 0, "a piece is read")


async def a_stream(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head() + BODY)
    await pair[0].readuntil(b"data:")


async def no_first_byte(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head() + BODY)
    await asyncio.sleep(0.1)


async def held(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head() + BODY)
    await until_async(lambda: gate.held() > 0, "it waits for an endpoint")


async def more_behind(gate: Gateway, pair: Pair) -> None:
    pair[1].write((head() + BODY) * 3)
    await pair[0].readuntil(b"data:")


async def an_error(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head() + b"x" * len(BODY))
    await pair[0].readuntil(b"\r\n\r\n")


async def a_refused_head(gate: Gateway, pair: Pair) -> None:
    pair[1].write(b"\x00\x01 x\r\n\r\n")
    await pair[0].readuntil(b"\r\n\r\n")


async def a_reset_by_the_server(gate: Gateway, pair: Pair) -> None:
    pair[1].write(head() + BODY)
    await pair[0].readuntil(b"\r\n\r\n")


PHASES = (idle, half_a_head, half_a_body, half_a_message, a_stream, no_first_byte, held, more_behind, an_error)
PHASES += (a_refused_head, a_reset_by_the_server)


async def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


def held_objects() -> int:
    """Of the gateway; the upstream server is in this process too."""
    objects = gc.get_objects()
    # By `type`: `isinstance` reads `__class__`, and objects of other libraries warn of that.
    return sum(issubclass(type(item), _Connection | RequestRecord | EndpointConnection) for item in objects) + sum(
        issubclass(type(item), web.BaseRequest) and isinstance(item.protocol, _Connection) for item in objects
    )


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_nothing_stays_of_a_request_whose_client_left(phase: Phase) -> None:
    handler = {no_first_byte: silent, a_reset_by_the_server: reset}.get(phase, streaming(10_000, 0.01))
    async with upstream(handler) as server, gateway() as gate:
        gate.route(("rev", 100, [] if phase is held else [server.url]))
        await leave(gate, phase)  # what is made once is no growth
        await asyncio.sleep(0.2)
        gc.collect()
        gc.disable()
        try:
            before = held_objects()
            for _ in range(MANY):
                await leave(gate, phase)
            await until_async(lambda: held_objects() <= before, "all of them are gone", 20)
            assert gate.budget.used_bytes == 0
        finally:
            gc.enable()


async def leave(gate: Gateway, phase: Phase) -> None:
    pair = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
    async with asyncio.timeout(20):
        await phase(gate, pair)
    pair[1].transport.abort()
    await drop(pair[1])
