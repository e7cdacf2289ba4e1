"""Which rows run in the next batch: at once when the model is idle, gathered while it is busy (pure).

A batch has rows of one key: the same inputs, shapes of a row, parameters and outputs. Its first request is the oldest
one of the most urgent class. A request that is larger than a batch is cut, in order, and goes behind the others after
each of its batches; any other one runs whole.
"""

import math
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from .fit import ServiceTime
from .texts import BATCH_TOKENS

# Where the rules have no limit so many requests may wait, and up to MAX_QUEUE while all rows that wait are computed in
# QUEUE_S: a pause of the machine refuses no request of a fast model, and one to a slow model does not wait for minutes.
MIN_QUEUE, MAX_QUEUE, QUEUE_S = 256, 1024, 1.0
# Of inputs that wait, in all queues of a server together: a share of the memory that is free at its start, and a bound.
QUEUE_MEMORY_SHARE, MAX_QUEUE_BYTES = 0.1, 512 << 20
OF_A_TENANT = 0.75  # of each of these bounds; the rest is for tenants of which no request waits


@dataclass(slots=True)
class QueueMemory:
    """Bytes of the inputs that wait in the queues that share this."""

    limit_bytes: int = MAX_QUEUE_BYTES
    used_bytes: int = 0

    @classmethod
    def of_free(cls, free_bytes: int) -> "QueueMemory":
        return cls(min(MAX_QUEUE_BYTES, int(free_bytes * QUEUE_MEMORY_SHARE)))

    def has_room(self, size_bytes: int, part: float = 1.0) -> bool:
        """`part`: of the limit."""
        return self.used_bytes + size_bytes <= part * self.limit_bytes


@dataclass(frozen=True, slots=True)
class BatchRules:
    """`max_delay_s` lets an idle model wait for more rows; 0, the default, never does."""

    max_size: int = 64  # rows of a batch
    max_delay_s: float = 0.0
    max_queue: int = 0  # requests that wait; 0: MIN_QUEUE to MAX_QUEUE of them
    timeout_s: float = math.inf  # from arrival to response; a request can only shorten it
    max_tokens: int = BATCH_TOKENS  # of a batch of texts, padded to the longest row, as estimated; one row always runs


class PredictJob(Struct, eq=False):
    """A request for `rows` rows; 0: it runs alone. `done_rows`: how many of them were put into a batch already.

    `row_tokens`: estimated tokens of its longest row; 0: its rows are no texts. `turn`: its place in the order of all
    requests that wait.
    """

    id: int
    key: Hashable
    rows: int
    arrived_s: float
    deadline_s: float = math.inf
    priority: int = 0  # lower runs earlier
    done_rows: int = 0
    row_tokens: int = 0
    size_bytes: int = 0  # of its inputs
    queued: bool = False
    turn: int = 0
    tenant: str = ""

    @property
    def left(self) -> int:
        return self.rows - self.done_rows


class Part(Struct, frozen=True):
    """Rows of one request in one batch."""

    job: PredictJob
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class RowBatch:
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def halves(self) -> "tuple[RowBatch, RowBatch]":
        """Two halves of a batch that failed, to find the request that is at fault."""
        middle = len(self.parts) // 2
        return RowBatch(self.parts[:middle]), RowBatch(self.parts[middle:])


class BatchQueueFull(Exception):
    """Too many requests wait."""


class DeadlineMissed(Exception):
    """The request would miss its deadline, or has missed it."""


