"""Random frames at a connection: whatever comes, it raises nothing, and all that it counted is given back."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hpack import Encoder

from slipway_gateway.http2 import frames, header_blocks
from slipway_gateway.http2.connection import Http2Connection
from slipway_gateway.http2.lifetime import Http2Limits
from slipway_gateway.http2.stream import Stream
from slipway_gateway.limits.budget import Account, MemoryBudget

HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("a", "b")]
LIMITS = Http2Limits(max_header_bytes=1000, header_timeout_s=5, idle_timeout_s=5, max_age_s=50, max_streams=20)


class Wire(asyncio.Transport):
    """A transport that keeps what is sent, and is full now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.closing = bytearray(), False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing
        self.sent += data

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


class Echo:
    """Sends back what each stream brings; admits every connection."""

    def __init__(self) -> None:
        self.begun = self.ended_ = 0
        self.budget = MemoryBudget(300_000, 300_000, float)  # for twenty streams, and a little that they have not read

    def enter(self, connection: Any, owner: str, now_s: float) -> Exception | None:
        return None

    def leave(self, connection: Any, owner: str) -> None:
        pass

    def opened(self, connection: Any) -> None:
        pass

    def closed(self, connection: Any) -> None:
        pass

    def open_account(self, connection: Any) -> Account:
        return self.budget.open("client")

    def handle(self, stream: Stream, connection: Any) -> Coroutine[Any, Any, None] | None:
        self.begun += 1
        return self._echo(stream)

    def ended(self, stream: Stream, connection: Any) -> None:
        self.ended_ += 1

    async def _echo(self, stream: Stream) -> None:
        stream.send_head(header_blocks.encode_status(200))
        stream.expect(100_000)
        while data := await stream.read():
            await stream.send(data)
        stream.end()


class Client:
    """Draws frames that are mostly right: on streams that it opened, within its windows; and some that are not."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.encoder = chance, Encoder()
        self.next_id, self.open = 1, [1]

    def frame(self) -> bytes:
        return self._wrong() if self.chance.random() < 0.01 else self._right()

    def _right(self) -> bytes:
        chance, stream = self.chance, self.chance.choice(self.open[-6:])
        match chance.randrange(9):
            case 0 | 1:
                return self._head()
            case 2 | 3 | 4:
                ends = frames.END_STREAM if chance.random() < 0.3 else 0
                if stream == self.next_id:
                    return self._head()
                return frames.frame(frames.DATA, ends, stream, chance.randbytes(chance.choice([0, 1, 100, 5000])))
            case 5:
                known = chance.choice([0, *[one for one in self.open if one < self.next_id]])
                return frames.window_update(known, chance.choice([1, 1000, 65535]))
            case 6:
                return frames.settings([(chance.choice([1, 3, 4, 6]), chance.choice([0, 1, 100, 65535, 16384]))])
            case 7:
                return frames.frame(frames.PING, 0, 0, bytes(8))
            case _:
                return frames.rst_stream(stream, frames.ErrorCode.CANCEL) if stream < self.next_id else b""

    def _head(self) -> bytes:
        stream, self.next_id = self.next_id, self.next_id + 2
        self.open.append(self.next_id)
        fields = HEAD if self.chance.random() < 0.9 else [*HEAD, ("Bad", "x")]
        return frames.header_frames(stream, self.encoder.encode(fields), ends_stream=self.chance.random() < 0.2)

    def _wrong(self) -> bytes:
        chance = self.chance
        kind = chance.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 77])
        stream = chance.choice([0, 1, 2, 2**31 - 1, *self.open])
        payload = chance.randbytes(chance.choice([0, 1, 4, 5, 6, 8, 12, 100, 16_000]))
        return frames.frame(kind, chance.choice([0, 1, 4, 5, 8, 32, 45, 255]), stream, payload)


async def play(chance: random.Random) -> tuple[int, int]:
    """One connection; returns how many streams began, and how many bytes were sent."""
    echo, wire, client = Echo(), Wire(), Client(chance)
    connection = Http2Connection(echo, echo, LIMITS)
    connection.connection_made(wire)
    connection.data_received(frames.PREFACE + frames.settings(()))
    for _ in range(chance.randrange(5, 200)):
        sent = client.frame()
        cut = chance.randrange(len(sent) + 1)
        for part in (sent[:cut], sent[cut:]):
            if part and not wire.closing:
                connection.data_received(part)
        if chance.random() < 0.1:
            chance.choice([connection.pause_writing, connection.resume_writing])()
        if chance.random() < 0.3:
            await asyncio.sleep(0)
        if chance.random() < 0.01:
            connection.retire()
        connection.check(asyncio.get_running_loop().time())
        if wire.closing:
            break
    goes_on = not wire.closing
    connection.connection_lost(None)
    for _ in range(50):
        await asyncio.sleep(0)
    assert echo.begun == echo.ended_ and not connection._streams and not echo.budget.used_bytes
    if goes_on:
        assert connection._window + connection._taken == 4 << 20, "bytes that no reader took are given back"
    return echo.begun, len(wire.sent)


@pytest.mark.parametrize("seed", range(8))
async def test_random_frames_raise_nothing_and_leave_nothing(seed: int) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    chance = random.Random(seed)
    played = [await play(chance) for _ in range(150)]
    assert not failures, failures[0]
    assert sum(begun for begun, _ in played) > 1500, "most connections got somewhere"


@pytest.mark.parametrize("seed", range(4))
async def test_random_bytes_raise_nothing(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        echo, wire = Echo(), Wire()
        connection = Http2Connection(echo, echo, LIMITS)
        connection.connection_made(wire)
        head = frames.PREFACE + frames.settings(()) if chance.random() < 0.9 else b""
        connection.data_received(head + chance.randbytes(chance.randrange(400)))
        connection.connection_lost(None)
        await asyncio.sleep(0)
