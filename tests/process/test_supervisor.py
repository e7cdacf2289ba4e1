"""No long-lived task ends in silence: it is started again, and where that does not help, the process says so."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from slipway_process import supervisor as module
from slipway_process.backoff import Backoff
from slipway_process.supervisor import MOST_FAILURES, OnFailure, Supervisor, keep_thread, observe
from testkit.until import until_async

pytestmark = pytest.mark.finding("F4")


@pytest.fixture
def restarts() -> list[str]:
    return []


@pytest.fixture
async def tasks(restarts: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    monkeypatch.setattr(module, "PAUSES", Backoff(0.001, 0.01))
    made = Supervisor(restarts.append)
    yield made
    await made.close()


class Loop:
    """Fails as often as it is set to, then works."""

    def __init__(
        self, failures: int, error: Callable[[], BaseException | None] = lambda: RuntimeError("a bug")
    ) -> None:
        self.left, self.error, self.works = failures, error, asyncio.Event()

    async def run(self) -> None:
        if self.left:
            self.left -= 1
            if error := self.error():
                raise error
            return
        self.works.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "error",
    [
        lambda: OverflowError("int too large"),
        lambda: ExceptionGroup("of a group", [ValueError("a part")]),
        lambda: asyncio.CancelledError("of a library"),
        lambda: None,  # it returns
    ],
)
async def test_a_task_that_ends_is_started_again(
    tasks: Supervisor, restarts: list[str], error: Callable[[], BaseException | None]
) -> None:
    loop = Loop(2, error)
    tasks.start("ledger", loop.run)
    await asyncio.wait_for(loop.works.wait(), 10)
    assert restarts == ["ledger", "ledger"]
    assert (tasks.trouble, tasks.tasks) == ("", {"ledger": OnFailure.UNREADY})


async def test_one_that_fails_again_and_again_makes_the_process_unready_until_it_works(tasks: Supervisor) -> None:
    loop = Loop(10**9)
    tasks.start("ledger", loop.run)
    await until_async(lambda: tasks.trouble)
    assert tasks.trouble == "failing again and again: ledger"
    assert tasks.missing == ""
    loop.left = 0
    await asyncio.wait_for(loop.works.wait(), 10)
    # It has to run for a while first.
    assert tasks.trouble
    tasks._clock = lambda: float("inf")
    assert not tasks.trouble


async def test_what_is_not_needed_to_serve_is_only_shown(tasks: Supervisor) -> None:
    tasks.start("warm-up", Loop(10**9).run, OnFailure.SHOW)
    await until_async(lambda: tasks.missing)
    assert (tasks.missing, tasks.trouble) == ("failing again and again: warm-up", "")


async def test_one_that_the_process_is_nothing_without_ends_it(restarts: list[str], tasks: Supervisor) -> None:
    ended = asyncio.Event()
    tasks._on_give_up = ended.set
    tasks.start("routes", Loop(10**9).run, OnFailure.EXIT)
    await asyncio.wait_for(ended.wait(), 10)
    assert len(restarts) == MOST_FAILURES
    assert (tasks.gave_up, "routes" in tasks.trouble) == ("routes", True)


async def test_a_task_may_end_where_that_is_its_purpose(tasks: Supervisor, restarts: list[str]) -> None:
    loop = Loop(1, lambda: None)
    await tasks.start("worker", loop.run, ends=True)
    assert (restarts, tasks.tasks) == ([], {})


async def test_the_end_of_the_process_is_no_failure(restarts: list[str]) -> None:
    made, loops = Supervisor(restarts.append), [Loop(0), Loop(0)]
    for loop in loops:
        made.start("calls", loop.run)
    for loop in loops:
        await loop.works.wait()
    await made.close()
    assert (restarts, made.tasks) == ([], {})


def test_a_thread_is_kept_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES", Backoff(0.001, 30.0))
    restarts, ended, left = list[str](), threading.Event(), [3]

    def loop() -> None:
        if left[0]:
            left[0] -= 1
            raise KeyError("a bug")

    keep_thread("lines", loop, restarts.append, ended)
    assert restarts == ["lines"] * 3
    left[0] = 1
    ended.set()
    keep_thread("lines", loop, restarts.append, ended)
    assert left == [1], "its end was announced before"


async def test_the_end_of_a_task_that_nothing_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise KeyError("a bug")

    failed = observe(asyncio.create_task(fails(), name="a notice"))
    left = observe(asyncio.create_task(asyncio.sleep(60)))
    await asyncio.wait([failed])
    left.cancel()
    await asyncio.wait([left])
    [record] = caplog.records
    assert record.getMessage() == "the task 'a notice' failed" and "a bug" in str(record.exc_info)
