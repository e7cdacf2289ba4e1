"""What gateways count for the judge of canaries, described once: docs/contracts.md says when a number grows.

A gateway counts in these types and reports them as JSON. `read` and `read_bounds` are the operator's side: parts that
are malformed are left out, and all sizes are bounded. Counts have no default, because a count that is missing is not 0;
those that a gateway of a former release does not report have one. All numbers only grow while the gateway lives, except
those of what is `open`.
"""

import functools
import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from slipway_contracts.twin_shadow import MEASURES, TwinLatency

# Above what our gateways send: four generations, six strata, some hundred buckets.
MOST_GENERATIONS, MOST_REVISIONS, MOST_STRATA, MOST_BUCKETS, MOST_EVENTS = 8, 4, 16, 256, 16
MOST_COMPARISONS, MOST_REASONS = 4, 16
MAX_COUNT = 1 << 53  # where doubles, with which the judge computes, are exact
LONGEST = 64  # characters of a name
MILLION = 1_000_000  # `changed_millionths` of one pair at most
BINS = 17  # of predictions; the last one is for those in no other
PROBE_FAILED = "probe_failed"  # a key of `withheld`: neither side answered a probe
LACK_OF_ROOM = ("busy", "full", "canary_refused", "twin_refused")  # keys of `withheld`, too

Bounds = dict[str, tuple[float, ...]]  # upper ends of buckets in seconds, by kind of latency
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Name = Annotated[str, Meta(max_length=LONGEST)]
# Counts by bucket. Zeros at the end are left out in a report, and filled in where it is read.
Buckets = Annotated[tuple[Count, ...], Meta(max_length=MOST_BUCKETS)]
# By kind of latency (ttft, itl, e2e) and stratum.
Histograms = Annotated[
    dict[Name, Annotated[dict[Name, Buckets], Meta(max_length=MOST_STRATA)]], Meta(max_length=MOST_COMPARISONS)
]

T = TypeVar("T")


class Agreement(StrEnum):
    """What became of a mirrored request, or of a pair, whose predictions were to be compared."""

    AGREED = "agreed"
    DISAGREED = "disagreed"
    UNREAD = "unread"  # stable's response has no predictions that can be read, whatever canary's has
    FAILED = "failed"  # stable's has, and canary gave no whole response of status 200


@dataclass(slots=True)
class ShadowCounts:
    """Mirrored requests that canary and a second stable pod answered too, by which of them differs more from stable."""

    pairs: Count
    canary_only: Count
    second_only: Count
    both: Count  # both differ, by the same amount
    no_floor: Count  # requests that only canary answered, for stable has one pod; not among the pairs
    no_floor_differs: Count

    def count(self, canary: int, second: int | None) -> None:
        """`canary`, `second`: how much each response differs from stable's: 0 or 1 for texts, else a number of tokens.

        `second` None: there is no second stable pod.
        """
        if second is None:
            self.no_floor += 1
            self.no_floor_differs += canary > 0
            return
        self.pairs += 1
        self.canary_only += canary > second
        self.second_only += second > canary
        self.both += canary == second > 0


@dataclass(slots=True)
class LegCounts:
    """Pairs of a twin shadow in which a leg has an event, by leg."""

    canary_only: Count
    twin_only: Count
    both: Count

    def count(self, *, canary: bool, twin: bool) -> None:
        self.canary_only += canary and not twin
        self.twin_only += twin and not canary
        self.both += canary and twin


@dataclass(slots=True)
class EventCounts(LegCounts):
    """`unanswered`: pairs in which canary's leg has the event, and stable had no room for the same copy."""

    unanswered: Count = 0


@dataclass(slots=True)
class ProbeCounts(LegCounts):
    """`pairs`: pairs that are probes, which all other counts include too. The counts by leg: bad ones among them."""

    pairs: Count


@dataclass(slots=True)
class LatencyCounts:
    """Pairs with a latency on both sides; `over`: canary's is longer than its twin's by more than the slowdown.

    `tail_pairs`: pairs of strata with a tail threshold. The other `tail_` counts: those with a leg slower than it.
    """

    pairs: Count
    over: Count
    tail_pairs: Count
    tail_canary_only: Count
    tail_twin_only: Count
    tail_both: Count

    def count(self, limit: TwinLatency, stratum: str, canary_s: float, twin_s: float) -> None:
        self.pairs += 1
        self.over += canary_s * 100 > twin_s * (100 + limit.max_slowdown)
        threshold_s = next((tail.microseconds / 1e6 for tail in limit.tail if tail.stratum == stratum), None)
        if threshold_s is None:
            return
        slow, twin_slow = canary_s > threshold_s, twin_s > threshold_s
        self.tail_pairs += 1
        self.tail_canary_only += slow and not twin_slow
        self.tail_twin_only += twin_slow and not slow
        self.tail_both += slow and twin_slow


