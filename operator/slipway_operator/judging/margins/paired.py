"""Pairs of a twin shadow: what they hold against canary, and what they prove about it.

In a metric's counts of an epoch, `canary_units` is the number of pairs. For an event, `canary_bad` counts those in
which canary alone is bad, `stable_bad` those in which its twin alone is. For a latency, `canary_bad` counts those in
which canary is slower than its twin by more than the margin. Latencies above stable's quantile, the tail, have counts
of their own, as an event has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipway_operator.api.v1alpha1.analysis_run import Epoch, ExtraBound
from slipway_operator.judging.drift import log_drift_evidence
from slipway_operator.judging.evidence import Floats
from slipway_operator.judging.margins.extra import (
    FROM_THE_START,
    ON_THE_BEST,
    extra_upper,
    log_extra_over_starts,
    stakes,
)
from slipway_operator.judging.margins.slowness import FEWER, MORE, log_faster, log_slower
from slipway_operator.model.analysis.spec import MetricSpec

# A canary that is fast enough in the median may have a slow tail: at most this part more of its responses may be slow.
TAIL = 0.05
THOUSAND = 1000
# Added to stable's counts: half a bad response in 100, so that the rate is 1 in 200 where nothing is known of stable.
_BAD, _UNITS = 0.5, 100
# Added to the pairs of a forecast of latencies, a third of them slower by the margin, so that few pairs mean little.
_FEW = 10
# A forecast of more pairs is not useful.
_MOST = 1e8


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts of pairs by clock epoch, as arrays of shape (..., epochs); leading axes are for example runs."""

    pairs: Floats
    canary_only: Floats
    twin_only: Floats

    @classmethod
    def of(
        cls, epochs: Sequence[Epoch], open_pairs: int = 0, *, on_failure: bool = False, unknown: bool = False
    ) -> "PairCounts":
        """The counts of these epochs, as arrays of shape (epochs,).

        `open_pairs`: pairs that have not ended. They count as bad, and as slow, on canary alone, because bad pairs may
        be those that end late.
        `on_failure`: there is no twin; stable repeats what canary fails. With X = 1 for a bad response, Xc of canary
        and Xr of the repetition, failures of canary alone are Xc(1-Xr) >= Xc-Xr: a bound on them bounds the difference.
        A failure that no stable pod had room to repeat (in `canary_units`, not in `stable_units`) counts as canary's
        alone, and failures of stable alone are unknown and count as 0.
        `unknown`: pairs without a result (in `canary_units`, not in `stable_units`) count as bad on canary alone, the
        worst case.
        """
        rows = [
            [
                epoch.canary_units,
                epoch.canary_bad + (epoch.canary_units - epoch.stable_units) * (on_failure or unknown),
                0 if on_failure else epoch.stable_bad,
            ]
            for epoch in epochs
        ] or [[0, 0, 0]]
        rows[-1] = [rows[-1][0] + open_pairs, rows[-1][1] + open_pairs, rows[-1][2]]
        pairs, canary, twin = np.array(rows, dtype=np.float64).T
        return cls(pairs, canary, twin)


@dataclass(frozen=True, slots=True)
class FormerBad:
    """Bad and all sessions of stable before the first pair: they determine stakes, never the validity of a bet."""

    bad: int = 0
    units: int = 0

    @property
    def rate(self) -> float:
        """The rate of bad sessions, up to 0.5; near 1 in 200 where there are few sessions."""
        return min(0.5, (self.bad + _BAD) / (self.units + _UNITS))


# What the stakes on the tail expect: about one response in twenty is above a p95.
_AT_P95 = FormerBad(5)


def log_against(spec: MetricSpec, counts: PairCounts) -> Floats:
    """ln of the evidence that canary is worse than its twin, or slower by more than the margin, shape (...)."""
    # Without a twin, canary_only counts what canary fails and the repetition by stable does not, and twin_only what
    # stable failed for its client and canary does not. Of equal versions each is a failure in just one of two draws, so
    # the coin is fair.
    if spec.latency:
        return log_slower(counts.canary_only.sum(axis=-1), counts.pairs.sum(axis=-1))
    return log_drift_evidence(counts.canary_only, counts.twin_only)


