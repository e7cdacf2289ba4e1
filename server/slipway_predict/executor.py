"""Runs requests through the batcher and the process of the model, one batch at a time."""

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from msgspec import Struct, field

from slipway_process.serving.restarts import EngineCrashed

from .batcher import Batcher, BatchRules, DeadlineMissed, Part, PredictJob, QueueMemory, RowBatch
from .description import ModelDescription
from .process.client import BatchFailed, ModelProcess
from .process.messages import LoadModel, ModelLoaded
from .tensors import Tensor, concatenate, finite

log = logging.getLogger("slipway.predict")


class ModelFailed(Exception):
    """The model raised an error for this request, or returned what it must not."""


class ModelLost(Exception):
    """The request only waited when the process of the model ended for good, or the drain was over."""


class ModelCrashed(Exception):
    """The process of the model ended while it computed a batch with this request."""


class InferRequest(Struct, frozen=True):
    """Inputs, and names of the outputs to compute. Only requests with equal `parameters` share a batch."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    parameters: tuple[tuple[str, Hashable], ...] = ()
    priority: int = 0
    timeout_s: float = math.inf
    row_tokens: int = 0  # estimate for the longest row of texts

    def key(self) -> Hashable:
        shapes = tuple((one.name, one.datatype, one.shape[1:]) for one in self.inputs)
        return shapes, self.outputs, self.parameters


class _Pending(Struct, eq=False):
    """A request without its answer yet, with the outputs of its rows so far, by the first row of each part."""

    request: InferRequest
    done: "asyncio.Future[list[Tensor]]"
    parts: dict[int, list[Tensor]] = field(default_factory=dict)
    rows_done: int = 0
    finite: bool = True  # all numbers of its outputs


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks for metrics. `batch` gets rows, seconds that the oldest request waited, and seconds of the model."""

    batch: Callable[[int, float, float], None] = lambda rows, wait_s, seconds: None
    failed: Callable[[], None] = lambda: None
    non_finite: Callable[[], None] = lambda: None  # for each request with such an output


