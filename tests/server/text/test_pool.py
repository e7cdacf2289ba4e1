"""Jobs in threads beside the event loop: few at once, for tenants in turns, and answered in time."""

import asyncio
import threading
import time

import pytest

from slipway_process.serving.turns import TextBusy
from slipway_server.text.pool import TextPool, TextTimeout

pytestmark = pytest.mark.attack_class(18)


async def test_a_job_that_takes_too_long_is_answered_and_keeps_its_thread() -> None:
    pool, may = TextPool(threads=1, limit_s=0.1), threading.Event()
    with pytest.raises(TextTimeout):
        await pool.run(may.wait)
    after = asyncio.create_task(pool.run(lambda: 5))
    done, _ = await asyncio.wait([after], timeout=0.05)
    assert not done, "there is one thread, and it still works"
    may.set()
    assert await after == 5


async def test_time_counts_from_the_start_of_a_job() -> None:
    """One that waited its turn is not ended for it."""
    pool = TextPool(threads=1, limit_s=2.0)
    jobs = [asyncio.create_task(pool.run(lambda: time.sleep(0.55))) for _ in range(4)]
    assert await asyncio.gather(*jobs) == [None] * 4


async def test_too_many_jobs_are_refused() -> None:
    pool, may = TextPool(threads=1, waiting=2), threading.Event()
    jobs = [asyncio.create_task(pool.run(may.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TextBusy):
        await pool.run(lambda: None)
    may.set()
    await asyncio.gather(*jobs)
    assert await pool.run(lambda: 1) == 1


@pytest.mark.finding("F2")
async def test_the_jobs_of_one_tenant_refuse_and_delay_no_other() -> None:
    """They took all places, and the next tenant got 429."""
    pool, may, order = TextPool(threads=1, waiting=4), threading.Event(), list[str]()
    first = asyncio.create_task(pool.run(may.wait, "greedy"))
    await asyncio.sleep(0)
    jobs = [asyncio.create_task(pool.run(lambda: order.append("greedy"), "greedy")) for _ in range(4)]
    await asyncio.sleep(0)
    other = asyncio.create_task(pool.run(lambda: order.append("other"), "other"))
    await asyncio.sleep(0)
    may.set()
    await asyncio.gather(first, other)
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [isinstance(result, TextBusy) for result in results] == [False, False, False, True]
    assert order == ["greedy", "other", "greedy", "greedy"]


@pytest.mark.parametrize("waited", [False, True])
async def test_a_caller_that_leaves_gives_its_turn_back(waited: bool) -> None:
    pool, may = TextPool(threads=1, waiting=1), threading.Event()
    job = asyncio.create_task(pool.run(may.wait))
    await asyncio.sleep(0)
    for _ in range(5):
        leaving = asyncio.create_task(pool.run(lambda: 1))
        await asyncio.sleep(0)
        if waited:
            may.set()
            await job
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    may.set()
    await job
    assert await pool.run(lambda: 5) == 5


async def test_the_exception_of_a_job_is_raised() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await TextPool().run(fails)
