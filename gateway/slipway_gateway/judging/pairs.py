"""Counts of twin shadows: what a canary pod and its twin answered to the same copy of a request (pure).

A pair exists from the moment at which both copies are sent; each copy with its response is a leg. A copy that is not
answered in time is a bad event of its leg, so a canary cannot hide by refusing copies. Whether a pair is sent depends
on no response.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from slipway_contracts.twin_shadow import TwinLatency, TwinShadow

from ..wire.responses import KINDS, TRUNCATED
from .agreement import AgreementCounts
from .outcome import RequestOutcome

# Any of these kinds of failure: all except truncated text, which a longer and better answer may have.
BAD, BAD_KINDS = "bad", frozenset(KINDS) - {TRUNCATED}
EVENTS = (BAD, *KINDS)
# Why a pair was not sent: both copies are sent or none. `probe_failed`: a probe that was sent, and that neither leg
# answered, is not counted as a pair. It may not fit this model at all, and a canary must not pass by what nothing can
# answer. No other outcome is left out.
WITHHELD = (
    RATE, BUSY, FULL, TOO_LARGE, FAILSAFE, NO_CANARY, NO_TWIN, CANARY_REFUSED, TWIN_REFUSED, PROBE_FAILED,
) = (
    "rate", "busy", "full", "too_large", "failsafe", "no_canary", "no_twin", "canary_refused", "twin_refused",
    "probe_failed",
)  # fmt: skip


@dataclass(slots=True)
class LegCounts:
    """Pairs in which a leg has an event, by leg."""

    canary_only: int = 0
    twin_only: int = 0
    both: int = 0

    def count(self, *, canary: bool, twin: bool) -> None:
        self.canary_only += canary and not twin
        self.twin_only += twin and not canary
        self.both += canary and twin


@dataclass(slots=True)
class EventCounts(LegCounts):
    """`unanswered`: pairs in which canary's leg has the event, and stable had no room for the same copy."""

    unanswered: int = 0


@dataclass(slots=True)
class LatencyCounts:
    """Pairs with a latency on both sides; `over`: canary's is longer than its twin's by more than the slowdown.

    `tail_pairs`: pairs of strata with a tail threshold. The other `tail_` counts: those with a leg slower than it.
    """

    pairs: int = 0
    over: int = 0
    tail_pairs: int = 0
    tail_canary_only: int = 0
    tail_twin_only: int = 0
    tail_both: int = 0

    def count(self, limit: TwinLatency, stratum: str, canary_s: float, twin_s: float) -> None:
        self.pairs += 1
        self.over += canary_s * 100 > twin_s * (100 + limit.max_slowdown)
        found = next((one.microseconds / 1e6 for one in limit.tail if one.stratum == stratum), None)
        if found is None:
            return
        slow, twin_slow = canary_s > found, twin_s > found
        self.tail_pairs += 1
        self.tail_canary_only += slow and not twin_slow
        self.tail_twin_only += twin_slow and not slow
        self.tail_both += slow and twin_slow


@dataclass(slots=True)
class ProbeCounts(LegCounts):
    """`pairs`: pairs that are probes, which all other counts include too. The counts by leg: bad ones among them."""

    pairs: int = 0


@dataclass(slots=True)
class QualityCounts:
    """Pairs whose responses were compared.

    `texts`: pairs with both texts; `differ`: those with two different texts. `scored`: pairs in which both servers
    scored the `tokens` of the twin's response; flips: tokens that are not the server's first choice. The counts by leg:
    pairs in which more than one token in a hundred is a flip.
    """

    texts: int = 0
    differ: int = 0
    scored: int = 0
    tokens: int = 0
    canary_flips: int = 0
    twin_flips: int = 0
    canary_only: int = 0
    twin_only: int = 0
    both: int = 0

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


