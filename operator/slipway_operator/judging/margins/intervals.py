"""The bounds of one metric from both sides, for the series of a run. They decide nothing."""

from collections.abc import Sequence

import numpy as np

from slipway_operator.api.v1alpha1.analysis_run import Epoch
from slipway_operator.api.v1alpha1.twin_shadow import ShadowRun
from slipway_operator.judging.bounds import ratio_interval
from slipway_operator.judging.margins import paired
from slipway_operator.judging.margins.extra import extra_upper, live_bets, live_extra_upper, stakes
from slipway_operator.model.analysis.spec import Kind, MetricSpec

THOUSAND = 1000
EXTRA, RATIO, COST = "ExtraPerThousand", "Ratio", "CostRatio"

Interval = tuple[float, float]


def unit_of(metric: MetricSpec) -> tuple[str, float] | None:
    """What is bounded of a metric, and the limit of it; None of one whose result is no such bound."""
    if metric.of_cost:
        return (COST, 1 + metric.max_cost_increase) if metric.max_cost_increase is not None else None
    if metric.of_predictions or metric.of_agreement or (metric.is_paired and metric.max_extra is None):
        return None
    return (EXTRA, metric.max_extra) if metric.max_extra is not None else (RATIO, metric.max_ratio)


def interval(metric: MetricSpec, epochs: Sequence[Epoch], shadow: ShadowRun | None, level: float) -> Interval | None:
    """Lower and upper bound of a metric that `unit_of` knows, each at `level`; None before both sides have requests."""
    if metric.is_paired:
        return _of_pairs(metric, epochs, shadow or ShadowRun(), level) if epochs else None
    split = [epoch for epoch in epochs if epoch.canary_units and epoch.stable_units]
    if not split:
        return None
    weights = np.array([epoch.weight / 100 for epoch in split])
    canary, stable = (np.array([getattr(e, name) for e in split]) for name in ("canary_bad", "stable_bad"))
    if metric.max_extra is None or metric.kind is Kind.PAIRED_DRIFT:
        ends = ratio_interval(canary, stable, weights, level)
        return float(ends[0]), float(ends[1])
    units, margin = np.array([epoch.canary_units + epoch.stable_units for epoch in split]), metric.max_extra / THOUSAND
    high, low = (
        THOUSAND * float(live_extra_upper(on, off, units, part, live_bets(part, margin), level))
        for on, off, part in ((canary, stable, weights), (stable, canary, 1 - weights))
    )
    return -low, high


def _of_pairs(metric: MetricSpec, epochs: Sequence[Epoch], shadow: ShadowRun, level: float) -> Interval:
    counts = paired.PairCounts.of(epochs, shadow.open, on_failure=shadow.on_failure, unknown=metric.scorer is not None)
    bad = next((paired.FormerBad(it.bad, it.units) for it in shadow.former if it.metric == metric.name), None)
    bets = stakes((bad or paired.FormerBad()).rate, (metric.max_extra or 0) / THOUSAND)
    sides = ((counts.canary_only, counts.twin_only), (counts.twin_only, counts.canary_only))
    high, low = (THOUSAND * float(extra_upper(*side, counts.pairs, bets, level)) for side in sides)
    return -low, high