@dataclass(slots=True)
class QualityCounts:
    """Pairs whose responses were compared.

    `texts`: pairs with both texts; `differ`: those with two different texts. `scored`: pairs in which both servers
    scored the `tokens` of the twin's response; flips: tokens that are not the server's first choice. The counts by leg:
    pairs in which more than one token in a hundred is a flip. `compared`: scored pairs in which the twin's server
    chooses a token of its response; `changed_millionths`: the parts of such tokens that canary's server does not
    choose, each between 0 and 1 and rounded down, summed over these pairs. `unscored`: pairs of which the twin's server
    alone scored the tokens, or in which canary alone failed or has no text. `open`: pairs whose scores were requested
    and have not come, in no other count of tokens. Tokens that were drawn, and that no server chooses, are in none of
    these.
    """

    texts: Count
    differ: Count
    scored: Count
    tokens: Count
    canary_flips: Count
    twin_flips: Count
    canary_only: Count
    twin_only: Count
    both: Count
    compared: Annotated[int, Meta(ge=0, le=MAX_COUNT // MILLION)] = 0  # the operator counts in millionths of pairs
    changed_millionths: Count = 0
    unscored: Count = 0
    open: Count = 0

    def count_texts(self, *, equal: bool) -> None:
        self.texts += 1
        self.differ += not equal

    def count_tokens(self, tokens: int, canary_flips: int, twin_flips: int) -> None:
        """Counts a pair in which both servers scored the twin's response, which has so many tokens and flips."""
        canary, twin = (flips * 100 > tokens for flips in (canary_flips, twin_flips))
        self.scored += 1
        self.tokens += tokens
        self.canary_flips += canary_flips
        self.twin_flips += twin_flips
        self.canary_only += canary and not twin
        self.twin_only += twin and not canary
        self.both += canary and twin

    def count_choices(self, chosen: int, changed: int) -> None:
        """Counts the `chosen` tokens of a scored pair, of which canary's server does not choose `changed`."""
        if chosen:
            self.compared += 1
            self.changed_millionths += changed * MILLION // chosen


@dataclass(slots=True)
class ScoreCounts:
    """Pairs that a scorer rated, and those without a result. `open`: calls in progress, in no other count.

    `canary_only`: pairs in which canary's response is the worse one by more than the margin. `rated`: pairs with a
    score for each response, whose sums are in thousandths. Pairs that are `dropped` (no room) or `blocked` (the gateway
    may not call this host) were not sent to the scorer; `unanswered` and `invalid` ones were.
    """

    open: Count
    scored: Count
    canary_only: Count
    twin_only: Count
    rated: Count
    canary_thousandths: Count
    twin_thousandths: Count
    unanswered: Count
    invalid: Count
    dropped: Count
    blocked: Count

    @property
    def unknown(self) -> int:
        """Pairs whose call of the scorer failed. The texts may be the reason, so these pairs count as unknown."""
        return self.unanswered + self.invalid

    def count(self, lower: int, scores: tuple[float, float] | None = None) -> None:
        """Counts a scored pair. `lower`: 1 where canary's response is the worse one, -1 where its twin's is, else 0."""
        self.scored += 1
        self.canary_only += lower > 0
        self.twin_only += lower < 0
        if scores is not None:
            self.rated += 1
            self.canary_thousandths += round(1000 * scores[0])
            self.twin_thousandths += round(1000 * scores[1])


@dataclass(slots=True)
class AgreementCounts:
    """Sessions by the result of the first mirrored request that was to be compared; or pairs.

    `compared`: those that agreed or disagreed, which `disagreed` is part of.
    """

    compared: Count
    disagreed: Count
    unread: Count
    failed: Count

    def count(self, result: Agreement) -> None:
        self.compared += result in (Agreement.AGREED, Agreement.DISAGREED)
        self.disagreed += result is Agreement.DISAGREED
        self.unread += result is Agreement.UNREAD
        self.failed += result is Agreement.FAILED


def zero(kind: type[T]) -> T:
    """A record of counts in which nothing is counted yet."""
    make: Any = kind
    counts: T = make(*_zeros(make))
    return counts


@functools.cache
def _zeros(kind: Any) -> tuple[int, ...]:
    return tuple(0 for _ in fields(kind))


@dataclass(slots=True)
class TwinCounts:
    """Pairs of a twin shadow: requests sent to canary and a stable pod at once, at most one per session and epoch.

    `open`: pairs that were sent and have not ended, not part of `pairs`. `events`: by kind; `bad`: any kind except
    truncated. `withheld`: pairs that were not sent, by reason.
    """

    open: Count
    pairs: Count
    events: Annotated[dict[Name, EventCounts], Meta(max_length=MOST_EVENTS)]
    latencies: Annotated[dict[Name, LatencyCounts], Meta(max_length=MOST_COMPARISONS)]
    withheld: Annotated[dict[Name, Count], Meta(max_length=MOST_REASONS)]
    probes: ProbeCounts = field(default_factory=lambda: zero(ProbeCounts))
    quality: QualityCounts = field(default_factory=lambda: zero(QualityCounts))
    scores: ScoreCounts = field(default_factory=lambda: zero(ScoreCounts))
    agreements: AgreementCounts = field(default_factory=lambda: zero(AgreementCounts))

    @property
    def starved(self) -> int:
        """Pairs that were not sent because a pod, or the gateway, had no room for them."""
        return sum(self.withheld.get(reason, 0) for reason in LACK_OF_ROOM)


@dataclass(slots=True)
class PredictionCounts:
    """Sessions by the bin of their first prediction. `unread`: those whose prediction could not be read."""

    bins: Buckets = ()
    unread: Count = 0


@dataclass(slots=True, kw_only=True)
class RevisionCounts:
    """One revision under one generation of the route. A unit is a session that the judge looks at.

    `assigned`: units that the split assigned to it. `units`: those of which a first attempt ended, the total that
    `events`, by kind, are a part of. `requests`: all first attempts that ended. `slow`: latencies of each session's
    first request that can have one. `late`: the same for requests that have no latency, or not yet: the time that they
    took at least. `rated`, `wrong`: units with feedback, and those with feedback that an answer was wrong.
    """

    assigned: Count = 0
    requests: Count
    # A gateway of a former release counts no units: without this total its events cannot be used.
    units: Count = 0
    events: Annotated[dict[Name, Count], Meta(max_length=MOST_EVENTS)] = field(default_factory=dict)
    slow: Histograms = field(default_factory=dict)
    late: Histograms = field(default_factory=dict)
    rated: Count = 0
    wrong: Count = 0
    predictions: PredictionCounts = field(default_factory=PredictionCounts)


def no_pairs() -> TwinCounts:
    """Of a revision that got no copies."""
    return TwinCounts(0, 0, {}, {}, {})


def no_requests() -> RevisionCounts:
    """Of a revision that the split gave nothing."""
    return RevisionCounts(requests=0)


@dataclass(slots=True)
class GenerationCounts:
    """The counters of one gateway for the requests that it assigned under one generation of the route.

    `weights`: percent by revision. `shadow`: by the revision that got mirrored requests, then by what was compared:
    text or tokens. `twins`, `agreements`: by the revision that got the copies.
    """

    generation: Count
    weights: Annotated[dict[Name, Count], Meta(max_length=MOST_REVISIONS)]
    revisions: Annotated[dict[Name, RevisionCounts], Meta(max_length=MOST_REVISIONS)]
    shadow: Annotated[
        dict[Name, Annotated[dict[Name, ShadowCounts], Meta(max_length=MOST_COMPARISONS)]],
        Meta(max_length=MOST_REVISIONS),
    ] = field(default_factory=dict)
    twins: Annotated[dict[Name, TwinCounts], Meta(max_length=MOST_REVISIONS)] = field(default_factory=dict)
    agreements: Annotated[dict[Name, AgreementCounts], Meta(max_length=MOST_REVISIONS)] = field(default_factory=dict)


def read_bounds(reported: Any) -> Bounds:
    """Upper bounds of latency buckets in seconds, by kind; a kind with invalid bounds is left out."""
    rising = {kind: _rising(reported.get(kind)) for kind in MEASURES} if isinstance(reported, dict) else {}
    return {kind: bounds for kind, bounds in rising.items() if bounds}


def read(reported: Any, bounds: Bounds) -> tuple[GenerationCounts, ...]:
    """The counters of each readable generation; empty for a gateway that sends no counters."""
    newest = reported[-MOST_GENERATIONS:] if isinstance(reported, list) else []
    return tuple(counts for item in newest if (counts := _generation(item, bounds)) is not None)


def _rising(items: Any) -> tuple[float, ...]:
    numbers = isinstance(items, list) and all(isinstance(x, int | float) and not isinstance(x, bool) for x in items)
    if not numbers or not 0 < len(items) <= MOST_BUCKETS:
        return ()
    rises = math.isfinite(items[-1]) and all(low < high for low, high in pairwise(items))
    return tuple(float(item) for item in items) if rises else ()


def _generation(item: Any, bounds: Bounds) -> GenerationCounts | None:
    try:
        counts = msgspec.convert(item, GenerationCounts)
        for revision in counts.revisions.values():
            revision.slow = _filled_histograms(revision.slow, bounds)
            revision.late = _filled_histograms(revision.late, bounds)
            revision.predictions.bins = _filled(revision.predictions.bins, BINS)
    except (msgspec.ValidationError, ValueError):
        return None
    return counts


def _filled_histograms(times: Histograms, bounds: Bounds) -> Histograms:
    """Histograms of the kinds with bounds, each with one bucket more than the kind has bounds."""
    return {
        kind: {stratum: _filled(counts, len(upper) + 1) for stratum, counts in times.get(kind, {}).items()}
        for kind, upper in bounds.items()
    }


def _filled(counts: Buckets, buckets: int) -> Buckets:
    """Counts of all buckets.

    Raises:
        ValueError: there are more counts than buckets.
    """
    if len(counts) > buckets:
        raise ValueError(f"{len(counts)} counts of {buckets} buckets")
    return counts + (0,) * (buckets - len(counts))