class Executor:
    def __init__(
        self,
        rules: BatchRules,
        batch_timeout_s: float,
        observer: Observer | None = None,
        memory: QueueMemory | None = None,
    ) -> None:
        """`memory`: of the inputs that wait, which executors of one server share."""
        self.batcher = Batcher(rules, memory or QueueMemory())
        self.description: ModelDescription | None = None
        self._process = ModelProcess(batch_timeout_s)
        self._observer = observer or Observer()
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count()
        self._sleeper: asyncio.Future[None] | None = None  # done when there may be a batch
        self._running: RowBatch | None = None

    @property
    def running(self) -> int:
        return len(self._running.parts) if self._running else 0

    def peak_bytes(self) -> int:
        """The most memory that the process of the model has had, in bytes; 0 without a process."""
        return self._process.peak_bytes()

    # -- requests

    async def infer(self, request: InferRequest, tenant: str = "") -> list[Tensor]:
        """The outputs of a request, which may share its batch with others. `tenant`: whose place in the queue it takes.

        Raises:
            BatchQueueFull, DeadlineMissed: the request was not computed, or not in time.
            ModelFailed, ModelCrashed, ModelLost: the request could not be computed.
        """
        loop = asyncio.get_running_loop()
        description, now_s = self.description, loop.time()
        assert description, "requests are taken when the model is loaded"
        timeout_s = min(request.timeout_s, self.batcher.rules.timeout_s)
        number = next(self._ids)
        rows = request.inputs[0].rows if description.batched else 0
        key = request.key() if description.batched else number
        job = PredictJob(number, key, rows, now_s, now_s + timeout_s, request.priority)
        job.tenant = tenant
        job.row_tokens, job.size_bytes = request.row_tokens, sum(one.size_bytes for one in request.inputs)
        pending = _Pending(request, loop.create_future())
        if description.batched and rows == 0:
            job.key = number  # no rows: it runs alone
        self.batcher.submit(job, now_s)
        self._pending[number] = pending
        self._wake()
        timer = loop.call_at(job.deadline_s, _late, pending, timeout_s) if math.isfinite(timeout_s) else None
        try:
            outputs = await pending.done
            if not pending.finite:
                self._observer.non_finite()
            return outputs
        finally:
            if timer:
                timer.cancel()
            del self._pending[number]
            self.batcher.cancel(job)
            if pending.done.done() and not pending.done.cancelled():
                pending.done.exception()  # marks the error as retrieved, also where the client left in the same moment

    def fail_waiting(self, reason: str) -> None:
        """Fail all requests that wait or run with ModelLost: another server can compute them."""
        for pending in self._pending.values():
            _fail(pending, ModelLost(reason))

    # -- the life of the process

    async def run(
        self, start: LoadModel, on_ready: Callable[[ModelLoaded], None], on_crash: Callable[[], None]
    ) -> None:
        """Start the process, and run batches until it ends. Requests that wait at its end wait for the next `run`.

        Raises:
            EngineCrashed: the process served before it ended.
            ModelRefused, EngineError: the process never served.
        """
        ready = await self._process.start(start)
        try:
            self.description = ready.description
            for rows, seconds in ready.measured:
                self.batcher.fit.observe(rows, seconds)
            on_ready(ready)
            await self._serve()
        except Exception as error:
            on_crash()
            if not isinstance(error, EngineCrashed):
                self._fail_running()
            raise
        finally:
            self._running = None
            with contextlib.suppress(ProcessLookupError):
                await self._process.kill()

    def _fail_running(self) -> None:
        """Fail the requests of the batch at which a bug of this process was met: they may be the cause."""
        if batch := self._running:
            self.batcher.finished(batch, None)
            for part in batch.parts:
                self._fail(part.job, ModelCrashed("The server failed while it computed this request."))

    async def _serve(self) -> None:
        ended = asyncio.create_task(self._process.ended())
        ended.add_done_callback(lambda _: self._wake())
        try:
            while True:
                await self._gather()
                batch = await self._next_batch(ended)
                self._running = batch
                await self._compute(batch)
                self._running = None
        finally:
            ended.cancel()

    async def _next_batch(self, ended: asyncio.Task[None]) -> RowBatch:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            for job in self.batcher.expire(now_s):
                self._fail(job, DeadlineMissed("The request's time was over before the model took it."))
            if batch := self.batcher.take(now_s):
                return batch
            if ended.done():
                raise EngineCrashed(f"{await self._process.kill()} while it was idle.")
            await self._sleep(self.batcher.next_s(now_s))
            await self._gather()

    async def _gather(self) -> None:
        """Let requests that have reached this process join the batch: the loop goes on until it finds no more."""
        found = 0
        while found < (found := self.batcher.waiting) < self.batcher.rules.max_size:  # noqa: ASYNC110 - of the loop
            await asyncio.sleep(0)

    async def _sleep(self, until_s: float | None) -> None:
        """Wait for a request, for the end of the process, or until then: no task, for it happens once a batch."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = None if until_s is None else loop.call_at(until_s, self._wake)
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer:
                timer.cancel()

    def _wake(self) -> None:
        if self._sleeper and not self._sleeper.done():
            self._sleeper.set_result(None)

    # -- one batch

    async def _compute(self, batch: RowBatch) -> None:
        """Compute a batch. One that fails is computed again in halves: a request that fails alone is at fault."""
        live = RowBatch(tuple(part for part in batch.parts if part.job.id in self._pending))
        if not live.parts:
            self.batcher.finished(batch, None)
            return  # all of their clients left
        began_s = asyncio.get_running_loop().time()
        requests = [self._pending[part.job.id].request for part in live.parts]
        inputs = [_rows_of(live, requests, index) for index in range(len(requests[0].inputs))]
        try:
            outputs, seconds = await self._process.compute(inputs, requests[0].outputs)
            _check_rows(live, outputs)
        except (BatchFailed, _WrongRows) as error:
            self.batcher.finished(live, None)
            await self._bisect(live, error)
            return
        except EngineCrashed as error:
            self.batcher.finished(live, None)
            for part in live.parts:
                self._fail(part.job, ModelCrashed(str(error)))
            raise
        self.batcher.finished(live, seconds)
        self._observer.batch(live.rows, began_s - min(part.job.arrived_s for part in live.parts), seconds)
        self._deliver(live, outputs)

    async def _bisect(self, batch: RowBatch, error: Exception) -> None:
        if len(batch.parts) == 1:
            self._observer.failed()
            self._fail(batch.parts[0].job, ModelFailed(str(error)))
            return
        for half in batch.halves():
            await self._compute(half)

    def _deliver(self, batch: RowBatch, outputs: Sequence[Tensor]) -> None:
        at, all_finite = 0, all(map(finite, outputs))
        for part in batch.parts:
            found = list(outputs) if len(batch.parts) == 1 else [one.part(at, at + part.rows) for one in outputs]
            at += part.rows
            if pending := self._pending.get(part.job.id):
                pending.finite = pending.finite and (all_finite or all(map(finite, found)))
                _take(pending, part, found)

    def _fail(self, job: PredictJob, error: Exception) -> None:
        self.batcher.cancel(job)
        if pending := self._pending.get(job.id):
            _fail(pending, error)


class _WrongRows(Exception):
    """The model returned more or fewer rows than it got."""


def _check_rows(batch: RowBatch, outputs: Sequence[Tensor]) -> None:
    rows = batch.rows
    if not batch.parts[0].job.rows:
        return
    for output in outputs:
        if output.rows != rows or not output.array.ndim:
            raise _WrongRows(f"the model returned {output.rows} rows of {output.name!r} for {rows} rows of its inputs")


def _rows_of(batch: RowBatch, requests: Sequence[InferRequest], index: int) -> Tensor:
    """The rows of one input, of all requests of a batch."""
    tensors = [request.inputs[index] for request in requests]
    if not batch.parts[0].job.rows:
        return tensors[0]
    return concatenate([one.part(part.start, part.stop) for one, part in zip(tensors, batch.parts, strict=True)])


def _take(pending: _Pending, part: Part, outputs: list[Tensor]) -> None:
    pending.parts[part.start] = outputs
    pending.rows_done += part.rows
    if pending.rows_done < part.job.rows or pending.done.done():
        return
    if len(pending.parts) == 1:
        pending.done.set_result(outputs)
        return
    parts = [pending.parts[start] for start in sorted(pending.parts)]
    pending.done.set_result([concatenate([one[at] for one in parts]) for at in range(len(outputs))])


def _late(pending: _Pending, timeout_s: float) -> None:
    _fail(pending, DeadlineMissed(f"The request was not done within {timeout_s:g} s."))


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.done.done():
        pending.done.set_exception(error)
