"""A server that speaks as much of Kafka's protocol as a producer needs: one topic with one partition, in memory.

It stores a batch of a producer and sequence once, as Kafka does for idempotent producers.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER = 0, 3, 18, 22
# Of each request the version that is spoken here.
_VERSIONS = ((API_VERSIONS, 0), (METADATA, 1), (INIT_PRODUCER, 0), (PRODUCE, 3))
_BATCH = struct.Struct(">qiibihiqqqhii")


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@dataclass
class Broker:
    """`messages`: keys and values in their order. `cuts`: connections that break before the answer to a batch."""

    topic: str
    port: int = 0
    cuts: int = 0
    batches: int = 0
    messages: list[tuple[bytes, bytes]] = field(default_factory=list)
    _known: set[tuple[int, int]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                key, _, correlation, client = struct.unpack_from(">hhih", request)
                answer = self._answer(key, request[10 + max(0, client) :])
                if key == PRODUCE and self.cuts:
                    self.cuts -= 1
                    return
                writer.write(struct.pack(">ii", len(answer) + 4, correlation) + answer)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    def _answer(self, key: int, body: bytes) -> bytes:
        if key == API_VERSIONS:
            listed = (struct.pack(">hhh", name, version, version) for name, version in _VERSIONS)
            return struct.pack(">hi", 0, len(_VERSIONS)) + b"".join(listed)
        if key == METADATA:
            node = struct.pack(">ii", 1, 0) + _text("127.0.0.1") + struct.pack(">ih", self.port, -1)
            partition = struct.pack(">ihiiiiii", 1, 0, 0, 0, 1, 0, 1, 0)
            return node + struct.pack(">iih", 0, 1, 0) + _text(self.topic) + b"\0" + partition
        if key == INIT_PRODUCER:
            return struct.pack(">ihqh", 0, 0, 7, 0)
        assert key == PRODUCE, key
        self._store(body)
        return struct.pack(">i", 1) + _text(self.topic) + struct.pack(">iihqqi", 1, 0, 0, 0, -1, 0)

    def _store(self, body: bytes) -> None:
        """Stores the one batch of a request, if it is not there yet."""
        data = body[body.index(_text(self.topic)) + 2 + len(self.topic) + 12 :]
        *_, producer, _, sequence, count = _BATCH.unpack_from(data)
        self.batches += 1
        if (producer, sequence) not in self._known:
            self._known.add((producer, sequence))
            self.messages += _records(data[_BATCH.size :], count)


def _records(data: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value >> 1 ^ -(value & 1)

    def content() -> bytes:
        nonlocal at
        size = number()
        at += size
        return data[at - size : at]

    for _ in range(count):
        number()
        at += 1  # attributes
        number(), number()
        yield content(), content()
        assert number() == 0, "no headers"


@asynccontextmanager
async def broker(topic: str, cuts: int) -> AsyncIterator[Broker]:
    made = Broker(topic, cuts=cuts)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
