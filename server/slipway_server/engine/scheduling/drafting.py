"""How many drafted tokens a step verifies: by how many were accepted so far, and by what they cost. Pure.

A drafted token is verified in the step that would have sampled it: the step takes one more row for each, and yields one
more token for each that is accepted. That gains where a step takes about as long with more rows, as with few answers,
whose weights are read once for all rows; and it loses where each row takes its own time.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from ..request import Sampled, ScheduledSequence, Sequence
from .prompt_lookup import WINDOW, PromptLookup
from .step_fit import StepCost, StepFit

PRIOR, PRIOR_WEIGHT = 0.5, 2.0  # share of drafts that are accepted, before any was, and how many tries that counts for
FADE = 0.98  # of what was tried and accepted, at each step: a sequence that drafts nothing tries again
LEAST_GAIN = 0.25  # accepted tokens that a drafted one must promise, whatever it costs
MARGIN = 1.05  # by which tokens per second must grow in the estimate
# One in so many steps that could have drafts is the other way round, with them or without: the fit learns from the
# difference what drafts cost, and no error of it lasts.
CONTROL_EVERY = 32
FREE = StepCost(1.0, 0.0, 0.0)
STEP_FADE, LEAST_VARIANCE = 0.99, 0.25  # of the fit: steps with drafts may be rare, or all of them the same
OUTLIER = 4.0  # times its estimate; what a step takes longer was no work of its own


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """`tokens`: drafted of one sequence in one step. `least`, `most`: tokens of an end that is looked up."""

    tokens: int
    least: int
    most: int


@dataclass(slots=True)
class Acceptance:
    """How many of a sequence's drafted tokens were accepted, of those that all earlier ones of their draft were."""

    tried: float = 0.0
    accepted: float = 0.0

    @property
    def rate(self) -> float:
        """The share to expect; above 0 and below 1."""
        return (self.accepted + PRIOR * PRIOR_WEIGHT) / (self.tried + PRIOR_WEIGHT)

    def fade(self) -> None:
        self.tried, self.accepted = self.tried * FADE, self.accepted * FADE

    def observe(self, drafted: int, accepted: int) -> None:
        """Adds a verified draft. What comes after a rejected token was not tried."""
        self.tried += accepted + (accepted < drafted)
        self.accepted += accepted


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that a step may verify, or its beginning. `context`: tokens that each of its rows attends to."""

    rate: float
    tokens: int
    context: int


def draft_counts(candidates: Rows[Candidate], cost: StepCost, decodes: int, context: int, room: int) -> list[int]:
    """How many tokens of each draft to verify, so that the step yields the most tokens per second.

    Args:
        cost: of steps of answers.
        decodes: sequences that the step samples a token for, drafts or not.
        context: tokens that they attend to, all together.
        room: the most drafted tokens in all.
    """
    counts = [0] * len(candidates)
    tokens, seconds = float(decodes), cost.seconds(decodes, context)
    gains = [
        (candidate.rate**depth, row)
        for row, candidate in enumerate(candidates)
        for depth in range(1, candidate.tokens + 1)
    ]
    # The likeliest first. Those of one draft are in their order: each is less likely than the one before it.
    for gain, row in sorted(gains, key=lambda pair: -pair[0]):
        more_s = cost.each + cost.pair * candidates[row].context
        if room <= 0 or gain < LEAST_GAIN:
            break
        if gain * seconds > MARGIN * tokens * more_s:
            counts[row], room = counts[row] + 1, room - 1
            tokens, seconds = tokens + gain, seconds + more_s
    return counts


def verified(drafts: Rows[int], rows: Rows[Sampled]) -> Sampled:
    """The result of a sequence whose next tokens were drafted.

    `rows`: what is sampled after the sequence, and after each draft. Each row draws its token as it would without
    drafts, and a draft is accepted if it is this token. So it is accepted with the probability that the model gives it,
    and in its place another token has the probability that it has among all others: the rule of rejection sampling for
    drafts that are certain, with one draw for both. Equal seeds give equal tokens with and without drafts.
    """
    if any(row.token is None and not row.no_token_allowed for row in rows):
        return Sampled(spoiled=True)
    accepted = 0
    while accepted < len(drafts) and rows[accepted].token == drafts[accepted]:
        accepted += 1
    first, *following = rows[: accepted + 1]
    return Sampled(
        first.token, None, first.logprobs, no_token_allowed=first.no_token_allowed, following=tuple(following)
    )


class Drafting(ABC):
    """Decides on drafts of running sequences, and counts what became of them."""

    def __init__(self, most: int) -> None:
        """`most`: tokens drafted of one sequence in one step."""
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self._most = most
        self._excluded: set[str] = set()
        self._fit = StepFit(fade=STEP_FADE, least_variance=LEAST_VARIANCE)
        self._until_control = CONTROL_EVERY

    @abstractmethod
    def propose(self, decoding: Rows[Sequence], room: int, *, prefills: bool) -> dict[str, tuple[int, ...]]:
        """Drafts for the next step by request ID; sequences without one are missing.

        `room`: the most drafted tokens in all. `prefills`: whether prompts wait for the rest of the step. A token may
        be PENDING: `Drafter.draft` computes it before the step runs.
        """

    @abstractmethod
    def acceptance(self, request_id: str) -> Acceptance | None:
        """That of a sequence; None where nothing is kept of it."""

    @abstractmethod
    def drop_index(self, request_id: str) -> None:
        """Frees the memory for a sequence that waits."""

    def _is_control(self) -> bool:
        self._until_control -= 1
        if self._until_control:
            return False
        self._until_control = CONTROL_EVERY
        return True

    def _most_tokens(self, sequence: Sequence) -> int:
        """The most tokens that may be drafted for it.

        None with a grammar, whose mask is there for the next token only. And none that it could not return: the last
        token of a response is always sampled.
        """
        sampling = sequence.request.sampling
        if sampling is None or sampling.grammar or sequence.request.id in self._excluded:
            return 0
        return min(self._most, sampling.max_tokens - len(sequence.output) - 1)

    def observe_verified(self, request_id: str, drafted: int, accepted: int) -> None:
        """Counts a draft that was verified."""
        self.drafts, self.draft_tokens = self.drafts + 1, self.draft_tokens + drafted
        self.accepted_tokens += accepted
        if acceptance := self.acceptance(request_id):
            acceptance.observe(drafted, accepted)

    def observe_step(self, batch: Iterable[ScheduledSequence], seconds: float) -> None:
        """Adds what a step took, if it had answers only. `seconds`: without those in which drafts were computed."""
        tokens = pairs = 0
        for scheduled in batch:
            if not scheduled.samples or scheduled.tokens != 1 + len(scheduled.drafts):
                return
            tokens, pairs = tokens + scheduled.tokens, pairs + scheduled.pairs
        if not tokens:
            return
        if cost := self._fit.measured():
            seconds = min(seconds, OUTLIER * cost.seconds(tokens, pairs))
        self._fit.observe(tokens, pairs, seconds)

    def exclude(self, request_id: str) -> None:
        """Drafts nothing more for a sequence, whose drafts did harm."""
        self.drop_index(request_id)
        self._excluded.add(request_id)

    def forget(self, request_id: str) -> None:
        """Drops what is kept of a sequence that has ended."""
        self.drop_index(request_id)
        self._excluded.discard(request_id)


@dataclass(slots=True)
class _Drafted:
    """What is kept of a sequence."""

    lookup: PromptLookup
    acceptance: Acceptance = field(default_factory=Acceptance)


class LookupDrafting(Drafting):
    """Drafts tokens of running sequences by prompt lookup."""

    def __init__(self, limits: DraftLimits) -> None:
        super().__init__(limits.tokens)
        self._limits = limits
        self._drafted: dict[str, _Drafted] = {}

    def propose(self, decoding: Rows[Sequence], room: int, *, prefills: bool) -> dict[str, tuple[int, ...]]:
        found = self._candidates(decoding)
        cost = self._fit.measured() if found else None
        if not found or (prefills and cost is None):
            return {}
        candidates = [
            Candidate(self._drafted[item.request.id].acceptance.rate, len(tokens), item.length)
            for item, tokens in found
        ]
        context = sum(item.length for item in decoding)
        # A few drafts, if all answers are many, suffice to learn what they cost.
        few = min(room, max(self._limits.tokens, len(decoding) // 4))
        counts = draft_counts(candidates, cost or FREE, len(decoding), context, room if cost else few)
        if self._is_control():
            counts = [0] * len(found) if any(counts) else draft_counts(candidates, FREE, len(decoding), context, few)
        return {item.request.id: tokens[:count] for (item, tokens), count in zip(found, counts, strict=True) if count}

    def _candidates(self, decoding: Rows[Sequence]) -> list[tuple[Sequence, tuple[int, ...]]]:
        found = []
        unindexed = WINDOW  # tokens that may be indexed for new sequences in this step
        for sequence in decoding:
            if (count := self._most_tokens(sequence)) < 1:
                continue
            drafted = self._drafted.get(sequence.request.id)
            if drafted is None:
                size = min(WINDOW, sequence.length)
                if size > unindexed:
                    continue
                unindexed -= size
                drafted = self._drafted[sequence.request.id] = self._new(sequence)
            drafted.acceptance.fade()
            for token in sequence.tokens(len(drafted.lookup), sequence.length):
                drafted.lookup.add(token)
            if drafted.acceptance.rate >= LEAST_GAIN and (tokens := drafted.lookup.draft(count)):
                found.append((sequence, tokens))
        return found

    def _new(self, sequence: Sequence) -> _Drafted:
        tokens = sequence.tokens(0, sequence.length)
        return _Drafted(PromptLookup(tokens, least=self._limits.least, most=self._limits.most))

    def acceptance(self, request_id: str) -> Acceptance | None:
        drafted = self._drafted.get(request_id)
        return drafted.acceptance if drafted else None

    def drop_index(self, request_id: str) -> None:
        """Frees the memory for a sequence that waits: it is indexed again when it runs."""
        self._drafted.pop(request_id, None)
