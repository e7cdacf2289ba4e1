"""When a draft model drafts, for which sequences and how many tokens: by what it costs and what is accepted. Pure.

Unlike a look-up, a draft costs before it is known: the draft model reads what it lacks of a sequence, and then takes a
pass for each token. Both costs are measured, and so is the step that verifies. A draft is computed where tokens per
second grow with it. Where nothing is known yet, or no longer, trials find out, within a share of the time.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from ..request import PENDING, ScheduledSequence, Sequence
from .draft_cache import DraftCache
from .drafting import LEAST_GAIN, LEAST_VARIANCE, MARGIN, OUTLIER, STEP_FADE, Acceptance, Drafting
from .step_fit import StepCost, StepFit

CATCH_UP_TOKENS = 256  # that the draft model reads of sequences in one step, beside one of each
POOL_WEIGHT = 4.0  # tries that the share of all sequences counts for in that of one
POOL_FADE = 0.99  # of what all sequences tried, at each draft
LEAST_REST = 32  # tokens that a response is expected to have before it; later as many as it has
TRIAL_TOKENS = 3
TRIAL_SHARE, MOST_TRIAL_S = 0.015, 1.0  # of the time of steps; saved up to this
FIRST_TRIALS = 6  # before costs are known


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A sequence that the draft model may draft for.

    `most`: tokens. `context`: tokens that each row attends to. `lag`: tokens that the draft model has to read first.
    """

    rate: float
    most: int
    context: int
    lag: int


@dataclass(frozen=True, slots=True)
class DraftPass:
    """What one pass of the draft model computed, and how long it took. `pairs` as in StepCost."""

    tokens: int
    pairs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Drafted:
    """Tokens by request ID. `spoiled`: requests whose drafts are no numbers. `passes`: what it took."""

    tokens: dict[str, tuple[int, ...]]
    spoiled: list[str]
    passes: list[DraftPass]


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """How many tokens to draft for each row. `pace`: tokens per second, to those without drafts."""

    counts: list[int]
    pace: float


def draft_plan(
    rows: Rows[DraftRow], verify: StepCost, draft: StepCost, decodes: int, context: int, room: int
) -> DraftPlan:
    """The drafts by which a step yields the most tokens per second.

    Args:
        verify: cost of the model's steps.
        draft: cost of the draft model's passes: each drafts one more token for all rows that go on.
        decodes: sequences that the step samples a token for, drafts or not.
        context: tokens that they attend to, all together.
        room: the most drafted tokens in all.
    """
    counts = [0] * len(rows)
    tokens, seconds = float(decodes), verify.seconds(decodes, context)
    before = tokens / max(seconds, 1e-9)
    active = list(range(len(rows)))
    for depth in range(1, max((row.most for row in rows), default=0) + 1):
        gains: list[tuple[float, float, int]] = []
        for index in active:
            row = rows[index]
            gain, read = row.rate**depth, row.lag if depth == 1 else 1
            more_s = verify.each + verify.pair * row.context + read * (draft.each + draft.pair * row.context)
            if row.most >= depth and gain >= LEAST_GAIN and gain * seconds > MARGIN * tokens * more_s:
                gains.append((gain, more_s, index))
        gains = sorted(gains, reverse=True)[:room]
        gain, more_s = sum(each[0] for each in gains), draft.fixed + sum(each[1] for each in gains)
        if not gains or gain * seconds <= MARGIN * tokens * more_s:
            break
        active, room = [index for *_, index in gains], room - len(gains)
        for index in active:
            counts[index] = depth
        tokens, seconds = tokens + gain, seconds + more_s
    return DraftPlan(counts, tokens / max(seconds, 1e-9) / before)


