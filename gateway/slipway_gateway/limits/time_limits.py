"""Bounds the time of all running requests."""

import asyncio
import time
from types import TracebackType


class TimeLimits:
    """Bounds the time of all running requests by one timer, which costs less than a timer for each request.

    `cut`: requests are ended before their time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._due_s: dict[TimeBound, float] = {}  # in the order in which they are due: all have the same limit
        self._timer: asyncio.TimerHandle | None = None
        self.cut = False

    def __len__(self) -> int:
        """Requests that run."""
        return len(self._due_s)

    def enter(self, bound: "TimeBound") -> None:
        """The time of a request begins; `leave` ends it."""
        due_s = self._due_s[bound] = time.monotonic() + self._limit_s
        if self.cut:
            self._loop.call_soon(bound.end)
        elif self._timer is None:
            self._timer = self._loop.call_at(due_s, self._look)

    def leave(self, bound: "TimeBound") -> None:
        del self._due_s[bound]

    def end_all(self) -> None:
        self.cut = True
        for bound in self._due_s:
            bound.end()

    def _look(self) -> None:
        self._timer = None
        for bound, due_s in self._due_s.items():
            if due_s > self._loop.time():
                self._timer = self._loop.call_at(due_s, self._look)
                return
            bound.end()


class TimeBound:
    """Context manager in which the time of one request is bounded: as `asyncio.timeout`, which has its own timer.

    Raises TimeoutError at its end if `end` was called inside.
    """

    __slots__ = ("_before", "_ended", "_limits", "_task")

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._task: asyncio.Task[object] | None = None
        self._before = 0  # cancellations of the task that others requested
        self._ended = False

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        assert task is not None
        self._before = task.cancelling()
        self._limits.enter(self)

    def end(self) -> None:
        """The request ends now. Without effect when it has ended."""
        if self._task is not None and not self._ended:
            self._ended = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._limits.leave(self)
        if self._ended and task and task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error
