"""Clients of streams of tokens by WebSocket, and servers of them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from websockets.asyncio.client import ClientConnection, connect

from .harness import Gateway, Handler

STREAM = "1f-674f0000-" + "a" * 32
GENERATE = {"model": "chat", "prompt": "In the beginning"}


@contextlib.asynccontextmanager
async def socket_of(
    gate: Gateway, key: str = "", headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[ClientConnection]:
    """A connection to `/v1/stream`. `key`: sent as a browser has to."""
    offered = ["slipway.v1", *([f"bearer.{key}"] if key else [])]
    url = f"ws{gate.url.removeprefix('http')}/v1/stream"
    async with connect(url, subprotocols=offered, additional_headers=headers, **options) as opened:  # type: ignore[arg-type]
        yield opened


HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def raw_socket(gate: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of which the test reads and writes the bytes."""
    host, port = "127.0.0.1", int(gate.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection(host, port, limit=65536)
    writer.write(HANDSHAKE)
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def frame(message: bytes, first: int = 0x81) -> bytes:
    """A frame as clients send it, with a mask of zeros. `first`: its first byte, by default that of a whole text."""
    size = len(message)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2)
    return bytes((first,)) + length + bytes(4) + message


async def send(socket: ClientConnection, message: dict[str, Any]) -> None:
    await socket.send(json.dumps(message))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        found = json.loads(await socket.recv())
    assert isinstance(found, dict)
    return found


async def until_last(socket: ClientConnection) -> list[dict[str, Any]]:
    """The messages of the only request up to its last one."""
    found = [await receive(socket)]
    while found[-1]["type"] == "token":
        found.append(await receive(socket))
    return found


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(message.get("token", "") for message in messages)


def code_of(message: dict[str, Any]) -> tuple[int, str]:
    return message.get("status", 0), message["error"]["code"]


def event(written: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(written).encode() + b"\n\n"


def generating(*tokens: str, gate: asyncio.Event | None = None) -> Handler:
    """A server of these tokens, without positions. `gate`: what it waits for behind the first one."""

    async def answer(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for number, token in enumerate(tokens):
            await out.write(event({"type": "token", "token": token}))
            if gate is not None and not number:
                await gate.wait()
        usage = {"input_tokens": 3, "output_tokens": len(tokens)}
        await out.write(event({"type": "done", "usage": usage, "finish_reason": "stop"}))
        await out.write_eof()
        return out

    return answer


def stream_requests(gate: Gateway, surface: str = "websocket") -> dict[str, int]:
    """Requests of a surface by outcome."""
    found: dict[str, int] = {}
    for family in gate.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "slipway_gateway_stream_requests_total" and sample.labels["surface"] == surface:
                found[sample.labels["outcome"]] = int(sample.value)
    return found


def closed(gate: Gateway) -> dict[str, int]:
    """Connections of WebSocket that ended, by why."""
    return {
        sample.labels["reason"]: int(sample.value)
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "slipway_gateway_websockets_closed_total"
    }
