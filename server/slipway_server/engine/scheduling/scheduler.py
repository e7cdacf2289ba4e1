"""Continuous batching: which sequences run in the next step, with how many tokens, and when they finish.

Pure: no tensors, no clock, no I/O. Each step decodes first and gives the rest of its tokens to prefills.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from ..request import PENDING, FinishReason, Request, RequestOutput, Sampled, ScheduledSequence, Sequence
from .background import BackgroundTurns, num_decodes
from .block_hash import BlockHasher
from .block_manager import BlockManager
from .budget import StepLoad
from .config import SchedulerConfig
from .drafting import Drafting
from .fairness import Fairness
from .outputs import advance

AGEING_S = 30.0  # waiting this long raises a request by one priority class: the lowest class never starves
OLDEST_SHARE = 0.25  # of a step's prefill tokens, for the prefill that began first
# Prompt tokens of a step whose log probabilities are computed: each one needs its own row of logits.
MAX_PROMPT_LOGPROBS = 256
TOO_LATE = "The request's time was over."


class Scheduler:
    """Requests wait by class, tenant and arrival; they join and leave the running batch between steps."""

    def __init__(
        self, limits: SchedulerConfig, *, hash_key: bytes, scope: str = "", drafting: Drafting | None = None
    ) -> None:
        """`scope`: revision and dtype of the model. Cached blocks of another scope are never reused.

        `hash_key`: 16 to 64 random bytes that no client can guess. `drafting`: None: each step samples one token of a
        sequence.
        """
        self.limits = limits
        self.running: dict[str, Sequence] = {}
        self.block_manager = BlockManager(
            limits.kv_tokens // limits.block_tokens,
            BlockHasher(limits.block_tokens, scope=scope, key=hash_key),
            block_tokens=limits.block_tokens,
            prefix_cache=limits.prefix_cache,
        )
        self.fairness = Fairness()
        self.drafting = drafting
        self._background = BackgroundTurns()
        self.preemptions = 0
        self.prefix_queries = self.prefix_hits = 0  # tokens
        self._waiting: dict[str, Sequence] = {}
        self._since: dict[str, float] = {}
        self._free_slots = list(range(limits.slots - 1, -1, -1))
        self._arrivals = 0
        self._started: dict[str, int] = {}
        self._in_flight = False  # between `expect` and `settle` or `retract`

    # --- requests -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def load(self) -> StepLoad:
        """What the next step is made of, as far as it is known before requests are admitted."""
        running = self.running.values()
        prefilled = [item.num_computed_tokens for item in running if not item.decoding]
        return StepLoad(
            decodes=num_decodes(running),
            requests=len(self.running) + len(self._waiting),
            decode_context=sum(item.length for item in running if item.decoding),
            prefill_context=max(prefilled, default=0),
        )

    @property
    def busy(self) -> bool:
        return bool(self.running or self._waiting)

    @property
    def kv_usage(self) -> float:
        return self.block_manager.usage

    def can_ever_run(self, request: Request) -> bool:
        return self.block_manager.blocks_for(request.kv_tokens) <= self.block_manager.num_blocks

    def submit(self, request: Request, now_s: float = 0.0) -> None:
        """Queues a request. Raises ValueError if it could never run; the HTTP process has refused those before."""
        if not self.can_ever_run(request):
            raise ValueError(f"request {request.id} needs {request.kv_tokens} of {self.limits.kv_tokens} KV tokens")
        self._arrivals += 1
        deadline_s = now_s + request.timeout_s if request.timeout_s is not None else float("inf")
        self._waiting[request.id] = Sequence(request, self._arrivals, deadline_s)
        self._since[request.id] = now_s
        self.fairness.enter(request.tenant)

    def cancel(self, request_id: str) -> bool:
        """Ends a waiting or running request. False when it has already finished, which is not an error."""
        sequence = self.running.get(request_id) or self._waiting.get(request_id)
        if sequence:
            self._finish(sequence)
        return sequence is not None

    # --- a step -------------------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[RequestOutput]:
        """Ends requests whose deadline has passed, before a step computes more for them."""
        late = [item for item in self._all_sequences() if item.deadline_s <= now_s]
        for sequence in late:
            self._finish(sequence)
        return [RequestOutput(item.request.id, finish=FinishReason.DEADLINE, error=TOO_LATE) for item in late]

    def schedule(self, now_s: float = 0.0, step_tokens: int | None = None) -> list[ScheduledSequence]:
        """The batch of the next step, of at most `step_tokens` tokens. All blocks that it writes to are allocated."""
        budget = self.limits.step_tokens if step_tokens is None else step_tokens
        self._admit(now_s)
        # Where the foreground can compute nothing, the background does.
        members = self._background.members(self.running.values())
        batch = self._batch(members, budget) or self._batch(self.running.values(), budget)
        while not batch and len(self.running) > 1 and not self._in_flight:
            # Prefills hold all blocks together, and none of them has enough: one is preempted.
            self._preempt_victim()
            batch = self._prefills(self.running.values(), budget, alone=True)
        return batch

    def _batch(self, members: Iterable[Sequence], budget: int) -> list[ScheduledSequence]:
        batch = self._decodes(members, budget)
        return batch + self._prefills(members, budget - sum(work.tokens for work in batch), alone=not batch)

    def complete(self, batch: Iterable[ScheduledSequence], results: Iterable[Sampled]) -> list[RequestOutput]:
        """Applies a step's results: one for each sequence that samples or has prompt log probabilities, in order."""
        remaining = iter(results)
        events = []
        for scheduled in batch:
            result = next(remaining) if scheduled.samples or scheduled.prompt_logprob_positions else None
            if scheduled.drafts and result:
                events += self._complete_drafted(scheduled, result)
                continue
            # A late result has chosen no token: the next step computes the last token again, for its logits.
            late = result is not None and result.late
            scheduled.sequence.num_computed_tokens = scheduled.end - late
            self.block_manager.cache_full_blocks(scheduled.sequence)
            if result and not (late and not result.prompt_logprobs):
                events.append(self._advance(scheduled, result))
            if self.drafting:  # its drafts may have been left out when the step was tried again
                self.block_manager.trim(scheduled.sequence, scheduled.sequence.length)
        return events

    def _complete_drafted(self, scheduled: ScheduledSequence, result: Sampled) -> list[RequestOutput]:
        """Adds the tokens that were sampled, up to the first that ends the response, and frees what drafts took."""
        sequence, drafted, accepted = scheduled.sequence, len(scheduled.drafts), len(result.following)
        assert self.drafting is not None, "a step without drafting has drafts"
        if result.spoiled:
            self._start_over_undrafted(sequence)
            return []
        events: list[RequestOutput] = []
        for row in (result, *result.following):
            kept = int(len(events) < accepted)
            # Wherever the response ends, at a stop string too, those of its events sum up to what was drafted in vain.
            rejected = -kept if events else drafted - kept
            events.append(replace(advance(scheduled, row), accepted=kept, rejected=rejected))
            if events[-1].finish:
                break
        # Keys and values of all tokens but the last one are there. Those of rejected drafts are written over.
        sequence.num_computed_tokens = sequence.length - 1
        self._charge(sequence, scheduled.start + 1, sequence.num_computed_tokens)
        self.drafting.observe_verified(sequence.request.id, drafted, accepted)
        self.block_manager.cache_full_blocks(sequence)
        self.block_manager.trim(sequence, sequence.length)
        if events[-1].finish:
            self._finish(sequence)
        return events

    def _start_over_undrafted(self, sequence: Sequence) -> None:
        """Computes the sequence again, without drafts, as numbers in its blocks may not be finite.

        If they are not finite without drafts either, it ends then.
        """
        assert self.drafting is not None, "a step without drafting has drafts"
        self.drafting.exclude(sequence.request.id)
        self.block_manager.invalidate(sequence, from_token=sequence.num_computed_tokens)
        self._preempt(sequence)

    # --- a step whose results come later ------------------------------------------------------------------------------

    def expect(self, batch: Iterable[ScheduledSequence]) -> None:
        """Counts the tokens of a step as computed and those it samples as PENDING: the next step can be scheduled.

        Call `settle` or `retract` with the same batch before the next `expect`.
        """
        self._in_flight = True
        for scheduled in batch:
            scheduled.sequence.num_computed_tokens = scheduled.end
            if scheduled.samples:
                scheduled.sequence.output.append(PENDING)

    def settle(self, batch: Iterable[ScheduledSequence], results: Iterable[Sampled]) -> list[RequestOutput]:
        """Applies the results of the expected step; those of sequences that ended meanwhile are dropped."""
        self._in_flight = False
        remaining = iter(results)
        events = []
        for scheduled in batch:
            result = next(remaining) if scheduled.samples else None
            if not self.has(scheduled.sequence):
                continue
            self.block_manager.cache_full_blocks(scheduled.sequence)
            if result:
                scheduled.sequence.output.pop()  # PENDING
                events.append(self._advance(scheduled, result))
        return events

    def retract(self, batch: Iterable[ScheduledSequence]) -> list[ScheduledSequence]:
        """Undoes `expect` for a step that failed. Returns the sequences that can run again: those that have blocks."""
        self._in_flight = False
        again = []
        for scheduled in batch:
            sequence = scheduled.sequence
            if not self.has(sequence):
                continue
            if scheduled.samples:
                sequence.output.pop()
            # A sequence that was preempted meanwhile has no computed tokens.
            if sequence.slot >= 0 and sequence.num_computed_tokens == scheduled.end:
                sequence.num_computed_tokens = scheduled.start
                again.append(scheduled)
        return again

    def has(self, sequence: Sequence) -> bool:
        """Whether the sequence runs or waits."""
        name = sequence.request.id
        return self.running.get(name) is sequence or self._waiting.get(name) is sequence

    def _advance(self, scheduled: ScheduledSequence, result: Sampled) -> RequestOutput:
        event = advance(scheduled, result)
        if event.finish is FinishReason.NON_FINITE and scheduled.sequence.request.sampling:
            # Its blocks may hold the non-finite numbers, which must not reach other sequences.
            self.block_manager.invalidate(scheduled.sequence)
        if event.finish:
            self._finish(scheduled.sequence)
        return event

    def fail(self, sequence: Sequence, reason: str) -> RequestOutput:
        """Ends a sequence whose step failed. The blocks that this step wrote to are invalid."""
        self.block_manager.invalidate(sequence, from_token=sequence.num_computed_tokens)
        self._finish(sequence)
        return RequestOutput(sequence.request.id, finish=FinishReason.ERROR, error=reason)

    def take_started(self) -> dict[str, int]:
        """The requests that were first admitted since the last call, with the number of their cached prompt tokens."""
        started, self._started = self._started, {}
        return started

    def check(self) -> None:
        """Raises AssertionError when the bookkeeping is inconsistent."""
        self.block_manager.check(self._all_sequences())
        slots = [item.slot for item in self.running.values()] + self._free_slots
        assert sorted(slots) == list(range(self.limits.slots)), "a slot is lost or used twice"

    # --- admission ----------------------------------------------------------------------------------------------------

    def _admit(self, now_s: float) -> None:
        """Starts waiting requests in order. When the next one does not fit, smaller ones do not overtake it."""
        while self._waiting:
            if not self._start(self._next(now_s), now_s):
                return

    def _next(self, now_s: float) -> Sequence:
        # A long wait raises a request to the most urgent one that waits, and no higher: within a class tenants are
        # served by their weights, however many requests of one of them have waited for long.
        highest = min(item.request.priority for item in self._waiting.values())
        peers = [item for item in self._waiting.values() if self._class_of(item, now_s) <= highest]
        tenant = self.fairness.least({item.request.tenant for item in peers})
        return min((item for item in peers if item.request.tenant == tenant), key=lambda item: item.arrival)

    def _class_of(self, sequence: Sequence, now_s: float) -> int:
        waited_s = now_s - self._since[sequence.request.id] if sequence.request.id in self._since else 0.0
        return sequence.request.priority - int(waited_s / AGEING_S)

    def _start(self, sequence: Sequence, now_s: float) -> bool:
        """Allocates blocks and a slot, with preemption if needed; False when there is no slot or no room for it."""
        for_slot = [] if self._free_slots else self._victim_for_slot(sequence)
        if for_slot is None:
            return False
        prefix = self.block_manager.match_prefix(sequence)
        victims = self._victims_for(sequence, prefix, for_slot)
        if victims is None:
            return False
        # Allocated before the victims free their blocks, so that its prefix is not evicted.
        self.block_manager.allocate(sequence, prefix)
        for victim in victims:
            self._preempt(victim)
        sequence.num_charged_tokens = max(sequence.num_charged_tokens, sequence.num_computed_tokens)
        sequence.slot, sequence.rank = self._free_slots.pop(), self._class_of(sequence, now_s)
        del self._waiting[sequence.request.id]
        self.running[sequence.request.id] = sequence
        self._count_start(sequence)
        return True

    def _count_start(self, sequence: Sequence) -> None:
        if sequence.started:
            return
        sequence.started = True
        request = sequence.request
        # A resumed answer may find blocks that it cached itself: they do not count as cached prompt.
        cached = 0 if request.resumed else min(sequence.num_computed_tokens, len(request.prompt))
        self._started[request.id] = cached
        if sequence.request.sampling:
            self.prefix_queries += sequence.request.known_tokens
            self.prefix_hits += sequence.num_computed_tokens

    def _fits(self, sequence: Sequence, prefix: list[int], *, preempted: list[Sequence]) -> bool:
        """Whether there are blocks for its tokens and those of all running sequences but the preempted ones."""
        running = (item for item in self.running.values() if item.request.sampling and item not in preempted)
        reserved = sum(self.block_manager.num_missing_blocks(item, item.length) for item in running)
        return self.block_manager.can_allocate(sequence, prefix, reserved=reserved, preempted=preempted)

    def _victim_for_slot(self, newcomer: Sequence) -> list[Sequence] | None:
        """The sequence to preempt for its slot; None if none has a lower class. A long wait counts for nothing here."""
        victim = self._victim()
        return None if victim is None or victim.rank <= newcomer.request.priority else [victim]

    def _victims_for(self, newcomer: Sequence, prefix: list[int], for_slot: list[Sequence]) -> list[Sequence] | None:
        """The fewest running sequences of a lower class to preempt so that it fits; None when all are too few.

        `for_slot`: the sequence that loses its slot, if any; it is always among them.
        """
        if self._fits(newcomer, prefix, preempted=for_slot):
            return for_slot
        lower = [one for one in self.running.values() if one.rank > newcomer.request.priority and one not in for_slot]
        if not lower or not self._fits(newcomer, prefix, preempted=for_slot + lower):
            return None
        lower.sort(key=self._loss, reverse=True)
        # The more of them are preempted, the more blocks are free: a binary search finds the fewest.
        count = bisect_left(
            range(len(lower)), True, key=lambda n: self._fits(newcomer, prefix, preempted=for_slot + lower[:n])
        )
        return for_slot + lower[:count]

    # --- batch --------------------------------------------------------------------------------------------------------

    def _decodes(self, members: Iterable[Sequence], budget: int) -> list[ScheduledSequence]:
        """One token for each sequence after its prefill. When no block is free for it, a sequence is preempted.

        Drafts come on top, for as much of the budget as is left and never at the cost of others' blocks.
        """
        decoding = [item for item in members if item.decoding and not item.ends_by_length]
        for sequence in decoding:
            while sequence.slot >= 0 and not self.block_manager.can_append(sequence, sequence.length):
                self._preempt_victim()
            if sequence.slot >= 0:
                self.block_manager.append(sequence, sequence.length)
        decoding = [sequence for sequence in decoding if sequence.slot >= 0]
        drafts = {} if self.drafting is None or self._in_flight else self._drafts(self.drafting, decoding, budget)
        batch = [self._schedule_tokens(item, 1, drafts.get(item.request.id, ())) for item in decoding]
        return sorted(batch, key=lambda scheduled: bool(scheduled.drafts))  # kernels want single tokens at the front

    def _drafts(self, drafting: Drafting, decoding: list[Sequence], budget: int) -> dict[str, tuple[int, ...]]:
        """Drafts by request ID, with blocks allocated for them: each is as long as free blocks allow."""
        prefills = [item for item in self.running.values() if not item.decoding]
        room = budget - len(decoding)
        proposed = drafting.propose(decoding, room // 2 if prefills else room, prefills=bool(prefills))
        manager = self.block_manager
        spare = manager.num_free_blocks - sum(manager.num_missing_blocks(item, item.length) for item in prefills)
        drafts = {}
        for name, tokens in proposed.items():
            sequence = self.running[name]
            held = len(sequence.block_table) * manager.block_tokens - sequence.length
            drafts[name] = tokens[: held + max(0, spare) * manager.block_tokens]
            length = sequence.length + len(drafts[name])
            spare -= manager.num_missing_blocks(sequence, length)
            manager.append(sequence, length)
        return drafts

    def _prefills(self, members: Iterable[Sequence], budget: int, *, alone: bool) -> list[ScheduledSequence]:
        """Prompt tokens of one or more sequences, for the rest of the step's budget."""
        waiting = [item for item in members if item.slot >= 0 and not item.decoding]
        return self._chunks(waiting, budget) if self.limits.chunked else self._wholes(waiting, budget, alone=alone)

    def _chunks(self, prefills: list[Sequence], budget: int) -> list[ScheduledSequence]:
        """Fewest remaining tokens first, and a share for the oldest prefill: a long prompt never starves."""
        if not prefills:
            return []
        oldest = min(prefills, key=lambda item: (item.rank, item.arrival))
        order = sorted(prefills, key=lambda item: (item.rank, item.length - item.num_computed_tokens, item.arrival))
        reserved = min(int(budget * OLDEST_SHARE), oldest.length - oldest.num_computed_tokens)
        batch: list[ScheduledSequence] = []
        prompt_logprobs = MAX_PROMPT_LOGPROBS
        for sequence in order:
            reserved = 0 if sequence is oldest else reserved
            space = self.block_manager.num_appendable_tokens(sequence)
            tokens = min(sequence.length - sequence.num_computed_tokens, budget - reserved, space)
            if sequence.needs_prompt_logprobs:
                tokens = min(tokens, prompt_logprobs)
                prompt_logprobs -= max(0, tokens)
            if tokens > 0:
                self.block_manager.append(sequence, sequence.num_computed_tokens + tokens)
                batch.append(self._schedule_tokens(sequence, tokens))
                budget -= tokens
        return batch

    def _wholes(self, prefills: list[Sequence], budget: int, *, alone: bool) -> list[ScheduledSequence]:
        """In order of arrival. A prompt that is larger than a step gets a step alone."""
        batch: list[ScheduledSequence] = []
        for sequence in sorted(prefills, key=lambda item: (item.rank, item.arrival)):
            if sequence.length > budget and (batch or not alone):
                break
            batch.append(self._schedule_tokens(sequence, sequence.length))
            budget -= sequence.length
        return batch

    def _schedule_tokens(self, sequence: Sequence, tokens: int, drafts: tuple[int, ...] = ()) -> ScheduledSequence:
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + tokens
        self._charge(sequence, start, end)
        return ScheduledSequence(sequence, start, end + len(drafts), samples=end == sequence.length, drafts=drafts)

    def _charge(self, sequence: Sequence, start: int, end: int) -> None:
        """Charges a tenant once for each token in [start, end): it does not pay for recomputation after a preemption.

        Nor for drafts that are rejected.
        """
        prompt = len(sequence.request.prompt)
        fresh = range(max(start, sequence.num_charged_tokens), end)
        if not fresh:
            return
        sequence.num_charged_tokens = end
        of_prompt = max(0, min(prompt, fresh.stop) - fresh.start)
        request = sequence.request
        self.fairness.charge(request.tenant, request.weight, prompt=of_prompt, output=len(fresh) - of_prompt)

    # --- preemption and end -------------------------------------------------------------------------------------------

    def _victim(self) -> Sequence | None:
        """Which sequence to preempt: the lowest class, then the most served tenant, then the fewest computed tokens."""
        return max(self.running.values(), key=self._loss, default=None)

    def _loss(self, sequence: Sequence) -> tuple[int, float, int, int]:
        request, computed = sequence.request, sequence.num_computed_tokens
        return sequence.rank, self.fairness.served(request.tenant), -computed, sequence.arrival

    def _preempt_victim(self) -> None:
        victim = self._victim()
        assert victim is not None, "no sequence runs"
        self._preempt(victim)

    def _preempt(self, sequence: Sequence) -> None:
        """Moves it back to the head of its class. Its full blocks stay in the prefix cache until they are evicted."""
        self.preemptions += 1
        if self.drafting:
            self.drafting.drop_index(sequence.request.id)
        self._stop_running(sequence)
        sequence.num_computed_tokens = 0
        self._waiting[sequence.request.id] = sequence

    def _finish(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            self._stop_running(sequence)
        else:
            del self._waiting[sequence.request.id]
        if self.drafting:
            self.drafting.forget(sequence.request.id)
        self._since.pop(sequence.request.id, None)
        self.fairness.leave(sequence.request.tenant)

    def _stop_running(self, sequence: Sequence) -> None:
        del self.running[sequence.request.id]
        self._free_slots.append(sequence.slot)
        self.block_manager.free(sequence)
        sequence.slot = -1

    def _all_sequences(self) -> Iterator[Sequence]:
        return chain(self.running.values(), self._waiting.values())