class ModelDrafting(Drafting):
    """Decides on drafts that a draft model computes: `propose` returns PENDING tokens."""

    def __init__(self, most: int, cache: DraftCache, context_tokens: int) -> None:
        """`context_tokens`: the draft model's own: it drafts for no longer sequence."""
        super().__init__(most)
        self.cache = cache
        self._context_tokens = context_tokens
        self._acceptance: dict[str, Acceptance] = {}
        self._pool = Acceptance()
        self._passes = StepFit(fade=STEP_FADE, least_variance=LEAST_VARIANCE)
        self._trial_s, self._first_trials, self._is_trial = 0.0, FIRST_TRIALS, False

    def propose(self, decoding: Rows[Sequence], room: int, *, prefills: bool) -> dict[str, tuple[int, ...]]:
        self._is_trial = False
        for acceptance in self._acceptance.values():
            acceptance.fade()
        chosen = [(item, row) for item in decoding if (row := self._row(item))]
        if not chosen or room < 1:
            return {}
        context = sum(item.length for item in decoding)
        verify, draft = self._fit.measured(), self._cost_of_pass()
        counts: dict[str, int] = {}
        if verify and draft:
            counts = self._plan(chosen, verify, draft, len(decoding), context, room)
        if counts and self._is_control():
            return {}
        if not counts and not prefills:
            counts = self._trial(chosen, verify, draft, room)
        return {name: (PENDING,) * count for name, count in counts.items()}

    def _row(self, sequence: Sequence) -> DraftRow | None:
        most = min(self._most_tokens(sequence), self._context_tokens - sequence.length)
        if most < 1:
            return None
        acceptance = self._acceptance.setdefault(sequence.request.id, Acceptance())
        lag = sequence.length - self.cache.computed(sequence)
        return DraftRow(self._rate(acceptance), most, sequence.length, lag)

    def _rate(self, acceptance: Acceptance) -> float:
        """The share to expect, which is that of all sequences as long as little is known of this one."""
        expected = self._pool.rate
        return (acceptance.accepted + expected * POOL_WEIGHT) / (acceptance.tried + POOL_WEIGHT)

    def _cost_of_pass(self) -> StepCost | None:
        return self._passes.measured() or self._passes.cost()

    def _plan(
        self,
        chosen: Rows[tuple[Sequence, DraftRow]],
        verify: StepCost,
        draft: StepCost,
        decodes: int,
        context: int,
        room: int,
    ) -> dict[str, int]:
        """How many tokens to draft, by request ID.

        What the draft model lacks of a sequence it reads once: that must pay by what is still to come of the response,
        all other work by the next step alone.
        """
        read = [DraftRow(row.rate, row.most, row.context, min(row.lag, 2)) for _, row in chosen]
        pace = draft_plan(read, verify, draft, decodes, context, room).pace
        if pace <= 1.0:
            return {}
        saved_s = (1.0 - 1.0 / pace) * verify.seconds(decodes, context) / decodes  # by each token to come
        paying = [
            index
            for index, (item, row) in enumerate(chosen)
            if row.lag <= self._most + 1
            or draft.seconds(row.lag, row.lag * row.context // 2) < saved_s * expected_rest(item)
        ]
        rows = [read[index] for index in paying]
        counts = draft_plan(rows, verify, draft, decodes, context, room).counts
        return {chosen[index][0].request.id: count for index, count in zip(paying, counts, strict=True) if count}

    def _trial(
        self, chosen: Rows[tuple[Sequence, DraftRow]], verify: StepCost | None, draft: StepCost | None, room: int
    ) -> dict[str, int]:
        """A draft of one sequence whatever it gains, where there is time for it."""
        item, row = min(chosen, key=lambda pair: (pair[1].lag, -pair[1].rate))
        count = min(TRIAL_TOKENS, row.most, room)
        if self._first_trials:
            self._first_trials -= 1
        elif draft is None or self._trial_s < _trial_s(row, count, verify, draft):
            return {}
        else:
            self._is_trial = True
            self._trial_s -= _verify_s(row, count, verify)  # what its passes take is taken off when it is measured
        return {item.request.id: count}

    def acceptance(self, request_id: str) -> Acceptance | None:
        return self._acceptance.get(request_id)

    def observe_verified(self, request_id: str, drafted: int, accepted: int) -> None:
        super().observe_verified(request_id, drafted, accepted)
        self._pool.tried, self._pool.accepted = self._pool.tried * POOL_FADE, self._pool.accepted * POOL_FADE
        self._pool.observe(drafted, accepted)

    def observe_passes(self, passes: Iterable[DraftPass]) -> None:
        """Adds what the passes of a draft took."""
        for one in passes:
            seconds = one.seconds
            if self._is_trial:
                self._trial_s -= seconds
            if cost := self._passes.measured():
                seconds = min(seconds, OUTLIER * cost.seconds(one.tokens, one.pairs))
            self._passes.observe(one.tokens, one.pairs, seconds)

    def observe_step(self, batch: Iterable[ScheduledSequence], seconds: float) -> None:
        super().observe_step(batch, seconds)
        self._trial_s = min(MOST_TRIAL_S, self._trial_s + TRIAL_SHARE * seconds)

    def drop_index(self, request_id: str) -> None:
        self._acceptance.pop(request_id, None)
        self.cache.forget(request_id)


def expected_rest(sequence: Sequence) -> int:
    """Tokens that its response is expected to have after these."""
    output, sampling = len(sequence.output), sequence.request.sampling
    rest = max(LEAST_REST, output)
    return min(rest, sampling.max_tokens - output) if sampling else 0


def _trial_s(row: DraftRow, count: int, verify: StepCost | None, draft: StepCost) -> float:
    seconds = draft.seconds(row.lag, row.lag * row.context) + (count - 1) * draft.seconds(1, row.context)
    return seconds + _verify_s(row, count, verify)


def _verify_s(row: DraftRow, count: int, verify: StepCost | None) -> float:
    return count * (verify.each + verify.pair * row.context) if verify else 0.0
