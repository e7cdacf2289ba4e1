"""Keeps the long-lived tasks of a process alive: none of them ends in silence.

A task that ends by an exception, or at all, is logged, counted and started again, after a pause that grows. What
follows where that does not help is stated for each task, as `OnFailure`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from threading import Event
from typing import Any, TypeVar

from .backoff import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSES = Backoff(0.1, 30.0)
# A task that has run for so long has recovered: its failures of before no longer count.
STEADY_S = 10.0
# Failures in a row after which a restart does not help.
MOST_FAILURES = 5


class OnFailure(Enum):
    """What follows when a task fails again and again."""

    EXIT = "the process ends, and whoever started it starts another one"
    UNREADY = "the process is not ready, until the task runs again"
    SHOW = "the process serves on without the task, and its readiness has it in its text"


@dataclass(slots=True, eq=False)
class _Supervised:
    name: str
    run: Callable[[], Awaitable[None]]
    on_failure: OnFailure
    ends: bool
    began_s: float = 0.0
    failures: int = 0  # in a row
    pauses: bool = False


class Supervisor:
    """The tasks of one process, or of one part of it. Start each with `start`; `close` ends all of them."""

    def __init__(
        self,
        on_restart: Callable[[str], None],
        on_give_up: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_restart` gets the name of each task that is started again. `on_give_up`: the process is to end."""
        self.on_restart, self._on_give_up, self._clock = on_restart, on_give_up, clock
        self._tasks: dict[asyncio.Task[None], _Supervised] = {}
        self.gave_up = ""  # the name of the task because of which the process is to end; empty: none

    @property
    def tasks(self) -> dict[str, OnFailure]:
        """The tasks that run now, by name."""
        return {one.name: one.on_failure for one in self._tasks.values()}

    @property
    def trouble(self) -> str:
        """Why the process is not ready; empty when its tasks do not hinder it."""
        if self.gave_up:
            return f"the task {self.gave_up!r} failed too often: the process ends"
        return self._failing(OnFailure.UNREADY)

    @property
    def missing(self) -> str:
        """What the process does without; empty when all of its tasks run."""
        return self._failing(OnFailure.SHOW)

    def start(
        self,
        name: str,
        run: Callable[[], Awaitable[None]],
        on_failure: OnFailure = OnFailure.UNREADY,
        *,
        ends: bool = False,
    ) -> asyncio.Task[None]:
        """Runs `run` until the task is cancelled. Several tasks may have one name.

        `run`: called again for each restart. `ends`: it may return, which ends the task; for others that is a failure.
        """
        supervised = _Supervised(name, run, on_failure, ends)
        task = asyncio.create_task(self._keep(supervised), name=name)
        self._tasks[task] = supervised
        task.add_done_callback(self._tasks.pop)
        return task

    async def close(self) -> None:
        """Cancels all tasks and waits for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, one: _Supervised) -> None:
        while True:
            one.began_s, one.pauses = self._clock(), False
            error = await _failure_of(one.run)
            if error is None and (one.ends or _is_cancelled()):
                return
            one.failures = 1 if self._clock() - one.began_s >= STEADY_S else one.failures + 1
            log.error("the task %r ended and is started again", one.name, exc_info=error)
            self.on_restart(one.name)
            if one.on_failure is OnFailure.EXIT and one.failures >= MOST_FAILURES:
                log.critical("the task %r failed too often: the process ends", one.name)
                self.gave_up = one.name
                self._on_give_up()
                return
            one.pauses = True
            await asyncio.sleep(PAUSES.delay_s(one.failures))

    def _failing(self, kind: OnFailure) -> str:
        now_s = self._clock()
        names = sorted(
            {
                one.name
                for one in self._tasks.values()
                if one.on_failure is kind
                and one.failures >= MOST_FAILURES
                and (one.pauses or now_s - one.began_s < STEADY_S)
            }
        )
        return f"failing again and again: {', '.join(names)}" if names else ""


def observe(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Logs an exception at the end of a task that serves one request, or one object, and that nothing awaits.

    asyncio reports such an exception when it collects the task, which may be never. Returns the task.
    """
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("the task %r failed", task.get_name(), exc_info=error)


async def _failure_of(run: Callable[[], Awaitable[None]]) -> Exception | None:
    """Runs it; returns the exception that ended it, or None.

    Raises:
        CancelledError: the task that calls this is cancelled.
    """
    try:
        await run()
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        return RuntimeError(f"it was cancelled from within: {error}")
    except Exception as error:
        return error
    return None


def _is_cancelled() -> bool:
    """Whether the current task is to end; libraries may take its cancellation for one of their own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def keep_thread(
    name: str,
    loop: Callable[[], None],
    on_restart: Callable[[str], None] = lambda name: None,
    ended: Event | None = None,
) -> None:
    """Runs the loop of a thread until it returns; after an exception again, with pauses, until `ended` is set."""
    failures, ended = 0, ended or Event()
    while not ended.is_set():
        began_s = time.monotonic()
        try:
            loop()
            return
        except Exception as error:
            failures = 1 if time.monotonic() - began_s >= STEADY_S else failures + 1
            log.error("the thread %r ended and is started again", name, exc_info=error)
            on_restart(name)
        ended.wait(PAUSES.delay_s(failures))
