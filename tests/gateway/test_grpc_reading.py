"""Messages of gRPC in the memory budget: at once, slowly, evicted, too slowly, and at the end; responses until they are
taken."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from grpc import aio

from slipway_gateway.grpc_api.reading import MessageReader
from slipway_gateway.limits.budget import MemoryBudget
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.wire.errors import RequestError
from testkit.until import until_async

from .grpc_gateway import INFER, echo, grpc_gateway, infer
from .harness import upstream

LARGEST = 1000
SETTINGS = GatewaySettings(max_body_bytes=LARGEST)


def budget(size: int, clock: Callable[[], float] = float) -> MemoryBudget:
    return MemoryBudget(size, size, clock)


async def never() -> Any:
    await asyncio.Event().wait()


async def test_a_message_that_is_there_counts_as_its_size() -> None:
    async def read() -> Any:
        return b"x" * 70

    shared = budget(100)
    with shared.open("c") as account:
        assert await MessageReader(read, SETTINGS).message(account, 1.0) == b"x" * 70
        assert shared.used_bytes == 70
        with pytest.raises(RequestError) as refused:
            await MessageReader(read, SETTINGS).message(account, 1.0)
        assert refused.value.status == 429
    assert shared.used_bytes == 0


async def test_the_end_of_a_call_is_no_message() -> None:
    async def read() -> Any:
        return aio.EOF

    with budget(100).open("c") as account:
        assert await MessageReader(read, SETTINGS).message(account, 1.0) is None


async def test_a_slow_message_counts_as_the_largest_until_it_is_there() -> None:
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read() -> Any:
        return await came

    shared = budget(LARGEST)
    with shared.open("c") as account:
        reading = asyncio.create_task(MessageReader(read, SETTINGS).message(account, 30.0))
        await until_async(lambda: shared.used_bytes == LARGEST)
        with shared.open("d") as other, pytest.raises(RequestError) as refused:
            await MessageReader(never, SETTINGS).message(other, 30.0)
        assert refused.value.status == 429
        came.set_result(b"x" * 70)
        assert await reading == b"x" * 70 and shared.used_bytes == 70


async def test_a_message_that_does_not_come_is_evicted_where_others_need_the_room() -> None:
    now_s = 0.0
    shared = budget(LARGEST, lambda: now_s)
    account = shared.open("c")
    reading = asyncio.create_task(MessageReader(never, SETTINGS).message(account, 30.0))
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
        await MessageReader(never, SETTINGS).message(account, 0.01)
    assert refused.value.status == 408 and shared.used_bytes == 0


async def test_a_reader_stops_when_the_gateway_ends() -> None:
    ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with budget(LARGEST).open("c") as account:
        reading = asyncio.create_task(MessageReader(never, SETTINGS, ending).message(account, None))
        await asyncio.sleep(0)
        ending.set_result(None)
        assert await reading is None


@pytest.mark.parametrize("reads", [True, False])
async def test_a_response_counts_until_its_client_took_it_or_left(*, reads: bool) -> None:
    sent = infer(payload=bytes(8 << 20))
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route(("aaaaaaaaaa", 100, [server.url]))
        budget = made.gate.budget
        # The library takes a message of a stream only when it is read.
        call = made.channel.unary_stream(INFER)(sent)
        await until_async(lambda: made.gate.outcomes() == {"ok": 1})
        await until_async(lambda: budget.used_bytes == len(sent))
        if reads:
            assert await call.read() == sent and await call.read() is aio.EOF
        else:
            call.cancel()
        await until_async(lambda: budget.used_bytes == 0)


async def test_a_client_that_does_not_read_its_response_is_left() -> None:
    """By the library too: its calls are bounded in number."""

    def running() -> int:
        return sum("HandleExceptions" in task.get_name() for task in asyncio.all_tasks())

    async with upstream(echo) as server, grpc_gateway(stall_timeout_s=0.2) as made:
        made.gate.route(("aaaaaaaaaa", 100, [server.url]))
        call = made.channel.unary_stream(INFER)(infer(payload=bytes(8 << 20)))
        await until_async(lambda: made.gate.outcomes() == {"ok": 1})
        await until_async(lambda: not running() and made.gate.budget.used_bytes == 0)
        assert not call.done()
        call.cancel()


async def test_a_cancelled_read_stays_cancelled() -> None:
    with budget(LARGEST).open("c") as account:
        reading = asyncio.create_task(MessageReader(never, SETTINGS).message(account, 30.0))
        await until_async(lambda: account.held_bytes == LARGEST)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
