"""One step of the engine: schedule, run, publish. A failing request does not affect the others."""

import logging
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from ..kernels import cuda
from .grammars.masks import Masks
from .messages import Step
from .request import FinishReason, Request, RequestOutput, Sampled, ScheduledSequence
from .scheduling.budget import StepTimes, TokenBudget
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


class EngineBroken(Exception):
    """Nothing can be computed any more: only a new process can continue."""


StepOutcome = tuple[list[ScheduledSequence], list[Sampled], list[RequestOutput]]


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
    ) -> None:
        """`vocab_size`: token ids that the model has are below it; 0: not known. `masks`: without them, no request may
        have a grammar.

        `announce` gets the ids of requests before they run for the first time. Without it, the step reports them.
        """
        limit = scheduler.limits.step_tokens
        self.scheduler = scheduler
        self.announce = announce
        self.masks = masks
        self._runner = runner
        self._budget = budget or TokenBudget(least=1, most=limit, times=StepTimes(0.0, 0.0))
        self._clock = clock
        self._vocab_size = vocab_size
        self._reported = (0, 0, 0)
        self._refused: list[RequestOutput] = []
        self._errors = 0

    def submit(self, request: Request) -> None:
        """The next step ends a request that can never run. The HTTP process checks the limits before."""
        try:
            validate_request(request, self._vocab_size)
            grammar = request.sampling.grammar if request.sampling else None
            if grammar is None:
                self.scheduler.submit(request, self._clock())
            elif self.masks:
                self.masks.hold(request, grammar)
            else:
                raise ValueError("grammars are not available with this model")
        except ValueError as error:
            self._refused.append(RequestOutput(request.id, finish=FinishReason.INVALID, error=f"{error}."))

    def cancel(self, request_id: str) -> None:
        self.scheduler.cancel(request_id)
        if self.masks:
            self.masks.forget(request_id)

    def look(self) -> bool:
        """Takes requests whose grammar was compiled meanwhile. Whether a step would do something."""
        self._admit_prepared()
        return self.scheduler.busy or bool(self._refused)

    def _admit_prepared(self) -> None:
        if self.masks is None:
            return
        prepared, refused = self.masks.take_prepared()
        self._refused += refused
        for request in prepared:
            try:
                self.scheduler.submit(request, self._clock())
            except ValueError as error:
                self._refused.append(RequestOutput(request.id, finish=FinishReason.INVALID, error=f"{error}."))

    def step(self) -> Step:
        """Raises EngineBroken."""
        started_s = self._clock()
        self._admit_prepared()
        events, self._refused = self._refused + self.scheduler.expire(started_s), []
        batch = self.scheduler.schedule(started_s, self._budget.tokens(self.scheduler.decodes, self.scheduler.requests))
        started = self._announce_started(self.scheduler.take_started())
        # This batch may write to these blocks already: they are cleared first.
        if invalid := self.scheduler.block_manager.take_blocks_to_clear():
            self._runner.clear(invalid)
        batch, results, failed = self._run(batch) if batch else ([], [], [])
        events += failed + self.scheduler.complete(batch, results)
        if self.masks:
            self._forget_ended(self.masks, events)
            # Of those that go on, while everything else until the next choice is done.
            self.masks.begin(item for item in batch if item.sequence.slot >= 0)
        tokens, seconds = sum(scheduled.tokens for scheduled in batch), self._clock() - started_s
        if batch and not self._errors:  # else its seconds are those of more than one try
            self._budget.observe(tokens, seconds)
        return self._report(started, events, tokens, seconds)

    def _forget_ended(self, masks: Masks, events: list[RequestOutput]) -> None:
        for event in events:
            if event.finish:
                masks.forget(event.id)

    def _announce_started(self, started: dict[str, int]) -> dict[str, int]:
        if self.announce is None or not started:
            return started
        self.announce(started)
        return {}

    def _run(self, batch: list[ScheduledSequence]) -> StepOutcome:
        """A failed batch is run again in halves. Steps are repeatable: they write to the cache by position.

        Without memory for one request's tokens, half of them are computed, and later steps have less room. Only a
        request that fails alone, while the engine can compute others, ends.
        """
        try:
            return batch, list(self._runner.run(batch)), []
        except Exception as error:
            log.warning("a step failed and is tried in parts", extra={"requests": len(batch), "error": repr(error)})
            _free_tensors(error)
            if is_out_of_memory(error):
                self._budget.shrink(sum(scheduled.tokens for scheduled in batch) // 2)
                if len(batch) == 1 and batch[0].tokens > 1 and self.scheduler.limits.chunked:
                    return self._run([batch[0].first_half])
            if len(batch) == 1:
                return [], [], [self._fail_request(batch[0], error)]
        middle = len(batch) // 2
        first, second = self._run(batch[:middle]), self._run(batch[middle:])
        return first[0] + second[0], first[1] + second[1], first[2] + second[2]

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
        counts = (scheduler.preemptions, scheduler.prefix_queries, scheduler.prefix_hits)
        preempted, queried, hits = (now - before for now, before in zip(counts, self._reported, strict=True))
        self._reported = counts
        errors, self._errors = self._errors, 0
        running, waiting, usage = len(scheduler.running), scheduler.waiting, scheduler.kv_usage
        return Step(started, events, running, waiting, usage, tokens, seconds, preempted, queried, hits, errors)


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def _free_tensors(error: Exception) -> None:
    """Frees the tensors of a failed step, which the frames of its traceback keep alive."""
    traceback.clear_frames(error.__traceback__)
    cuda.release_unused_memory()
