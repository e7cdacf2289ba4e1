"""The step loop's body: schedule, run, publish; one request's trouble stays its own."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from .budget import Budget
from .messages import Step
from .request import Event, FinishReason, Request, Sampled, Work
from .scheduler import Scheduler

log = logging.getLogger(__name__)

OUT_OF_MEMORY = "The server ran out of memory on this request."


class Runner(Protocol):
    """What computes a batch: the decoder of `runner.py` or the encoder of `models/encoder.py`."""

    def run(self, batch: list[Work]) -> Iterable[Sampled]: ...

    def clear(self, blocks: list[int]) -> None: ...


class Engine:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limit = scheduler.limits.step_tokens
        self.scheduler = scheduler
        self._runner = runner
        self._budget = budget or Budget(least=limit, most=limit, target_s=0.0)
        self._clock = clock
        self._told = (0, 0, 0)
        self._refused: list[Event] = []

    def submit(self, request: Request) -> None:
        """One that can never run is ended by the next step; the HTTP process knows the limits and asks for none."""
        try:
            self.scheduler.submit(request, self._clock())
        except ValueError as error:
            self._refused.append(Event(request.id, finish=FinishReason.ERROR, error=f"{error}."))

    def cancel(self, request_id: str) -> None:
        self.scheduler.cancel(request_id)

    def step(self) -> Step:
        began = self._clock()
        events, self._refused = self._refused + self.scheduler.expire(began), []
        batch = self.scheduler.schedule(began, self._budget.tokens())
        started = self.scheduler.take_started()
        batch, results, failed = self._run(batch)
        events += failed + self.scheduler.complete(batch, results)
        if spoiled := self.scheduler.take_spoiled():
            self._runner.clear(spoiled)
        tokens, seconds = sum(work.tokens for work in batch), self._clock() - began
        if batch:
            self._budget.observe(tokens, seconds)
        return self._report(started, events, tokens, seconds)

    def _run(self, batch: list[Work]) -> tuple[list[Work], list[Sampled], list[Event]]:
        """A step is repeatable, its writes to the cache are by position: running out of memory costs one request."""
        failed: list[Event] = []
        while batch:
            try:
                return batch, list(self._runner.run(batch)), failed
            except torch.OutOfMemoryError:
                largest = max(batch, key=lambda work: (work.tokens, work.end))
                log.error(
                    "out of memory: the largest request of the step ends", extra={"id": largest.sequence.request.id}
                )
                failed.append(self.scheduler.fail(largest.sequence, OUT_OF_MEMORY))
                batch = [work for work in batch if work is not largest]
                torch.cuda.empty_cache()
        return [], [], failed

    def _report(self, started: list[str], events: list[Event], tokens: int, seconds: float) -> Step:
        scheduler = self.scheduler
        counts = (scheduler.preemptions, scheduler.prefix_queries, scheduler.prefix_hits)
        news = [now - before for now, before in zip(counts, self._told, strict=True)]
        self._told = counts
        running, waiting, usage = len(scheduler.running), scheduler.waiting, scheduler.kv_usage
        return Step(started, events, running, waiting, usage, tokens, seconds, *news)