def log_within_extra(counts: PairCounts, margin: float, former: FormerBad) -> Floats:
    """ln of the evidence that canary has fewer extra bad responses for each pair than `margin`, shape (...)."""
    bets = stakes(former.rate, margin)
    return log_extra_over_starts(counts.canary_only, counts.twin_only, counts.pairs, margin, bets)


def log_within_slowdown(counts: PairCounts) -> Floats:
    """ln of the evidence that canary is slower by less than the margin in the median, shape (...)."""
    return log_faster(counts.canary_only.sum(axis=-1), counts.pairs.sum(axis=-1))


def log_within(spec: MetricSpec, counts: PairCounts, tail: PairCounts, former: FormerBad) -> Floats:
    """ln of the evidence that canary is within the metric's margin, shape (...); for latency in median and tail."""
    if spec.latency:
        return np.minimum(log_within_slowdown(counts), log_within_extra(tail, TAIL, _AT_P95))
    if spec.max_extra is None:
        return np.full(counts.pairs.shape[:-1], -math.inf)
    return log_within_extra(counts, spec.max_extra / THOUSAND, former)


def bound(spec: MetricSpec, counts: PairCounts, former: FormerBad, level: float) -> ExtraBound | None:
    """The bound on extra bad responses per 1,000, rounded up: what is shown is proved. None without max_extra."""
    if spec.max_extra is None:
        return None
    bets = stakes(former.rate, spec.max_extra / THOUSAND)
    at_most = float(extra_upper(counts.canary_only, counts.twin_only, counts.pairs, bets, level))
    pairs, extra = float(counts.pairs.sum()), float((counts.canary_only - counts.twin_only).sum())
    estimate = round(THOUSAND * extra / pairs, 1) if pairs else 0.0
    return ExtraBound(math.ceil(10 * THOUSAND * at_most) / 10, estimate, spec.max_extra)


# -- forecasts: after how many pairs a metric is expected to be decided at the present rates (Wald's identity)


def pairs_needed(spec: MetricSpec, counts: PairCounts, tail: PairCounts, former: FormerBad, level: float) -> int | None:
    """Pairs until this metric is expected to pass; None where no end is in sight."""
    if spec.latency:
        found = max(_until_faster(counts, level), _until_below(tail, TAIL, _AT_P95, level))
    elif spec.max_extra is not None:
        found = _until_below(counts, spec.max_extra / THOUSAND, former, level)
    else:
        found = math.inf
    return math.ceil(found) if found < _MOST else None


def pairs_until_rejected(spec: MetricSpec, counts: PairCounts, level: float) -> int | None:
    """Pairs until this metric alone is expected to reject canary; None where the counts do not point to that."""
    pairs, canary, twin = (float(item.sum()) for item in (counts.pairs, counts.canary_only, counts.twin_only))
    trials = pairs if spec.latency else canary + twin
    if not pairs or 2 * canary <= trials:
        return None
    share, needed = (
        (canary + 0.5) / (trials + 1),
        math.log(1 / (level * (spec.share or 1.0) * 0.5)) + math.log(len(MORE)),
    )
    found = needed / _coin(share) * pairs / trials
    return math.ceil(found) if found < _MOST else None


def _until_below(counts: PairCounts, margin: float, former: FormerBad, level: float) -> float:
    pairs = float(counts.pairs.sum())
    if not pairs:
        return math.inf
    sides, as_before = (counts.canary_only, counts.twin_only), former.rate * _UNITS
    canary, twin = ((float(item.sum()) + as_before) / (pairs + _UNITS) for item in sides)
    growth = max(
        canary * math.log1p(size * (margin - 1))
        + twin * math.log1p(size * (margin + 1))
        + max(0.0, 1 - canary - twin) * math.log1p(size * margin)
        for size in stakes(former.rate, margin).sizes
    )
    needed = -math.log(level * ON_THE_BEST * FROM_THE_START)
    return needed / growth if growth > 0 else math.inf


def _until_faster(counts: PairCounts, level: float) -> float:
    pairs = float(counts.pairs.sum())
    share = (float(counts.canary_only.sum()) + _FEW / 3) / (pairs + _FEW)
    return (math.log(1 / level) + math.log(len(FEWER)) / 2) / _coin(share) if share < 0.5 else math.inf


def _coin(share: float) -> float:
    """Kullback-Leibler divergence of a coin with this share from a fair one, in nats; never 0."""
    terms = (part * math.log(2 * part) for part in (share, 1 - share) if part > 0)
    return max(1e-12, sum(terms))
