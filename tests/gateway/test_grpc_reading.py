"""Messages of gRPC in the memory budget: at once, slowly, evicted, too slowly, and at the end; responses until they are
taken."""

import asyncio
from collections.abc import Callable

import pytest
from grpc import aio

from slipway_gateway.grpc_api.reading import MessageReader
from slipway_gateway.http2.floods import FloodGuard
from slipway_gateway.http2.header_blocks import RequestHead
from slipway_gateway.http2.outbox import Outbox
from slipway_gateway.http2.stream import Stream
from slipway_gateway.limits.budget import MemoryBudget, unlimited
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.wire.errors import RequestError
from testkit.until import until_async

from .grpc_gateway import INFER, echo, grpc_gateway, infer
from .harness import upstream

LARGEST = 1000
SETTINGS = GatewaySettings(max_body_bytes=LARGEST)


def budget(size: int, clock: Callable[[], float] = float) -> MemoryBudget:
    return MemoryBudget(size, size, clock)


class Sink(asyncio.Transport):
    """A transport whose other side is of no interest."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


class Credits:
    def __init__(self) -> None:
        self.given = 0

    def consumed(self, size_bytes: int) -> None:
        self.given += size_bytes


def stream(*pieces: bytes, ends: bool = False) -> Stream:
    head = RequestHead("POST", "http", INFER, "", [], -1, 0)
    made = Stream(1, head, Credits(), Outbox(Sink(), FloodGuard(0.0), unlimited()), receive_window=65535, ended=False)
    for piece in pieces:
        made.take(piece, len(piece), ends=False)
    if ends:
        made.finish()
    return made


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4) + message


async def test_a_message_that_is_there_counts_as_its_size() -> None:
    shared = budget(100)
    reader = MessageReader(stream(framed(b"x" * 70), framed(b"y" * 70)), SETTINGS)
    with shared.open("c") as account:
        assert await reader.message(account, 1.0) == b"x" * 70
        assert shared.used_bytes == 70
        with pytest.raises(RequestError) as refused:
            await reader.message(account, 1.0)
        assert refused.value.status == 429
    assert shared.used_bytes == 0


@pytest.mark.parametrize("size", range(1, 12))
async def test_messages_come_whole_wherever_their_bytes_are_cut(size: int) -> None:
    sent = [b"", b"one", b"", b"another", b"x"]
    raw = b"".join(map(framed, sent))
    reader = MessageReader(stream(*(raw[at : at + size] for at in range(0, len(raw), size)), ends=True), SETTINGS)
    with budget(100).open("c") as account:
        assert [await reader.message(account, 1.0) for _ in range(6)] == [*sent, None]


async def test_the_end_of_a_call_is_no_message_and_the_end_within_one_is_an_error() -> None:
    with budget(100).open("c") as account:
        assert await MessageReader(stream(ends=True), SETTINGS).message(account, 1.0) is None
        for cut in (1, 4, 5, 9):
            with pytest.raises(RequestError, match="ended within a message"):
                await MessageReader(stream(framed(b"12345")[:cut], ends=True), SETTINGS).message(account, 1.0)


async def test_a_message_that_is_too_long_or_compressed_is_refused_by_its_first_bytes() -> None:
    with budget(10_000).open("c") as account:
        for first, status in ((framed(bytes(LARGEST + 1))[:5], 413), (b"\1\0\0\0\1", 501)):
            with pytest.raises(RequestError) as refused:
                await MessageReader(stream(first), SETTINGS).message(account, 1.0)
            assert (refused.value.status, account.held_bytes) == (status, 0)


async def test_a_slow_message_counts_as_its_length_once_that_is_known() -> None:
    slow, shared = stream(b"\0\0\0"), budget(LARGEST)
    with shared.open("c") as account:
        reading = asyncio.create_task(MessageReader(slow, SETTINGS).message(account, 30.0))
        await asyncio.sleep(0.05)
        assert shared.used_bytes == 0
        slow.take(b"\0\x46xx", 4, ends=False)
        await until_async(lambda: shared.used_bytes == 70)
        with shared.open("d") as other, pytest.raises(RequestError) as refused:
            await MessageReader(stream(framed(bytes(LARGEST))), SETTINGS).message(other, 30.0)
        assert refused.value.status == 429
        slow.take(b"x" * 68 + b"\0", 69, ends=False)
        assert await reading == b"x" * 70 and shared.used_bytes == 70


async def test_a_message_that_does_not_come_is_evicted_where_others_need_the_room() -> None:
    now_s = 0.0
    shared = budget(LARGEST, lambda: now_s)
    account = shared.open("c")
    reading = asyncio.create_task(MessageReader(stream(framed(bytes(LARGEST))[:99]), SETTINGS).message(account, 30.0))
    await until_async(lambda: shared.used_bytes == LARGEST)
    now_s = 5.0
    with shared.open("d") as other:
        assert other.grow(LARGEST) == ""
        with pytest.raises(RequestError) as refused:
            await reading
        assert refused.value.status == 429 and shared.used_bytes == LARGEST


async def test_a_message_that_is_late_is_refused() -> None:
    shared = budget(LARGEST)
    with shared.open("c") as account, pytest.raises(RequestError) as refused:
        await MessageReader(stream(), SETTINGS).message(account, 0.01)
    assert refused.value.status == 408 and shared.used_bytes == 0


async def test_a_message_of_a_stream_may_begin_at_any_time_and_must_then_come() -> None:
    settings = GatewaySettings(max_body_bytes=LARGEST, body_timeout_s=0.1)
    slow = stream()
    with budget(LARGEST).open("c") as account:
        reading = asyncio.create_task(MessageReader(slow, settings).message(account, None))
        await asyncio.sleep(0.3)
        assert not reading.done()
        slow.take(framed(b"12345")[:7], 7, ends=False)
        with pytest.raises(RequestError) as late:
            await reading
        assert late.value.status == 408


async def test_a_reader_stops_when_the_gateway_ends() -> None:
    ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with budget(LARGEST).open("c") as account:
        reading = asyncio.create_task(MessageReader(stream(), SETTINGS, ending).message(account, None))
        await asyncio.sleep(0)
        ending.set_result(None)
        assert await reading is None


async def test_bytes_that_are_dropped_unread_are_given_back_to_the_connection() -> None:
    left = stream(b"x" * 300)
    left.close()
    assert left._incoming.given == 300  # type: ignore[attr-defined]


@pytest.mark.parametrize("reads", [True, False])
async def test_a_response_counts_until_its_client_took_it_or_left(*, reads: bool) -> None:
    sent = infer(payload=bytes(8 << 20))
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route(("aaaaaaaaaa", 100, [server.url]))
        budget = made.gate.budget
        # The library takes a message of a stream only when it is read.
        call = made.channel.unary_stream(INFER)(sent)
        await until_async(lambda: made.gate.outcomes() == {"ok": 1})
        await until_async(lambda: len(sent) <= budget.used_bytes <= len(sent) + (64 << 10))
        if reads:
            assert await call.read() == sent and await call.read() is aio.EOF
        else:
            call.cancel()
        await until_async(lambda: budget.used_bytes == 0)


async def test_a_client_that_does_not_read_its_response_is_left() -> None:
    async with upstream(echo) as server, grpc_gateway(stall_timeout_s=0.2) as made:
        made.gate.route(("aaaaaaaaaa", 100, [server.url]))
        call = made.channel.unary_stream(INFER)(infer(payload=bytes(8 << 20)))
        await until_async(lambda: made.gate.outcomes() == {"ok": 1})
        await until_async(lambda: not made.server.running and made.gate.budget.used_bytes == 0)
        call.cancel()


async def test_a_cancelled_read_stays_cancelled() -> None:
    with budget(LARGEST).open("c") as account:
        slow = stream(framed(bytes(LARGEST))[:99])
        reading = asyncio.create_task(MessageReader(slow, SETTINGS).message(account, 30.0))
        await until_async(lambda: account.held_bytes == LARGEST)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
