"""Counts of twin shadows: what a canary pod and its twin answered to the same copy of a request (pure).

A pair exists from the moment at which both copies are sent; each copy with its response is a leg. A copy that is not
answered in time is a bad event of its leg, so a canary cannot hide by refusing copies. Whether a pair is sent depends
on no response.
"""

from collections.abc import Mapping
from typing import Self

from slipway_contracts.counters import PROBE_FAILED, EventCounts, LatencyCounts, TwinCounts, zero
from slipway_contracts.twin_shadow import TwinShadow

from ..wire.responses import KINDS, REDACTED, TRUNCATED
from .outcome import RequestOutcome

# Any of these kinds of failure: all except truncated text, which a longer and better answer may have, and redacted
# text, which clients get.
BAD, BAD_KINDS = "bad", frozenset(KINDS) - {TRUNCATED, REDACTED}
EVENTS = (BAD, *KINDS)
# Why a pair was not sent: both copies are sent or none. `probe_failed`: a probe that was sent, and that neither leg
# answered, is not counted as a pair. It may not fit this model at all, and a canary must not pass by what nothing can
# answer. No other outcome is left out.
WITHHELD = (
    RATE, BUSY, FULL, TOO_LARGE, FAILSAFE, NO_CANARY, NO_TWIN, CANARY_REFUSED, TWIN_REFUSED, _,
) = (
    "rate", "busy", "full", "too_large", "failsafe", "no_canary", "no_twin", "canary_refused", "twin_refused",
    PROBE_FAILED,
)  # fmt: skip


class TwinTally(TwinCounts):
    """Counts the pairs of one canary in one generation."""

    __slots__ = ()

    @classmethod
    def begun(cls) -> Self:
        """Nothing is counted yet."""
        return cls(0, 0, {name: zero(EventCounts) for name in EVENTS}, {}, {})

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
                times = self.latencies.setdefault(limit.measure, zero(LatencyCounts))
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
        self.withhold(PROBE_FAILED)

    def cancel(self) -> None:
        """The gateway ends: the pair has no outcome."""
        self.open -= 1

    def withhold(self, reason: str) -> None:
        """A pair is not sent, for one of the reasons in `WITHHELD`."""
        self.withheld[reason] = self.withheld.get(reason, 0) + 1


def _events(outcome: RequestOutcome) -> frozenset[str]:
    bad = () if BAD_KINDS.isdisjoint(outcome.bad) else (BAD,)
    return frozenset((*bad, *outcome.bad))


def _seconds(outcome: RequestOutcome, measure: str) -> float | None:
    found: Mapping[str, float] = outcome.seconds
    return found.get(measure)
