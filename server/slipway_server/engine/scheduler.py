"""Continuous batching: which sequences run in the next step, with how many tokens, and when they end."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from .request import Event, FinishReason, Request, Sequence, Work

Result = int | bytes | None  # a token, an embedding, or None: the numbers were not finite


@dataclass(frozen=True, slots=True)
class Limits:
    slots: int
    step_tokens: int
    kv_tokens: int
    chunked: bool = True  # False for encoders: they see the whole input at once


class Scheduler:
    """Requests wait by priority, then arrival; they join and leave the running batch between steps."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running: dict[str, Sequence] = {}
        self.kv_tokens_reserved = 0
        self._waiting: list[tuple[int, int, Request]] = []
        self._free_slots = list(range(limits.slots))
        self._arrivals = 0
        self._started: list[str] = []
        self._released: list[int] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self.running or self._waiting)

    def can_ever_run(self, request: Request) -> bool:
        return request.kv_tokens <= self.limits.kv_tokens

    def submit(self, request: Request) -> None:
        if not self.can_ever_run(request):
            raise ValueError(f"request {request.id} needs {request.kv_tokens} of {self.limits.kv_tokens} KV tokens")
        self._arrivals += 1
        heapq.heappush(self._waiting, (request.priority, self._arrivals, request))

    def cancel(self, request_id: str) -> bool:
        """Ends a request wherever it is; False when it has ended already, which is no mistake of the caller's."""
        if request_id in self.running:
            self._leave(self.running[request_id])
            return True
        kept = [entry for entry in self._waiting if entry[2].id != request_id]
        found = len(kept) < len(self._waiting)
        heapq.heapify(kept)
        self._waiting = kept
        return found

    def schedule(self) -> list[Work]:
        """Decodes first, one token each; then prefills, oldest first, share what is left of the step's tokens."""
        self._admit()
        decodes = [s for s in self.running.values() if s.decoding]
        prefills = [s for s in self.running.values() if not s.decoding]
        batch = [Work(s, s.computed, s.length, samples=True) for s in decodes]
        budget = self.limits.step_tokens - len(batch)
        for sequence in prefills:
            tokens = self._prefill_tokens(sequence, budget, alone=not batch)
            if tokens == 0:
                break
            end = sequence.computed + tokens
            batch.append(Work(sequence, sequence.computed, end, samples=end == sequence.length))
            budget -= tokens
        return batch

    def complete(self, batch: Iterable[Work], results: Iterable[Result]) -> list[Event]:
        """Takes in what the step computed for each `work.samples`, in order."""
        outcomes = iter(results)
        events = []
        for work in batch:
            work.sequence.computed = work.end
            if work.samples:
                event = self._advance(work.sequence, next(outcomes))
                events.append(event)
                if event.finish:
                    self._leave(work.sequence)
        return events

    def fail(self, sequence: Sequence, reason: str) -> Event:
        self._leave(sequence)
        return Event(sequence.request.id, finish=FinishReason.ERROR, error=reason)

    def take_started(self) -> list[str]:
        """Requests that got a slot since the last call."""
        started, self._started = self._started, []
        return started

    def take_released(self) -> list[int]:
        """Slots that were given back since the last call: their cache can go."""
        released, self._released = self._released, []
        return released

    def _admit(self) -> None:
        # The head of the queue is never overtaken: a large request would starve behind a stream of small ones.
        while self._waiting and self._free_slots:
            request = self._waiting[0][2]
            if self.kv_tokens_reserved + request.kv_tokens > self.limits.kv_tokens:
                return
            heapq.heappop(self._waiting)
            self.kv_tokens_reserved += request.kv_tokens
            self.running[request.id] = Sequence(request, self._free_slots.pop())
            self._started.append(request.id)

    def _prefill_tokens(self, sequence: Sequence, budget: int, *, alone: bool) -> int:
        remaining = sequence.length - sequence.computed
        if self.limits.chunked:
            return max(0, min(remaining, budget))
        return remaining if remaining <= budget or alone else 0

    def _advance(self, sequence: Sequence, result: Result) -> Event:
        request_id, sampling = sequence.request.id, sequence.request.sampling
        if result is None:
            return Event(request_id, finish=FinishReason.ERROR, error="The model computed numbers that are not finite.")
        if isinstance(result, bytes) or sampling is None:
            return Event(request_id, embedding=bytes(result), finish=FinishReason.STOP)
        sequence.output.append(result)
        return Event(request_id, token=result, finish=sampling.finish_after(result, len(sequence.output)))

    def _leave(self, sequence: Sequence) -> None:
        del self.running[sequence.request.id]
        self.kv_tokens_reserved -= sequence.request.kv_tokens
        self._free_slots.append(sequence.slot)
        self._released.append(sequence.slot)
