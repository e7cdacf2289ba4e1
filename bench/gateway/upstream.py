"""The model server behind all peers, as cheap as Python can: small JSON answers, and streams of an event a second.

    python -m bench.gateway.upstream PORT

It reads only what it must of HTTP/1.1: the length of the body, and whether a stream is requested. One timer writes the
next event of all streams.
"""

import asyncio
import os
import sys

EVENTS, GAP_S = 5 if os.environ.get("QUICK") else 20, 1.0
_TICKS = 20  # in a gap: streams begin within a tick, not all at once
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'  # noqa: E501
_BODY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello there."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LAST = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'  # noqa: E501


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_EVENT, _END = _chunk(EVENT), _chunk(_LAST) + b"0\r\n\r\n"


class Streams:
    """All streams that run; each is written to once in a gap."""

    def __init__(self) -> None:
        self._due: list[dict[_Connection, int]] = [{} for _ in range(_TICKS)]
        self._tick = 0

    def begin(self, connection: "_Connection") -> None:
        self._due[self._tick][connection] = EVENTS - 1

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s, ticks = loop.time(), 0
        while True:
            ticks += 1
            await asyncio.sleep(max(0.0, began_s + ticks * GAP_S / _TICKS - loop.time()))
            self._tick = ticks % _TICKS
            due = self._due[self._tick]
            for connection, left in list(due.items()):
                if connection.closed or not left:
                    del due[connection]
                    connection.write(_END)
                else:
                    due[connection] = left - 1
                    connection.write(_EVENT)


class _Connection(asyncio.Protocol):
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._received = b""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        while (end := received.find(b"\r\n\r\n")) >= 0:
            at = received.lower().find(b"content-length:", 0, end)
            length = int(received[at + 15 : received.find(b"\r\n", at)]) if at >= 0 else 0
            if len(received) < end + 4 + length:
                break
            body, received = received[end + 4 : end + 4 + length], received[end + 4 + length :]
            self._answer(body)
        self._received = received

    def _answer(self, body: bytes) -> None:
        if b'"stream":true' in body.replace(b" ", b""):
            self.write(_HEAD + _EVENT)
            self._streams.begin(self)
        else:
            self.write(ANSWER)


async def serve(port: int) -> None:
    streams = Streams()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(streams), "127.0.0.1", port, backlog=4096
    )
    async with server:
        await streams.run()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