@dataclass(slots=True)
class ScoreCounts:
    """Pairs that a scorer rated, and those without a result. `open`: calls in progress, in no other count.

    `canary_only`: pairs in which canary's response is the worse one by more than the margin. `rated`: pairs with a
    score for each response, whose sums are in thousandths. Pairs that are `dropped` or `blocked` were not sent to the
    scorer; `unanswered` and `invalid` ones were.
    """

    open: int = 0
    scored: int = 0
    canary_only: int = 0
    twin_only: int = 0
    rated: int = 0
    canary_thousandths: int = 0
    twin_thousandths: int = 0
    unanswered: int = 0
    invalid: int = 0
    dropped: int = 0
    blocked: int = 0

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
class TwinCounts:
    """Counts of one canary in one generation. `open`: pairs that were sent and have not ended, not part of `pairs`."""

    open: int = 0
    pairs: int = 0
    events: dict[str, EventCounts] = field(default_factory=lambda: {name: EventCounts() for name in EVENTS})
    latencies: dict[str, LatencyCounts] = field(default_factory=dict)
    withheld: Counter[str] = field(default_factory=Counter)
    probes: ProbeCounts = field(default_factory=ProbeCounts)
    quality: QualityCounts = field(default_factory=QualityCounts)
    scores: ScoreCounts = field(default_factory=ScoreCounts)
    agreements: AgreementCounts = field(default_factory=AgreementCounts)

    def begin(self) -> None:
        """Both copies of a pair are being sent."""
        self.open += 1

    def end(
        self,
        shadow: TwinShadow,
        stratum: str,
        canary: RequestOutcome,
        twin: RequestOutcome,
        *,
        probe: bool = False,
    ) -> None:
        """Both legs of a pair ended."""
        self.open -= 1
        self.pairs += 1
        kinds, twin_kinds = _events(canary), _events(twin)
        for name in kinds | twin_kinds:
            self.events[name].count(canary=name in kinds, twin=name in twin_kinds)
        if probe:
            self.probes.pairs += 1
            self.probes.count(canary=BAD in kinds, twin=BAD in twin_kinds)
        for limit in shadow.latencies:
            seconds, twin_seconds = _seconds(canary, limit.measure), _seconds(twin, limit.measure)
            if seconds is not None and twin_seconds is not None:
                times = self.latencies.setdefault(limit.measure, LatencyCounts())
                times.count(limit, stratum, seconds, twin_seconds)

    def end_on_failure(self, canary: RequestOutcome, own: RequestOutcome, again: RequestOutcome | None) -> None:
        """A copy ended that was sent to canary alone, because there is no twin.

        Args:
            canary: canary's outcome.
            own: outcome of stable's response to the client, which counts where canary's is good.
            again: outcome of the same copy at a pod of stable, where canary's is bad; None: there was no room for it.
        """
        self.open -= 1
        self.pairs += 1
        kinds, own_kinds, again_kinds = _events(canary), _events(own), _events(again) if again else frozenset[str]()
        for name in kinds | own_kinds:
            counts = self.events[name]
            if name not in kinds:
                counts.count(canary=False, twin=True)
            elif again is None:
                counts.unanswered += 1
            else:
                counts.count(canary=True, twin=name in again_kinds)

    def drop(self) -> None:
        """A probe ended that neither leg answered: it counts as withheld and not as a pair."""
        self.open -= 1
        self.withheld[PROBE_FAILED] += 1

    def cancel(self) -> None:
        """The gateway ends: the pair has no outcome."""
        self.open -= 1

    def report(self) -> dict[str, Any]:
        return {
            "open": self.open,
            "pairs": self.pairs,
            "events": {name: asdict(found) for name, found in self.events.items()},
            "latencies": {measure: asdict(times) for measure, times in self.latencies.items()},
            "withheld": dict(self.withheld),
            "probes": asdict(self.probes),
            "quality": asdict(self.quality),
            "scores": asdict(self.scores),
            "agreements": asdict(self.agreements),
        }


def _events(outcome: RequestOutcome) -> frozenset[str]:
    bad = () if BAD_KINDS.isdisjoint(outcome.bad) else (BAD,)
    return frozenset((*bad, *outcome.bad))


def _seconds(outcome: RequestOutcome, measure: str) -> float | None:
    found: Mapping[str, float] = outcome.seconds
    return found.get(measure)
