"""The step loop's body: schedule, run, publish; one request's trouble stays its own."""

import logging
from collections.abc import Iterable
from typing import Protocol

import torch

from .messages import Step
from .request import Event, Request, Work
from .scheduler import Result, Scheduler

log = logging.getLogger(__name__)


class Runner(Protocol):
    """What computes a batch: the decoder of `runner.py` or the encoder of `models/encoder.py`."""

    def run(self, batch: list[Work]) -> Iterable[Result]: ...

    def release(self, slot: int) -> None: ...


class Engine:
    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner

    def submit(self, request: Request) -> None:
        self.scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        self.scheduler.cancel(request_id)
        self._release()

    def step(self) -> Step:
        batch = self.scheduler.schedule()
        started = self.scheduler.take_started()
        events: list[Event] = []
        results: list[Result] | None = None
        while batch and results is None:
            try:
                results = list(self._runner.run(batch))
            except torch.OutOfMemoryError:
                batch, event = self._without_largest(batch)
                events.append(event)
        events += self.scheduler.complete(batch, results or [])
        self._release()
        return self._report(started, events, tokens=sum(work.end - work.start for work in batch))

    def _report(self, started: list[str], events: list[Event], tokens: int) -> Step:
        scheduler = self.scheduler
        usage = scheduler.kv_tokens_reserved / scheduler.limits.kv_tokens
        return Step(started, events, len(scheduler.running), scheduler.waiting, usage, tokens)

    def _without_largest(self, batch: list[Work]) -> tuple[list[Work], Event]:
        """A step is repeatable (its writes to the cache are by position), so the others lose nothing."""
        largest = max(batch, key=lambda work: (work.end - work.start, work.end))
        log.error("out of memory: the largest request of the step is ended", extra={"id": largest.sequence.request.id})
        event = self.scheduler.fail(largest.sequence, "The server ran out of memory on this request.")
        self._release()
        torch.cuda.empty_cache()
        return [work for work in batch if work is not largest], event

    def _release(self) -> None:
        for slot in self.scheduler.take_released():
            self._runner.release(slot)
