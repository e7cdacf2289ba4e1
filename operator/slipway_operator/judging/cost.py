"""What tokens, or predictions, of canary cost compared with stable's: one minute, and the row of the metric.

A revision's cost for a token depends on how busy its pods are: an idle canary looks dear, whatever it is. So canary is
compared with what stable's pods would give with as many requests in progress at each, which needs no fitted curve. With
n requests in progress at a pod it gives T(n) units per second. More requests never give less in all, and never more for
each of them, so stable's T at canary's n lies between T and T·n'/n of what was measured at stable's own n. That gives
two ratios of the costs with the true one between them: `by_pod`, price/T of canary by that of stable, and `by_request`,
n·price/T by that of stable. At the same n both are equal; far from it they differ and show nothing.

Canary is dearer in a minute in which even the lower ratio is above the limit, and within it where even the higher one
is not above. A canary that costs the limit exactly is dearer in half of the minutes at most, and not within in half of
them at least: coins, as the latencies of pairs are (`margins/slowness.py`). What that assumes is in docs/judge.md.
"""

import math
from dataclasses import dataclass

from slipway_operator.api.v1alpha1.analysis_run import CostRun, CostSide
from slipway_operator.judging.forecast import MOST_REQUESTS, End, divergence
from slipway_operator.judging.margins.slowness import log_faster, log_slower
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec
from slipway_operator.model.analysis.verdict import Finding, MetricVerdict, Reading

TOKENS, PREDICTIONS = "Tokens", "Predictions"
LEAST_RUNNING = 1.0  # requests in progress at all pods of a side, in the mean of a minute: pods' gauges are looked at
LEAST_PREDICTIONS = 30.0  # in a minute
MILLION, HOUR_S = 1e6, 3600.0


@dataclass(frozen=True, slots=True)
class CostRatio:
    """Canary's cost of a unit by stable's, in one minute: it is between both."""

    low: float
    high: float


def is_idle(side: CostSide, unit: str, seconds: float) -> bool:
    """Whether a side did too little in so many seconds to say what its work costs."""
    if min(side.units, side.running_seconds, side.pod_seconds) <= 0:
        return True
    return side.units < LEAST_PREDICTIONS if unit == PREDICTIONS else side.running_seconds < LEAST_RUNNING * seconds


def ratio(canary: CostSide, stable: CostSide, unit: str, seconds: float) -> CostRatio | None:
    """The ratio in a minute of so many seconds; None where a side was idle."""
    if is_idle(canary, unit, seconds) or is_idle(stable, unit, seconds):
        return None
    by_pod = _per_unit(canary, canary.pod_seconds) / _per_unit(stable, stable.pod_seconds)
    by_request = _per_unit(canary, canary.running_seconds) / _per_unit(stable, stable.running_seconds)
    return CostRatio(min(by_pod, by_request), max(by_pod, by_request))


def per_million(side: CostSide) -> float | None:
    """What a million units cost as the pods were used; None without units."""
    return _per_unit(side, side.pod_seconds) / HOUR_S * MILLION if side.units > 0 else None


def row(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> MetricVerdict:
    """The metric's row in the verdict: minutes, those in which canary was dearer, and the finding."""
    threshold = math.log(1 / spec.false_rollback_rate)
    cost = reading.cost or CostRun()
    if not cost.minutes:
        return MetricVerdict(metric.name, Finding.NO_DATA, log_threshold=threshold, cost=cost)
    evidence, finding = 0.0, Finding.REPORTED
    if metric.max_cost_increase is not None:
        evidence = float(log_slower(cost.dearer, cost.minutes)) + math.log(metric.share or 1.0)
        proved = float(log_faster(cost.not_within, cost.minutes)) >= math.log(1 / spec.false_promote_rate)
        finding = Finding.NOT_WORSE if proved else Finding.UNDECIDED
        finding = Finding.WORSE if evidence >= threshold else finding
    needed = expected(spec, metric, reading).samples if finding is Finding.UNDECIDED else cost.minutes
    return MetricVerdict(
        metric.name, finding, cost.minutes, cost.minutes, cost.dearer, 0, log_evidence=evidence,
        log_threshold=threshold, samples_needed=needed, cost=cost,
    )  # fmt: skip


def expected(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> End:
    """After how many minutes a verdict is expected, at the present shares."""
    cost = reading.cost or CostRun()
    if metric.max_cost_increase is None or not cost.minutes:
        return End(None, fails=False)
    dearer, outside = ((count + 0.5) / (cost.minutes + 1) for count in (cost.dearer, cost.not_within))
    to_fail = to_pass = math.inf
    if dearer > 1 / 2:
        to_fail = math.log(2 / (metric.share or 1.0) / spec.false_rollback_rate) / divergence(dearer, 1 / 2)
    if outside < 1 / 2:
        to_pass = math.log(2 / spec.false_promote_rate) / divergence(outside, 1 / 2)
    total = min(to_fail, to_pass)
    return End(math.ceil(total) if total < MOST_REQUESTS else None, fails=to_fail < to_pass)


def sentence(metric: MetricSpec, cost: CostRun) -> str:
    """The ratio of the costs with its numbers, for messages."""
    unit = "generated tokens" if cost.unit == TOKENS else "predictions"
    amounts = (per_million(side) for side in (cost.canary, cost.stable))
    used = " and ".join(f"{amount:.3g}" for amount in amounts if amount is not None)
    times = f"{cost.low:.2f}" if f"{cost.low:.2f}" == f"{cost.high:.2f}" else f"{cost.low:.2f} to {cost.high:.2f}"
    text = f"at equal load {unit} cost {times} times what stable's do (a million {used}, as the pods were used)"
    if metric.max_cost_increase is None:
        return text
    limit = f"more than {metric.max_cost_increase:.0%} above stable's"
    return f"{text}; {limit} for certain in {cost.dearer} of {cost.minutes} minutes, possibly in {cost.not_within}"


def nothing(row: MetricVerdict) -> str:
    """Why no minute was compared."""
    cost = row.cost or CostRun()
    if cost.problem:
        return f"{row.name} compares no cost: {cost.problem}"
    if cost.idle:
        return (
            f"{row.name} compares no cost: in {cost.idle} minutes one side was idle, with less than "
            f"{LEAST_RUNNING:g} request in progress on average or {LEAST_PREDICTIONS:g} predictions"
        )
    return f"{row.name} has not compared a minute yet"


def wait(row: MetricVerdict, text: str) -> str:
    """What an undecided cost waits for; `text`: the sentence."""
    cost = row.cost or CostRun()
    apart = cost.low * 1.25 < cost.high
    hint = "; pods with equal load show more: setCanaryScale weight 100 before setWeight 50" if apart else ""
    rest = "no end is in sight" if row.samples_needed is None else f"needs about {row.samples_needed} minutes"
    return f"{row.name}: {text}, {rest}{hint}"


def _per_unit(side: CostSide, seconds: float) -> float:
    return side.price * seconds / side.units