@dataclass(slots=True)
class Batcher:
    rules: BatchRules
    memory: QueueMemory = field(default_factory=QueueMemory)
    fit: ServiceTime = field(default_factory=ServiceTime)
    _queues: dict[tuple[int, Hashable], deque[PredictJob]] = field(
        default_factory=dict
    )  # by class and key, in the order of their turns
    _turns: int = 0  # that were given out
    _waiting: int = 0
    _tenants: Counter[str] = field(default_factory=Counter)  # requests that wait of each
    _turn_rows: int = 0  # of the next batch of each request that waits: what is ahead of one that comes now
    _running_rows: int = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def waiting_rows(self) -> int:
        """Rows that wait; of a request that is larger than a batch those of one batch."""
        return self._turn_rows

    def submit(self, job: PredictJob, now_s: float) -> None:
        """Put a request into the queue.

        Raises:
            BatchQueueFull: too many requests wait.
            DeadlineMissed: the request is refused at once, because it would be late.
        """
        part = OF_A_TENANT if job.tenant and job.tenant in self._tenants else 1.0
        if self._is_full(part):
            raise BatchQueueFull(f"{self._waiting} requests wait, which is the limit.")
        # One request of each model may always wait: or large inputs were never computed, and a model had to wait for
        # another one's queue.
        if self._waiting and not self.memory.has_room(job.size_bytes, part):
            raise BatchQueueFull(f"{self.memory.used_bytes} bytes of inputs wait, and there is no room for more.")
        if math.isfinite(job.deadline_s):
            rows_ahead = self._turn_rows + self._running_rows
            batches = math.ceil(rows_ahead / self.rules.max_size)
            if self.fit.misses(max(1, job.rows), rows_ahead, batches, job.deadline_s - now_s):
                raise DeadlineMissed("The request would miss its deadline: more work waits than is done until then.")
        self._queue(self._queues.setdefault((job.priority, job.key), deque()), job)
        job.queued = True
        self._waiting += 1
        self._tenants[job.tenant] += 1
        self._turn_rows += self._next_rows(job)
        self.memory.used_bytes += job.size_bytes

    def cancel(self, job: PredictJob) -> None:
        """Take a request out of the queue: its client left, or a part of it failed. Rows that run already go on."""
        if job.queued:
            self._queues[job.priority, job.key].remove(job)
            self._removed(job)

    def expire(self, now_s: float) -> list[PredictJob]:
        """Take the requests whose deadline has passed out of the queue, and return them."""
        late = [job for job in self._jobs() if job.deadline_s <= now_s]
        for job in late:
            self.cancel(job)
        return late

    def take(self, now_s: float) -> RowBatch | None:
        """The next batch for a model that is idle; None when there is none yet."""
        queue = self._first_queue()
        if queue is None or self._should_wait(queue, now_s):
            return None
        batch = RowBatch(tuple(self._fill(queue)))
        self._running_rows = batch.rows
        return batch

    def finished(self, batch: RowBatch, seconds: float | None) -> None:
        """Note that a batch has ended. `seconds`: how long the model computed it; None: it failed, or was not run."""
        self._running_rows = 0
        if seconds is not None:
            self.fit.observe(batch.rows, seconds)

    def next_s(self, now_s: float) -> float | None:
        """When to `expire` and `take` again without a new request: a delay or a deadline ends then. None: never."""
        moments = [job.deadline_s for job in self._jobs() if math.isfinite(job.deadline_s)]
        queue = self._first_queue()
        if queue is not None and self._should_wait(queue, now_s):
            moments.append(queue[0].arrived_s + self.rules.max_delay_s)
        return min(moments, default=None)

    def _is_full(self, part: float) -> bool:
        """Whether too many requests wait for one who may use this part of the queue."""
        if self.rules.max_queue:
            return self._waiting >= part * self.rules.max_queue
        if self._waiting < part * MIN_QUEUE:
            return False
        rows = self._turn_rows
        wait_s = self.fit.wait_s(rows, math.ceil(rows / self.rules.max_size))
        return self._waiting >= part * MAX_QUEUE or not 0.0 < wait_s <= part * QUEUE_S

    def _jobs(self) -> Iterator[PredictJob]:
        return (job for queue in self._queues.values() for job in queue)

    def _first_queue(self) -> deque[PredictJob] | None:
        """The queue of the request in the most urgent class that has the next turn."""
        best = min(self._queues.items(), key=lambda one: (one[0][0], one[1][0].turn), default=None)
        return best[1] if best else None

    def _should_wait(self, queue: deque[PredictJob], now_s: float) -> bool:
        delay_s = self.rules.max_delay_s
        if not delay_s or now_s >= queue[0].arrived_s + delay_s:  # the sum that `next_s` gives
            return False
        return queue[0].rows > 0 and sum(job.left for job in queue) < self._most_rows(
            max(job.row_tokens for job in queue)
        )

    def _fill(self, queue: deque[PredictJob]) -> Iterator[Part]:
        room, rows, longest = self.rules.max_size, 0, 0
        while queue and room > 0:
            job = queue[0]
            longest = max(longest, job.row_tokens)
            room = min(room, self._most_rows(longest) - rows)
            oversize = job.rows > self._most_rows(job.row_tokens)
            if room <= 0:
                return
            if job.left > room and not oversize:
                return  # it runs whole, as the first one of the next batch
            taken = min(job.left, room)
            part = Part(job, job.done_rows, job.done_rows + taken)
            self._turn_rows -= self._next_rows(job)
            job.done_rows += taken
            self._turn_rows += self._next_rows(job)
            queue.popleft()
            if job.left:
                self._queue(queue, job)
            else:
                self._removed(job)
            yield part
            if not job.rows:
                return  # alone
            room, rows = room - taken, rows + taken

    def _most_rows(self, row_tokens: int) -> int:
        """Rows of a batch whose longest row has so many tokens."""
        most = self.rules.max_size
        return min(most, max(1, self.rules.max_tokens // row_tokens)) if row_tokens else most

    def _queue(self, queue: deque[PredictJob], job: PredictJob) -> None:
        """Puts a request behind all others."""
        self._turns += 1
        job.turn = self._turns
        queue.append(job)

    def _next_rows(self, job: PredictJob) -> int:
        return min(job.left, self.rules.max_size)

    def _removed(self, job: PredictJob) -> None:
        job.queued = False
        self._waiting -= 1
        self._tenants[job.tenant] -= 1
        if not self._tenants[job.tenant]:
            del self._tenants[job.tenant]
        self._turn_rows -= self._next_rows(job)
        self.memory.used_bytes -= job.size_bytes
        key = (job.priority, job.key)
        if not self._queues.get(key, True):
            del self._queues[key]
