"""One step of the engine: schedule, run, publish. A failing request does not affect the others.

With `async_scheduling` the device computes a step while the host schedules the next one and publishes the one before.
"""

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..kernels import cuda
from .adapters.store import AdapterStore
from .grammars.masks import Masks
from .messages import Step
from .request import FinishReason, Request, RequestOutput, Sampled, ScheduledSequence
from .scheduling.budget import StepTimes, TokenBudget
from .scheduling.model_drafting import Drafted, ModelDrafting
from .scheduling.scheduler import Scheduler
from .validation import validate_request

log = logging.getLogger(__name__)

OUT_OF_MEMORY = "The server ran out of memory on this request."
FAILED = "The engine failed on this request."
# Messages of torch's RuntimeError when a CPU has no memory left. For GPUs it raises OutOfMemoryError.
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory")


class Runner(Protocol):
    """What computes a batch: the decoder of `runner.py` or the encoder of `execution/encoder.py`."""

    def run(self, batch: list[ScheduledSequence]) -> Iterable[Sampled]: ...

    def clear(self, blocks: list[int]) -> None: ...

    def probe(self) -> None:
        """Computes one token without a request. It raises when the engine is broken: then no request is at fault."""
        ...


class LaunchedStep(Protocol):
    """A step that the device computes while the host goes on; `results` waits for it."""

    def results(self) -> list[Sampled]: ...


class LaunchingRunner(Runner, Protocol):
    """A runner that can begin a step before the tokens of the step before are known: the decoder of `runner.py`."""

    def launch(self, batch: list[ScheduledSequence], after: Any = None) -> LaunchedStep: ...


class Drafter(Protocol):
    """What computes drafts that are PENDING: the draft model of `execution/draft_model.py`."""

    def draft(self, batch: list[ScheduledSequence]) -> Drafted: ...


class EngineBroken(Exception):
    """Nothing can be computed any more: only a new process can continue."""


# Returns requests that wait no longer, and final outputs of those that cannot run.
Source = Callable[[], tuple[list[Request], list[RequestOutput]]]
StepOutcome = tuple[list[ScheduledSequence], list[Sampled], list[RequestOutput]]
# Requests that run for the first time, what was computed, what clients get.
_StepParts = tuple[dict[str, int], list[ScheduledSequence], list[RequestOutput]]


@dataclass(frozen=True, slots=True)
class _InFlight:
    batch: list[ScheduledSequence]
    launched: LaunchedStep


