"""Works beside the event loop: bounded in number and time."""

import asyncio
import threading
import time

import pytest

from slipway_server.text.pool import TextBusy, TextPool, TextTimeout

pytestmark = pytest.mark.attack_class(17, 18)


def endless() -> None:
    while True:
        pass


@pytest.mark.finding(5)
async def test_safety_5_a_work_without_end_is_ended_and_leaves_its_thread() -> None:
    pool = TextPool(threads=1, limit_s=0.1)
    with pytest.raises(TextTimeout):
        await pool.run(endless)
    assert await pool.run(lambda: 5) == 5


async def test_the_event_loop_is_not_blocked() -> None:
    work = asyncio.create_task(TextPool(threads=1, limit_s=60).run(endless))
    for _ in range(5):
        await asyncio.sleep(0.01)
        assert not work.done()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_time_counts_from_the_start_of_a_work() -> None:
    """One that waited its turn is not ended for it."""
    pool = TextPool(threads=1, limit_s=2.0)
    works = [asyncio.create_task(pool.run(lambda: time.sleep(0.55))) for _ in range(4)]
    assert await asyncio.gather(*works) == [None] * 4


async def test_too_many_works_are_refused() -> None:
    pool, may = TextPool(threads=1, waiting=2), threading.Event()
    works = [asyncio.create_task(pool.run(may.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TextBusy):
        await pool.run(lambda: None)
    may.set()
    await asyncio.gather(*works)
    assert await pool.run(lambda: 1) == 1


async def test_a_cancelled_caller_cancels_its_job() -> None:
    pool = TextPool(threads=1)
    for _ in range(20):
        work = asyncio.create_task(pool.run(endless))
        await asyncio.sleep(0.005)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert await pool.run(lambda: 5) == 5


async def test_the_exception_of_a_job_is_raised() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await TextPool().run(fails)
