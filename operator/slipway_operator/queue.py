"""Keyed work queue: each key once, by one worker at a time, with delays and backoff; independent of Kubernetes."""

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Handle = Callable[[K, int], Awaitable[float | None]]

BACKOFF_FIRST_S = 0.2
BACKOFF_LIMIT_S = 300.0
HEAD_START_S = 60.0
_SLACK = 64  # outdated heap entries that are tolerated before the heap is rebuilt


class WorkQueue(Generic[K]):
    """Which keys are to be handled, and when. Memory is bounded by the number of keys, not of events."""

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float] = random.random) -> None:
        """`clock` counts seconds and never runs backwards; `jitter` returns numbers from 0 to 1."""
        self._clock, self._jitter = clock, jitter
        self._due: dict[K, float] = {}  # waiting keys
        self._ahead: set[K] = set()  # keys with a head start
        # Waiting keys by time, head start included; entries that `_due` and `_ahead` contradict are outdated.
        self._heap: list[tuple[float, int, K]] = []
        self._started: dict[K, float] = {}  # keys being handled
        self._again: dict[K, float] = {}  # keys being handled that are due once more
        self._failures: dict[K, int] = {}  # consecutive failures of a key
        self._sequence = 0  # first come, first served among keys due at the same moment
        self._changed = asyncio.Event()
        self.retries = 0  # failures of all keys since the process started
        self.closed = False
        self._paused = False

    def add(self, key: K) -> None:
        """Handle a key as soon as possible, even one that is waiting out a backoff."""
        self.add_after(key, 0.0)

    def add_first(self, key: K) -> None:
        """Handle a key as if it had been due for HEAD_START_S: before most others, without starvation of any."""
        fresh = key not in self._ahead
        self._ahead.add(key)
        self.add(key)
        if fresh and key in self._due:  # it was due already, behind others: move it forward
            self._push(key, self._due[key])

    def add_after(self, key: K, delay_s: float) -> None:
        """Handle a key after `delay_s`, or earlier if it is already waiting for an earlier moment."""
        due = self._clock() + delay_s
        waiting = self._again if key in self._started else self._due
        if waiting.get(key, float("inf")) <= due:
            return
        waiting[key] = due
        if waiting is self._due:
            self._push(key, due)

    def take(self) -> K | None:
        """Return the key that has been due for longest and mark it as being handled; None when none is due."""
        if self.closed or self._paused or self.next_due() > self._clock():
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._ahead.discard(key)
        self._started[key] = self._clock()
        return key

    def done(self, key: K, again_after_s: float | None = None) -> None:
        """Mark a key as handled; it is due again after `again_after_s`, or when it is added."""
        self._failures.pop(key, None)
        self._release(key, again_after_s)

    def failed(self, key: K) -> None:
        """Mark a key as failed; it is due again with exponential backoff.

        No retry of tenacity, because no call waits here: a failure sets when the key is due, as in controller-runtime.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.retries += 1
        full = min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 32))
        self._release(key, full * (0.5 + 0.5 * self._jitter()))

    def failures(self, key: K) -> int:
        """Return the number of consecutive failures of a key."""
        return self._failures.get(key, 0)

    def next_due(self) -> float:
        """Return the moment at which the next key is due; infinity when none waits."""
        while self._heap and not self._holds(self._heap[0]):
            heapq.heappop(self._heap)
        return self._due[self._heap[0][2]] if self._heap else float("inf")

    def pause(self) -> None:
        """Give out no key until `resume`; keys that are added are kept, and those being handled go on."""
        self._paused = True

    def resume(self) -> None:
        """Give out keys again."""
        self._paused = False
        self._changed.set()

    def close(self) -> None:
        """Give out no more keys; the workers end when they are done with theirs."""
        self.closed = True
        self._changed.set()

    def depth(self) -> int:
        """Return the number of keys that are due and not being handled."""
        now = self._clock()
        return sum(due <= now for due in self._due.values())

    def oldest_wait_s(self) -> float:
        """Return for how many seconds the oldest waiting key has been due; 0 when none is."""
        return max(0.0, self._clock() - min(self._due.values(), default=float("inf")))

    def longest_run_s(self) -> float:
        """Return for how many seconds the slowest key has been handled; 0 when none is."""
        return max((self._clock() - started for started in self._started.values()), default=0.0)

    async def wait(self) -> None:
        """Wait until a key may be due, or the queue is closed."""
        if self.closed:
            return
        self._changed.clear()
        delay_s = float("inf") if self._paused else self.next_due() - self._clock()
        if delay_s <= 0:
            return
        try:
            async with asyncio.timeout(None if delay_s == float("inf") else delay_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _release(self, key: K, after_s: float | None) -> None:
        del self._started[key]
        again = self._again.pop(key, None)
        if again is not None:
            self.add_after(key, max(0.0, again - self._clock()))
        if after_s is not None:
            self.add_after(key, after_s)

    def _push(self, key: K, due: float) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self._rank(key, due), self._sequence, key))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [entry for entry in self._heap if self._holds(entry)]
            heapq.heapify(self._heap)
        self._changed.set()

    def _rank(self, key: K, due: float) -> float:
        return due - HEAD_START_S if key in self._ahead else due

    def _holds(self, entry: tuple[float, int, K]) -> bool:
        rank, _, key = entry
        return key in self._due and self._rank(key, self._due[key]) == rank


async def work(queue: WorkQueue[K], handle: Handle[K], on_error: Callable[[K, Exception], None]) -> None:
    """Handle keys one after the other until the queue is closed.

    `handle(key, failures)` returns the seconds until the key is due again, None to wait until it is added. When it
    raises, the key is retried with backoff and `on_error` gets the exception.
    """
    while not queue.closed:
        key = queue.take()
        if key is None:
            await queue.wait()
            continue
        try:
            again_after_s = await handle(key, queue.failures(key))
        except Exception as error:
            queue.failed(key)
            on_error(key, error)
        else:
            queue.done(key, again_after_s)