class EngineCore:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        budget: TokenBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        vocab_size: int = 0,
        announce: Callable[[dict[str, int]], None] | None = None,
        masks: Masks | None = None,
        launches: LaunchingRunner | None = None,
        adapters: AdapterStore | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`vocab_size`: the model's token IDs are below it; 0: not known. `masks`: None refuses all grammars.

        `adapters`: None refuses all requests with an adapter. `drafter`: for a scheduler with ModelDrafting.
        `launches`: the same runner for asynchronous scheduling, where a step begins before the one before has ended.
        `announce` gets the IDs of requests, with their cached prompt tokens, before the requests run for the first
        time. Without it, the step reports them.
        """
        limit = scheduler.limits.step_tokens
        self.scheduler = scheduler
        self.announce = announce
        self.masks, self.adapters = masks, adapters
        self._runner = runner
        self._budget = budget or TokenBudget(least=1, most=limit, times=StepTimes(0.0, 0.0))
        self._clock = clock
        self._vocab_size = vocab_size
        self._reported = (0,) * 8
        self._refused: list[RequestOutput] = []
        self._errors = self._out_of_memory = 0
        self._launches, self._drafter = launches, drafter
        self._drafting_s = 0.0  # of the step, in which drafts were computed
        self._in_flight: _InFlight | None = None

    def submit(self, request: Request) -> None:
        """Queues a request once its adapter and grammar are there. The next step ends one that can never run."""
        try:
            validate_request(request, self._vocab_size)
            if not request.adapter:
                self._submit_adapted(request)
            elif self.adapters:
                self.adapters.hold(request)
            else:
                raise ValueError("adapters are not available here")
        except ValueError as error:
            self._refuse(request, error)

    def _submit_adapted(self, request: Request) -> None:
        """Queues a request whose adapter is loaded, or that has none. Raises ValueError if it can never run."""
        grammar = request.sampling.grammar if request.sampling else None
        if grammar is None:
            self.scheduler.submit(request, self._clock())
        elif self.masks:
            self.masks.hold(request, grammar)
        else:
            raise ValueError("grammars are not available with this model")

    def _refuse(self, request: Request, error: ValueError) -> None:
        self._refused.append(RequestOutput(request.id, finish=FinishReason.INVALID, error=f"{error}."))

    def cancel(self, request_id: str) -> None:
        self.scheduler.cancel(request_id)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        """Drops what is kept for a request that has ended."""
        if self.masks:
            self.masks.forget(request_id)
        if self.adapters:
            self.adapters.forget(request_id)

    def look(self) -> bool:
        """Submits requests whose adapter and grammar are there. Returns whether a step has something to do."""
        self._admit_prepared()
        return self.scheduler.busy or bool(self._refused)

    def _admit_prepared(self) -> None:
        for source, submit in self._preparing():
            prepared, refused = source()
            self._refused += refused
            for request in prepared:
                try:
                    submit(request)
                except ValueError as error:
                    self._refuse(request, error)

    def _preparing(self) -> Iterator[tuple[Source, Callable[[Request], None]]]:
        """What requests wait for before they are queued, in this order, and what follows."""
        if self.adapters:
            yield self.adapters.take_ready, self._submit_adapted
        if self.masks:
            yield self.masks.take_prepared, lambda request: self.scheduler.submit(request, self._clock())

    def step(self) -> Step:
        """Runs one step and returns its report. Raises EngineBroken when the engine cannot compute any more."""
        started_s = self._clock()
        self._admit_prepared()
        events, self._refused = self._refused + self.scheduler.expire(started_s), []
        started, batch, outputs = self._step_ahead(started_s) if self._launches else self._step_alone(started_s)
        events += outputs
        for event in events:
            if event.finish:
                self._forget(event.id)
        if self.masks:
            # For sequences that go on: the masks are computed while the engine does the rest until the next draw.
            self.masks.begin(item for item in batch if item.sequence.slot >= 0)
        tokens, seconds = sum(scheduled.tokens for scheduled in batch), self._clock() - started_s
        if batch and not self._errors:  # after errors, the seconds include repeated tries
            own_s = seconds - self._drafting_s
            self._budget.observe(tokens, sum(scheduled.pairs for scheduled in batch), own_s)
            if self.scheduler.drafting:
                self.scheduler.drafting.observe_step(batch, own_s)
        return self._report(started, events, tokens, seconds)

    def _step_alone(self, now_s: float) -> _StepParts:
        batch, started = self._schedule(now_s)
        return started, *self._complete(self._with_drafts(batch))

    def _with_drafts(self, batch: list[ScheduledSequence]) -> list[ScheduledSequence]:
        """The batch with the drafts that are PENDING in it. Those that cannot be computed are left out."""
        self._drafting_s = 0.0
        drafting = self.scheduler.drafting
        if not isinstance(drafting, ModelDrafting) or not self._drafter or not any(item.drafts for item in batch):
            return batch
        began_s = self._clock()
        try:
            drafted = self._drafter.draft(batch)
        except Exception as error:
            log.warning("drafts cannot be computed", extra={"requests": len(batch), "error": repr(error)})
            _free_tensors(error)
            for scheduled in batch:
                if scheduled.drafts:
                    drafting.exclude(scheduled.sequence.request.id)
            drafted = Drafted({}, [], [])
        for request_id in drafted.spoiled:
            drafting.exclude(request_id)
        drafting.observe_passes(drafted.passes)
        self._drafting_s = self._clock() - began_s
        whole = [item.with_drafts(drafted.tokens.get(item.sequence.request.id, ())) for item in batch]
        return sorted(whole, key=lambda item: item.tokens > 1)  # kernels want single tokens at the front

    def _step_ahead(self, now_s: float) -> _StepParts:
        """Launches the step after the one in flight, then waits for the one in flight and applies its results.

        A batch with a request that needs more than a drawn token is computed with no other step in flight.
        """
        here, self._in_flight = self._in_flight, None
        if here and not any(self.scheduler.has(scheduled.sequence) for scheduled in here.batch):
            here = None  # all of its sequences have ended
        started: dict[str, int] = {}
        if here is None:
            batch, started = self._schedule(now_s)
            here = self._launch(batch)
            if here is None:
                return started, *self._complete(batch)
        self.scheduler.expect(here.batch)
        following, more = self._schedule(now_s)
        started |= more
        after = self._launch(following, here.launched)
        try:
            results = here.launched.results()
        except Exception as error:
            log.warning("a step failed and is tried alone", extra={"requests": len(here.batch), "error": repr(error)})
            _free_tensors(error)
            return started, *self._complete(self.scheduler.retract(here.batch))
        self._in_flight = after
        return started, here.batch, self.scheduler.settle(here.batch, results)

    def _schedule(self, now_s: float) -> tuple[list[ScheduledSequence], dict[str, int]]:
        """The next batch, and the requests that run for the first time; {} if `announce` has reported them."""
        scheduler = self.scheduler
        batch = scheduler.schedule(now_s, self._budget.tokens(scheduler.load))
        started = self._announce_started(scheduler.take_started())
        # This batch may write to these blocks already: they are cleared first.
        if invalid := scheduler.block_manager.take_blocks_to_clear():
            self._runner.clear(invalid)
        return batch, started

    def _launch(self, batch: list[ScheduledSequence], after: LaunchedStep | None = None) -> _InFlight | None:
        """Starts the batch on the device; None when it is empty or must be computed by `_complete`."""
        if not self._launches or not batch or not all(scheduled.draws_only for scheduled in batch):
            return None
        try:
            return _InFlight(batch, self._launches.launch(batch, after))
        except Exception as error:
            log.warning("a step is not begun ahead", extra={"requests": len(batch), "error": repr(error)})
            _free_tensors(error)
            return None

    def _complete(self, batch: list[ScheduledSequence]) -> tuple[list[ScheduledSequence], list[RequestOutput]]:
        batch, results, failed = self._run(batch) if batch else ([], [], [])
        return batch, failed + self.scheduler.complete(batch, results)

    def _announce_started(self, started: dict[str, int]) -> dict[str, int]:
        if self.announce is None or not started:
            return started
        self.announce(started)
        return {}

    def _run(self, batch: list[ScheduledSequence]) -> StepOutcome:
        """Runs a batch, and its halves if it fails. Steps are repeatable: they write to the KV cache by position.

        When memory is too small for one request's tokens, half of them are computed, and later steps get fewer tokens.
        A request ends only if it fails alone while the engine can still compute a probe.
        """
        try:
            return batch, list(self._runner.run(batch)), []
        except Exception as error:
            log.warning("a step failed and is tried in parts", extra={"requests": len(batch), "error": repr(error)})
            _free_tensors(error)
            if is_out_of_memory(error):
                self._out_of_memory += 1
                self._budget.shrink(sum(scheduled.tokens for scheduled in batch) // 2)
                if len(batch) == 1 and batch[0].tokens > 1 and self.scheduler.limits.chunked:
                    return self._run([batch[0].first_half])
            if len(batch) == 1 and batch[0].drafts:
                return self._run_undrafted(batch[0])
            if len(batch) == 1:
                return [], [], [self._fail_request(batch[0], error)]
        middle = len(batch) // 2
        first, second = self._run(batch[:middle]), self._run(batch[middle:])
        return first[0] + second[0], first[1] + second[1], first[2] + second[2]

    def _run_undrafted(self, scheduled: ScheduledSequence) -> StepOutcome:
        """Runs a sequence without its drafts, and drafts nothing more for it: it must fail by its own tokens only."""
        if self.scheduler.drafting:
            self.scheduler.drafting.exclude(scheduled.sequence.request.id)
        return self._run([scheduled.first_half])

    def _fail_request(self, scheduled: ScheduledSequence, error: Exception) -> RequestOutput:
        """Ends the request. Raises EngineBroken when the engine cannot compute anything else either."""
        try:
            self._runner.probe()
        except Exception as broken:
            raise EngineBroken(f"the engine computes nothing any more: {broken!r}") from error
        self._errors += 1
        sequence = scheduled.sequence
        log.error("the engine failed on a request, which ends", extra={"id": sequence.request.id}, exc_info=error)
        return self.scheduler.fail(sequence, OUT_OF_MEMORY if is_out_of_memory(error) else FAILED)

    def _report(self, started: dict[str, int], events: list[RequestOutput], tokens: int, seconds: float) -> Step:
        scheduler = self.scheduler
        prefix = (scheduler.prefix_queries, scheduler.prefix_hits, scheduler.block_manager.evictions)
        drafting = scheduler.drafting
        drafts = (drafting.drafts, drafting.draft_tokens, drafting.accepted_tokens) if drafting else (0, 0, 0)
        counts = (scheduler.preemptions, *prefix, self._out_of_memory, *drafts)
        preempted, queried, hits, evicted, short, *drafted = (
            now - before for now, before in zip(counts, self._reported, strict=True)
        )
        self._reported = counts
        errors, self._errors = self._errors, 0
        state = (len(scheduler.running), scheduler.waiting, scheduler.kv_usage, tokens, seconds)
        return Step(started, events, *state, preempted, queried, hits, errors, evicted, short, *drafted)


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def _free_tensors(error: Exception) -> None:
    """Frees the tensors of a failed step, which the frames of its traceback keep alive."""
    traceback.clear_frames(error.__traceback__)
    cuda.release_unused_memory()
