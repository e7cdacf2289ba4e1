"""Continuous batching: which sequences run in the next step, with how many tokens, and when they end.

Pure: no tensors, no clock, no I/O. Each step decodes first, then shares what is left of its tokens between prefills.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .blocks import Blocks, Digests, Roots
from .fairness import Fairness
from .request import Event, FinishReason, Request, Sampled, Sequence, Work

AGEING_S = 30.0  # of waiting raise a request by one class of priority: the lowest class is served at last
OLDEST_SHARE = 0.25  # of a step's prefill tokens, for the prefill that began first
# Prompt tokens of a step that are told with their probabilities: each one needs a row of logits of its own.
TOLD_TOKENS = 256
TOO_LATE = "The request's time was over."
NOT_FINITE = "The model computed numbers that are not finite."
NO_TOKEN = (
    "The request leaves no token to choose: allowed_token_ids, bad_words and min_tokens with stop_token_ids "
    "forbid all of them. Allow one more."
)


@dataclass(frozen=True, slots=True)
class Limits:
    slots: int
    step_tokens: int
    kv_tokens: int
    block_tokens: int = 32
    chunked: bool = True  # False for encoders: they see the whole input at once
    prefix_cache: bool = True


class Scheduler:
    """Requests wait by class, tenant and arrival; they join and leave the running batch between steps."""

    def __init__(self, limits: Limits, *, scope: str = "", digest_key: bytes | None = None) -> None:
        """`scope` names what cached blocks are of: revision, dtype and adapter of the model."""
        self.limits = limits
        self.running: dict[str, Sequence] = {}
        self.blocks = Blocks(limits.kv_tokens // limits.block_tokens)
        self.fairness = Fairness()
        self.preemptions = 0
        self.prefix_queries = self.prefix_hits = 0  # tokens
        self._digests = Digests(limits.block_tokens, digest_key)
        self._roots = Roots(self._digests, scope)
        self._waiting: dict[str, Sequence] = {}
        self._since: dict[str, float] = {}
        self._free_slots = list(range(limits.slots - 1, -1, -1))
        self._arrivals = 0
        self._started: list[str] = []

    # --- what comes in ------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self.running or self._waiting)

    @property
    def kv_usage(self) -> float:
        return self.blocks.held / self.blocks.count if self.blocks.count else 0.0

    def can_ever_run(self, request: Request) -> bool:
        return self._blocks_for(request.kv_tokens) <= self.blocks.count

    def submit(self, request: Request, now_s: float = 0.0) -> None:
        """Raises ValueError for a request that could never run: the HTTP process refuses those before."""
        if not self.can_ever_run(request):
            raise ValueError(f"request {request.id} needs {request.kv_tokens} of {self.limits.kv_tokens} KV tokens")
        self._arrivals += 1
        deadline_s = now_s + request.timeout_s if request.timeout_s is not None else float("inf")
        self._waiting[request.id] = Sequence(request, self._arrivals, deadline_s)
        self._since[request.id] = now_s
        self.fairness.enter(request.tenant)

    def cancel(self, request_id: str) -> bool:
        """Ends a request wherever it is; False when it has ended already, which is no mistake of the caller's."""
        sequence = self.running.get(request_id) or self._waiting.get(request_id)
        if sequence:
            self._leave(sequence)
        return sequence is not None

    # --- a step -------------------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[Event]:
        """Ends what would come too late, before any more is computed for it."""
        late = [item for item in self._everyone() if item.deadline_s <= now_s]
        for sequence in late:
            self._leave(sequence)
        return [Event(item.request.id, finish=FinishReason.DEADLINE, error=TOO_LATE) for item in late]

    def schedule(self, now_s: float = 0.0, step_tokens: int | None = None) -> list[Work]:
        """The next step's work, of at most `step_tokens` tokens; every block that it writes to is there."""
        budget = self.limits.step_tokens if step_tokens is None else step_tokens
        self._admit(now_s)
        batch = self._decodes()
        batch += self._prefills(budget - len(batch), alone=not batch)
        while not batch and len(self.running) > 1:
            # Prefills that hold all blocks between them, and none has enough: one starts over.
            self._preempt_someone()
            batch = self._prefills(budget, alone=True)
        return batch

    def complete(self, batch: Iterable[Work], results: Iterable[Sampled]) -> list[Event]:
        """Takes in what the step computed: a result for each work that samples or tells of its prompt, in order."""
        outcomes = iter(results)
        events = []
        for work in batch:
            work.sequence.computed = work.end
            self._name_blocks(work.sequence)
            if work.samples or work.prompt_rows:
                event = self._advance(work, next(outcomes))
                events.append(event)
                if event.finish:
                    self._leave(work.sequence)
        return events

    def fail(self, sequence: Sequence, reason: str) -> Event:
        """Ends one whose step failed: what that step wrote may be anything."""
        self.blocks.suspect(sequence.blocks[sequence.computed // self.limits.block_tokens :])
        self._leave(sequence)
        return Event(sequence.request.id, finish=FinishReason.ERROR, error=reason)

    def take_started(self) -> list[str]:
        """Requests that run for the first time since the last call."""
        started, self._started = self._started, []
        return started

    def take_spoiled(self) -> list[int]:
        """Blocks that nobody holds, with numbers that may not be finite: to be cleared before the next step."""
        return self.blocks.take_spoiled()

    def check(self) -> None:
        """Raises AssertionError when the books do not balance."""
        self.blocks.check([item.blocks for item in self._everyone()])
        slots = [item.slot for item in self.running.values()] + self._free_slots
        assert sorted(slots) == list(range(self.limits.slots)), "a slot is lost or held twice"

    # --- who runs -----------------------------------------------------------------------------------------------------

    def _admit(self, now_s: float) -> None:
        """In turn while there is room; who is next and does not fit is not overtaken by smaller ones of its class."""
        while self._waiting:
            sequence = self._next(now_s)
            if not self._free_slots and not self._make_way(sequence):
                return
            if not self._start(sequence, now_s):
                return

    def _next(self, now_s: float) -> Sequence:
        first = min(self._class_of(item, now_s) for item in self._waiting.values())
        peers = [item for item in self._waiting.values() if self._class_of(item, now_s) == first]
        tenant = self.fairness.least({item.request.tenant for item in peers})
        return min((item for item in peers if item.request.tenant == tenant), key=lambda item: item.arrival)

    def _class_of(self, sequence: Sequence, now_s: float) -> int:
        waited_s = now_s - self._since[sequence.request.id] if sequence.request.id in self._since else 0.0
        return sequence.request.priority - int(waited_s / AGEING_S)

    def _start(self, sequence: Sequence, now_s: float) -> bool:
        """Gives it a slot and the blocks of its prompt's known beginning, when the rest of its prompt fits too."""
        known, request = self._known_beginning(sequence), sequence.request
        if not self._fits(sequence, known, without=[]) and not self._make_room(sequence, known):
            return False
        self.blocks.hold(known)
        sequence.blocks, sequence.named = known, len(known)
        sequence.computed = len(known) * self.limits.block_tokens
        sequence.charged = max(sequence.charged, sequence.computed)
        sequence.slot, sequence.rank = self._free_slots.pop(), self._class_of(sequence, now_s)
        del self._waiting[request.id]
        self.running[request.id] = sequence
        self._count_start(sequence)
        return True

    def _count_start(self, sequence: Sequence) -> None:
        if sequence.started:
            return
        sequence.started, sequence.cached = True, min(sequence.computed, len(sequence.request.prompt))
        self._started.append(sequence.request.id)
        if sequence.request.sampling:
            self.prefix_queries += sequence.request.known_tokens
            self.prefix_hits += sequence.computed

    def _known_beginning(self, sequence: Sequence) -> list[int]:
        """Blocks that hold it already. Its last token is computed in any case: something must be sampled from."""
        request = sequence.request
        if not self.limits.prefix_cache or request.sampling is None or sequence.tells_prompt:
            return []
        return self.blocks.find(self._digests_of(sequence, (sequence.length - 1) // self.limits.block_tokens))

    def _digests_of(self, sequence: Sequence, count: int) -> list[bytes]:
        """Of its first full blocks. Each is computed once in a request's life, however often it is looked for."""
        known, size = sequence.digests, self.limits.block_tokens
        if len(known) < count:
            parent = known[-1] if known else self._roots.of(sequence.request.tenant)
            known += self._digests.chain(parent, sequence.tokens(len(known) * size, count * size))
        return known[:count]

    def _fits(self, sequence: Sequence, known: list[int], *, without: list[Sequence]) -> bool:
        """Whether there are blocks for what is known of it and of all that run, if those of `without` did not."""
        missing = self._blocks_for(sequence.length) - len(known) if sequence.request.sampling else 0
        freed = self.blocks.freed_without(item.blocks for item in without)
        idle = self.blocks.idle(known) + sum(block in freed for block in known)
        return missing <= self.blocks.available + len(freed) - idle - self._owed(without)

    def _owed(self, without: list[Sequence]) -> int:
        """Blocks that running sequences still need for what is known of them."""
        running = (item for item in self.running.values() if item.request.sampling and item not in without)
        return sum(max(0, self._blocks_for(item.length) - len(item.blocks)) for item in running)

    def _make_way(self, newcomer: Sequence) -> bool:
        """A slot for a request of a higher class than one that runs. Having waited long gives no right to it."""
        victim = self._victim()
        if victim is None or victim.rank <= newcomer.request.priority:
            return False
        self._preempt(victim)
        return True

    def _make_room(self, newcomer: Sequence, known: list[int]) -> bool:
        """Blocks for a request of a higher class than some that run: as many of these start over as it takes, none when
        all of them were not enough."""
        lower = [item for item in self.running.values() if item.rank > newcomer.request.priority]
        if not lower or not self._fits(newcomer, known, without=lower):
            return False
        lower.sort(key=self._loss, reverse=True)
        # The more of them start over, the more room there is.
        count = bisect_left(range(len(lower)), True, key=lambda n: self._fits(newcomer, known, without=lower[:n]))
        self.blocks.hold(known)  # what it begins with must not be forgotten meanwhile
        for victim in lower[:count]:
            self._preempt(victim)
        self.blocks.release(known)
        return True

    # --- with how many tokens -----------------------------------------------------------------------------------------

    def _decodes(self) -> list[Work]:
        """One token for each that has its prompt behind it. Where a block is missing, one of them starts over."""
        decoding = [item for item in self.running.values() if item.decoding]
        for sequence in decoding:
            while sequence.slot >= 0 and not self._extend(sequence, sequence.length):
                self._preempt_someone()
        return [self._work(sequence, 1) for sequence in decoding if sequence.slot >= 0]

    def _prefills(self, budget: int, *, alone: bool) -> list[Work]:
        """Several share what is left of the step."""
        waiting = [s for s in self.running.values() if not s.decoding]
        return self._chunks(waiting, budget) if self.limits.chunked else self._wholes(waiting, budget, alone=alone)

    def _chunks(self, prefills: list[Sequence], budget: int) -> list[Work]:
        """Shortest rest first, but a share for the one that began first: a long prompt is slow, and never stuck."""
        if not prefills:
            return []
        oldest = min(prefills, key=lambda item: (item.rank, item.arrival))
        order = sorted(prefills, key=lambda item: (item.rank, item.length - item.computed, item.arrival))
        kept_back = min(int(budget * OLDEST_SHARE), oldest.length - oldest.computed)
        batch: list[Work] = []
        told = TOLD_TOKENS
        for sequence in order:
            kept_back = 0 if sequence is oldest else kept_back
            tokens = min(sequence.length - sequence.computed, budget - kept_back, self._room(sequence))
            if sequence.tells_prompt:
                tokens = min(tokens, told)
                told -= max(0, tokens)
            if tokens > 0:
                self._extend(sequence, sequence.computed + tokens)
                batch.append(self._work(sequence, tokens))
                budget -= tokens
        return batch

    def _wholes(self, prefills: list[Sequence], budget: int, *, alone: bool) -> list[Work]:
        """In order of arrival; one that is larger than a step has a step of its own."""
        batch: list[Work] = []
        for sequence in sorted(prefills, key=lambda item: (item.rank, item.arrival)):
            if sequence.length > budget and (batch or not alone):
                break
            batch.append(self._work(sequence, sequence.length))
            budget -= sequence.length
        return batch

    def _work(self, sequence: Sequence, tokens: int) -> Work:
        end = sequence.computed + tokens
        work = Work(sequence, sequence.computed, end, samples=end == sequence.length)
        self._charge(work)
        return work

    def _charge(self, work: Work) -> None:
        """A tenant pays once for each token: what is computed again after a preemption was not its fault."""
        sequence, prompt = work.sequence, len(work.sequence.request.prompt)
        fresh = range(max(work.start, sequence.charged), work.end)
        if not fresh:
            return
        sequence.charged = work.end
        of_prompt = max(0, min(prompt, fresh.stop) - fresh.start)
        request = sequence.request
        self.fairness.charge(request.tenant, request.weight, prompt=of_prompt, output=len(fresh) - of_prompt)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def _room(self, sequence: Sequence) -> int:
        """Tokens that its blocks and the available ones take beyond those computed."""
        return (len(sequence.blocks) + self.blocks.available) * self.limits.block_tokens - sequence.computed

    def _extend(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for so many tokens in all; False when there are not enough."""
        missing = self._blocks_for(tokens) - len(sequence.blocks)
        if missing > self.blocks.available:
            return False
        sequence.blocks.extend(self.blocks.take() for _ in range(missing))
        return True

    def _name_blocks(self, sequence: Sequence) -> None:
        """Full blocks can be shared from now on."""
        full = sequence.computed // self.limits.block_tokens
        if not self.limits.prefix_cache or sequence.request.sampling is None or full <= sequence.named:
            return
        digests = self._digests_of(sequence, full)
        for index in range(sequence.named, full):
            self.blocks.name(sequence.blocks[index], digests[index])
        sequence.named = full

    # --- who leaves ---------------------------------------------------------------------------------------------------

    def _victim(self) -> Sequence | None:
        """The lowest class first, then the tenant that was served most, then who loses least."""
        return max(self.running.values(), key=self._loss, default=None)

    def _loss(self, sequence: Sequence) -> tuple[int, float, int, int]:
        served = self.fairness.served(sequence.request.tenant)
        return sequence.rank, served, -sequence.computed, sequence.arrival

    def _preempt_someone(self) -> None:
        victim = self._victim()
        assert victim is not None, "there is one that runs"
        self._preempt(victim)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of its class. What it computed stays known as long as nobody needs the blocks."""
        self.preemptions += 1
        self._retire(sequence)
        sequence.computed = 0
        self._waiting[sequence.request.id] = sequence

    def _leave(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            self._retire(sequence)
        else:
            del self._waiting[sequence.request.id]
        self._since.pop(sequence.request.id, None)
        self.fairness.leave(sequence.request.tenant)

    def _retire(self, sequence: Sequence) -> None:
        del self.running[sequence.request.id]
        self._free_slots.append(sequence.slot)
        self.blocks.release(sequence.blocks)
        sequence.slot, sequence.blocks, sequence.named = -1, [], 0

    def _everyone(self) -> Iterator[Sequence]:
        yield from self.running.values()
        yield from self._waiting.values()

    def _advance(self, work: Work, result: Sampled) -> Event:
        request, sampling = work.sequence.request, work.sequence.request.sampling
        work.sequence.told += len(result.prompt_logprobs)
        if sampling is None:
            if result.embedding is None:
                return Event(request.id, finish=FinishReason.NON_FINITE, error=NOT_FINITE)
            return Event(request.id, embedding=result.embedding, finish=FinishReason.STOP)
        if not work.samples:
            return Event(request.id, prompt_logprobs=result.prompt_logprobs)
        if result.token is None:
            if result.stuck:
                return Event(request.id, finish=FinishReason.INVALID, error=NO_TOKEN)
            # What is wrong may be in its blocks, and must not spread.
            self.blocks.suspect(work.sequence.blocks)
            return Event(request.id, finish=FinishReason.NON_FINITE, error=NOT_FINITE)
        work.sequence.output.append(result.token)
        finish = sampling.finish_after(result.token, len(work.sequence.output))
        return Event(
            request.id,
            token=result.token,
            finish=finish,
            logprobs=result.logprobs,
            prompt_logprobs=result.prompt_logprobs,
        )
