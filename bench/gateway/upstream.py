"""The model server behind all peers, in Python: where there is no cargo to build the one in `mock/`.

    python -m bench.gateway.upstream PORT EVENTS GAP_MS MARKS

It answers what `mock/` answers, byte for byte: JSON, a message of protobuf, or a stream of EVENTS events, one each
GAP_MS. MARKS=1: its streams have the marks by which slipway-server's can be resumed. Of HTTP/1.1 it reads what it must:
the length of a body, or its chunks, and whether a stream is requested. One timer writes the next event of all streams.
"""

import asyncio
import sys
from dataclasses import dataclass

_TICK_S = 0.005  # at least: streams begin within a tick, not all at once
_MOST_TICKS = 20  # of a gap
JSON = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello there."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'
)
# A ModelInferResponse of the Open Inference Protocol: the model's name is `m`.
PROTOBUF = b"\x0a\x01m"
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"}}]}'  # noqa: E501
_LAST = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'  # noqa: E501
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
_MARKED_HEAD = b"X-Slipway-Stream: 1-1-0123456789abcdef0123456789abcdef\r\nX-Slipway-Prompt-Tokens: 5\r\n"
_PROTOBUF_TYPE = b"application/x-protobuf"


def _answer(content_type: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (content_type, len(body), body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_JSON_ANSWER, _PROTOBUF_ANSWER = _answer(b"application/json", JSON), _answer(_PROTOBUF_TYPE, PROTOBUF)
_END = _chunk(_LAST + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class StreamShape:
    """What each stream has: events, seconds between two of them, and marks or none."""

    events: int
    gap_s: float
    marks: bool

    def head(self) -> bytes:
        return _STREAM_HEAD + (_MARKED_HEAD if self.marks else b"") + b"\r\n"

    def event(self, number: int) -> bytes:
        """`number`: from 1."""
        mark = b": %d.0a1b2c3d %d\n" % (number, 1000 + number) if self.marks else b""
        return _chunk(mark + EVENT + b"\n\n")


class Streams:
    """All streams that run; each is written to once in a gap."""

    def __init__(self, shape: StreamShape) -> None:
        self._shape = shape
        ticks = max(1, min(_MOST_TICKS, int(shape.gap_s / _TICK_S)))
        # By tick of a gap: the streams that are due then, and how many events each has had.
        self._due: list[dict[_Connection, int]] = [{} for _ in range(ticks)]
        self._tick = 0

    def begin(self, connection: "_Connection") -> None:
        connection.write(self._shape.head() + self._shape.event(1))
        self._due[self._tick][connection] = 1

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s, ticks, every_s = loop.time(), 0, self._shape.gap_s / len(self._due)
        while True:
            ticks += 1
            await asyncio.sleep(max(0.0, began_s + ticks * every_s - loop.time()))
            self._tick = ticks % len(self._due)
            due = self._due[self._tick]
            for connection, sent in list(due.items()):
                if connection.closed or sent == self._shape.events:
                    del due[connection]
                    connection.write(_END)
                else:
                    due[connection] = sent + 1
                    connection.write(self._shape.event(sent + 1))


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
            head, body = received[:end].lower(), received[end + 4 :]
            length = _length(head, body)
            if length is None or length > len(body):
                break
            self._answer(head, body[:length])
            received = body[length:]
        self._received = received

    def _answer(self, head: bytes, body: bytes) -> None:
        if _field(head, b"content-type") == _PROTOBUF_TYPE:
            self.write(_PROTOBUF_ANSWER)
        elif b'"stream":true' in body or b'"stream": true' in body:
            self._streams.begin(self)
        else:
            self.write(_JSON_ANSWER)


def _field(head: bytes, name: bytes) -> bytes:
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.partition(b"\r\n")[0].strip() if found else b""


def _length(head: bytes, body: bytes) -> int | None:
    """Of a body, in bytes; None: its last chunk is not there."""
    if not _field(head, b"transfer-encoding"):
        return int(_field(head, b"content-length") or b"0")
    if body.startswith(b"0\r\n\r\n"):
        return 5
    # Each chunk ends a line, so the last one is found whole, and texts of JSON have no line breaks.
    at = body.find(b"\r\n0\r\n\r\n")
    return at + 7 if at >= 0 else None


async def serve(port: int, shape: StreamShape) -> None:
    streams = Streams(shape)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(streams), "127.0.0.1", port, backlog=4096
    )
    async with server:
        await streams.run()


if __name__ == "__main__":
    _port, _events, _gap_ms, _marks = map(int, sys.argv[1:])
    asyncio.run(serve(_port, StreamShape(_events, _gap_ms / 1e3, _marks == 1)))
