"""Keyed work queue: each key once, by one worker at a time, with delays, backoff and turns of those who share it.

It is independent of Kubernetes.
"""

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from slipway_process.backoff import Backoff

K = TypeVar("K", bound=Hashable)
E = TypeVar("E", bound=tuple[object, ...])
Handle = Callable[[K, int], Awaitable[float | None]]
_Ranked = tuple[float, int, K]  # rank, place among equal ranks, key

BACKOFF = Backoff(0.2, 300.0, jitter=0.5)
HEAD_START_S = 60.0
_SLACK = 64  # outdated heap entries that are tolerated before the heap is rebuilt


def _alone(key: object) -> Hashable:
    """The share of every key in a queue that is not shared."""
    return None


class ReadyKeys(Generic[K]):
    """Keys whose time has come. Each share gets one of them handled in turn; in a share the lowest rank is first.

    Start-time fair queueing: a share has the number of its turn from when its first key comes until that key is taken.
    Its next turn is one later, and no earlier than that of the key that was taken last: who was idle saved nothing.
    """

    def __init__(self, share_of: Callable[[K], Hashable]) -> None:
        self._share_of = share_of
        self._ranks: dict[K, float] = {}
        self._keys: dict[Hashable, list[_Ranked[K]]] = {}  # heaps by share, whose first entry is never outdated
        self._turns: dict[Hashable, int] = {}  # of shares with keys, and the next ones of those that had some
        self._order: list[tuple[int, _Ranked[K], Hashable]] = []  # heap of shares; some entries are outdated
        self._turn = 0  # that of the key that was taken last
        self._sequence = 0  # first come, first served among keys of the same rank

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: K) -> bool:
        return key in self._ranks

    def put(self, key: K, rank: float) -> None:
        """Add a key, or give one that is there a lower rank."""
        share, self._ranks[key] = self._share_of(key), rank
        self._sequence += 1
        ranked = (rank, self._sequence, key)
        keys = self._keys.setdefault(share, [])
        if not keys:
            self._turns[share] = max(self._turn, self._turns.get(share, 0))
        _push(keys, ranked, self._is_ranked, len(self._ranks))
        if keys[0] is ranked:
            self._line_up(share)

    def take(self) -> K:
        """Remove and return the next key."""
        self._turn, (_, _, key), share = self._next()
        del self._ranks[key]
        self._turns[share] = self._turn + 1
        keys = self._keys[share]
        while keys and not self._is_ranked(keys[0]):
            heapq.heappop(keys)
        if keys:
            self._line_up(share)
        else:
            del self._keys[share]
        self._forget_turns()
        return key

    def _forget_turns(self) -> None:
        if not self._keys:  # when no share waits, none was served before another
            self._turns.clear()
            self._order.clear()
        elif len(self._turns) > 2 * len(self._keys) + _SLACK:
            later = {share: turn for share, turn in self._turns.items() if turn > self._turn or share in self._keys}
            self._turns = later

    def _line_up(self, share: Hashable) -> None:
        _push(self._order, (self._turns[share], self._keys[share][0], share), self._is_in_line, len(self._keys))

    def _next(self) -> "tuple[int, _Ranked[K], Hashable]":
        while not self._is_in_line(entry := heapq.heappop(self._order)):
            pass
        return entry

    def _is_ranked(self, entry: "_Ranked[K]") -> bool:
        return self._ranks.get(entry[2]) == entry[0]

    def _is_in_line(self, entry: "tuple[int, _Ranked[K], Hashable]") -> bool:
        turn, ranked, share = entry
        return share in self._keys and self._keys[share][0] is ranked and self._turns[share] == turn


def _push(heap: list[E], entry: E, holds: Callable[[E], bool], count: int) -> None:
    """Push an entry, and remove outdated ones if there are far more than the `count` that hold."""
    heapq.heappush(heap, entry)
    if len(heap) > 2 * count + _SLACK:
        heap[:] = [entry for entry in heap if holds(entry)]
        heapq.heapify(heap)


class WorkQueue(Generic[K]):
    """Which keys are to be handled, and when. Memory is bounded by the number of keys, not of events.

    Of the keys that are due each share gets one handled in turn: in a share the one that has been due for longest.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        share_of: Callable[[K], Hashable] = _alone,
    ) -> None:
        """`clock` counts seconds and never runs backwards; `jitter` returns numbers from 0 to 1."""
        self._clock, self._jitter = clock, jitter
        self._due: dict[K, float] = {}  # waiting keys
        self._ahead: set[K] = set()  # keys with a head start
        self._heap: list[
            tuple[float, int, K]
        ] = []  # waiting keys by time; entries that `_due` contradicts are outdated
        self._ready: ReadyKeys[K] = ReadyKeys(share_of)  # those whose time has come; a head start lowers their rank
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
        """Handle a key as if it had been due for HEAD_START_S: before most of its share, without starvation of any."""
        self._rank_due()
        fresh = key not in self._ahead
        self._ahead.add(key)
        self.add(key)
        if fresh and key in self._ready:  # it was due already, behind others: move it forward
            self._rank(key)

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
        """Return the next key and mark it as being handled; None when none is due."""
        if self.closed or self._paused or self.next_due() > self._clock():
            return None
        key = self._ready.take()
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
        self._release(key, BACKOFF.delay_s(failures, self._jitter()))

    def failures(self, key: K) -> int:
        """Return the number of consecutive failures of a key."""
        return self._failures.get(key, 0)

    def next_due(self) -> float:
        """Return the moment at which the next key is due, or now; infinity when none waits."""
        self._rank_due()
        if self._ready:
            return self._clock()
        return self._heap[0][0] if self._heap else float("inf")

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
        _push(self._heap, (due, self._sequence, key), self._holds, len(self._due))
        self._changed.set()

    def _holds(self, entry: tuple[float, int, K]) -> bool:
        due, _, key = entry
        return key not in self._ready and self._due.get(key) == due

    def _rank_due(self) -> None:
        """Rank all keys whose time has come."""
        now = self._clock()
        while self._heap and (self._heap[0][0] <= now or not self._holds(self._heap[0])):
            entry = heapq.heappop(self._heap)
            if self._holds(entry):
                self._rank(entry[2])

    def _rank(self, key: K) -> None:
        self._ready.put(key, self._due[key] - HEAD_START_S if key in self._ahead else self._due[key])


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
        except asyncio.CancelledError:
            queue.failed(key)  # this worker may go on, and then nothing else would handle the key again
            raise
        except Exception as error:
            queue.failed(key)
            on_error(key, error)
        else:
            queue.done(key, again_after_s)
