"""The brake: a canary that is grossly slow during its warm-up gets the least weight until the warm-up is over.

Latencies do not count during the warm-up, because a cold pod is slow. But a canary whose requests take many times as
long as stable's harms users until a verdict, so its weight is reduced at once. That is no verdict: the rollout goes on.
"""

import math

from slipway_operator.api.v1alpha1.analysis_run import Counts, RunStatus
from slipway_operator.judging.margins.slowness import log_grossly_slower, log_slower_than_stable
from slipway_operator.model.analysis.spec import AnalysisSpec, of_gross


def is_grossly_slow(run: RunStatus, spec: AnalysisSpec) -> bool:
    """Whether a gating latency is often far above stable's quantile on canary, and more often than on stable."""
    needed = math.log(1 / spec.false_rollback_rate)
    counts = {item.metric: item for item in run.counts}
    names = (of_gross(metric.name) for metric in spec.gating if metric.latency)
    return any(_is_gross(counts[name], needed) for name in names if name in counts)


def _is_gross(counts: Counts, needed: float) -> bool:
    canary, stable = [epoch.canary_bad for epoch in counts.epochs], [epoch.stable_bad for epoch in counts.epochs]
    units, weights = sum(epoch.canary_units for epoch in counts.epochs), [epoch.weight / 100 for epoch in counts.epochs]
    if not units or float(log_grossly_slower(sum(canary), units)) < needed:
        return False
    return float(log_slower_than_stable(canary, stable, weights)) >= needed
