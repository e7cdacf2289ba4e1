"""Sentences about a verdict: the numbers behind it, in units that people use."""

import math
from collections.abc import Mapping, Sequence

from slipway_operator.api.v1alpha1.analysis_run import Pace, Reason, Symptom
from slipway_operator.judging import cost
from slipway_operator.judging.margins import disagreement, shadow
from slipway_operator.judging.predictions import row as predictions
from slipway_operator.judging.thresholds import LEAST_SAMPLES
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec
from slipway_operator.model.analysis.template import UNITS
from slipway_operator.model.analysis.verdict import Finding, MetricVerdict, Reading


def differs(row: MetricVerdict) -> str:
    """How many mirrored prompts got another answer from canary, where no second stable pod gives the floor."""
    differ = f"{row.canary_bad} of {row.canary_units} answers differ from stable's"
    return f"{differ}; how many would anyway needs a second stable pod"


def drifts(row: MetricVerdict) -> str:
    """How many mirrored prompts canary alone, and a second stable pod alone, answered unlike stable."""
    sides = f"{row.canary_bad} on canary alone, {row.stable_bad} on a second stable pod alone"
    return f"of {row.canary_units} mirrored prompts {sides}"


def rejection(spec: AnalysisSpec, row: MetricVerdict, reading: Reading, total: float, threshold: float) -> str:
    """Why the canary is rejected, by the metric with the most evidence."""
    metric = next(metric for metric in spec.metrics if metric.name == row.name)
    evidence = f"evidence e={_times(total)}, {_times(threshold)} rejects"
    if row.cost:
        return f"{row.name}: {cost.sentence(metric, row.cost)}; {evidence}"
    if row.disagreement:
        return f"{row.name}: {disagreement.sentence(metric, row.disagreement)}; {evidence}"
    if metric.is_paired:
        return f"{row.name}: {shadow.rejection(metric, row, reading)}; {evidence}"
    if metric.kind is Kind.PAIRED_DRIFT:
        return f"{row.name}: {drifts(row)}; {evidence}"
    if row.drift:
        return f"{row.name}: {predictions.sentence(metric, row.drift)}; {evidence}"
    sides = f"{_rate(row.canary_bad, row.canary_units)} on canary, {_rate(row.stable_bad, row.stable_units)} on stable"
    return f"{row.name}: {_slower(metric, reading.paces)}{sides}; {evidence}"


def _slower(metric: MetricSpec, paces: Sequence[Pace]) -> str:
    """Both medians of a latency, and how many times slower canary is; empty where a side has no median."""
    pace = next((pace for pace in paces if pace.metric == metric.name), None)
    if pace is None or not pace.stable_seconds:
        return ""
    canary, stable = _duration(pace.canary_seconds), _duration(pace.stable_seconds)
    times = pace.canary_seconds / pace.stable_seconds
    how = f", {times:.1f} times slower" if times >= 1.05 else ""
    return f"median {canary} on canary and {stable} on stable{how}; "


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def proofs(spec: AnalysisSpec, rows: Sequence[MetricVerdict]) -> list[str]:
    """What is proved of a canary that passes, where the template has margins."""
    sure = f"{1 - spec.false_promote_rate:.0%}"
    bounds = [f"{row.name}: {bound(row)}, {sure}" for row in rows if row.extra]
    slowdowns = [
        f"{metric.name}: less than {metric.max_slowdown:.0%} slower, {sure}"
        for metric in spec.gating
        if metric.max_slowdown is not None
    ]
    return [*bounds, *slowdowns]


def predictions_of(spec: AnalysisSpec, rows: Sequence[MetricVerdict]) -> list[str]:
    """Sentences on distributions of predictions, and on predictions for mirrored requests, of metrics with them."""
    named = {metric.name: metric for metric in spec.metrics}
    drifts = [f"{row.name}: {predictions.sentence(named[row.name], row.drift)}" for row in rows if row.drift]
    return drifts + [
        f"{row.name}: {disagreement.sentence(named[row.name], row.disagreement)}" for row in rows if row.disagreement
    ]


def costs_of(spec: AnalysisSpec, rows: Sequence[MetricVerdict]) -> list[str]:
    """The sentence on costs, of a metric that compared any."""
    named = {metric.name: metric for metric in spec.metrics}
    return [f"{row.name}: {cost.sentence(named[row.name], row.cost)}" for row in rows if row.cost and row.cost.minutes]


def bound(row: MetricVerdict) -> str:
    """The bound on extra bad responses, with its limit."""
    assert row.extra, "only a metric with maxExtra has a bound"
    return f"at most {row.extra.at_most:g} extra bad responses per 1,000 (limit {row.extra.limit:g})"


def wait(spec: AnalysisSpec, row: MetricVerdict) -> str:
    """What an undecided metric waits for."""
    if row.cost:
        metric = next(metric for metric in spec.metrics if metric.name == row.name)
        return cost.wait(row, cost.sentence(metric, row.cost))
    if row.drift:
        return f"{row.name}: population stability index {row.drift.psi:g} so far, of {row.drift.canary} predictions"
    needed = row.samples_needed
    rest = (
        "no end is in sight at this rate"
        if needed is None
        else f"needs about {max(needed, row.canary_units + 1)} at this rate"
    )
    proved = f"{bound(row)} so far, " if row.extra else ""
    return f"{row.name}: {proved}n={row.canary_units}, {rest}"


def given(reading: Reading) -> tuple[int, int]:
    """Requests that the split assigned to canary and to stable."""
    return sum(epoch.canary_units for epoch in reading.assigned), sum(epoch.stable_units for epoch in reading.assigned)


def nothing(reading: Reading, rows: Sequence[MetricVerdict]) -> str:
    """Which data is missing where no metric can be compared yet."""
    if rows and all(row.disagreement for row in rows):
        return f"no mirrored request has two predictions yet; {disagreement.READ}"
    for side, assigned, ended in zip(
        ("canary", "stable"),
        given(reading),
        (max(row.canary_units for row in rows), max(row.stable_units for row in rows)),
        strict=True,
    ):
        if assigned and not ended:
            return f"{side} was given {assigned} requests, and none of them has ended yet"
    return "no metric has requests on both canary and stable"


def unequal(spec: AnalysisSpec, reading: Reading) -> str:
    """The load that prevents a comparison of latencies, and the remedy."""
    return (
        f"pods of canary carry {reading.canary_load:.2f} times the load of stable's: beyond "
        f"{spec.max_load_difference:.0%} of difference latencies are not comparable; give it more pods by "
        "setCanaryScale, another weight, or the template another maxLoadDifference"
    )


def incomparable(
    spec: AnalysisSpec, waiting: Mapping[Finding, Sequence[MetricVerdict]]
) -> tuple[Reason, str, str] | None:
    """Reason, message and name of a metric whose two sides cannot be compared; None where all can be."""
    if waiting[Finding.NO_FLOOR]:
        row = waiting[Finding.NO_FLOOR][0]
        return Reason.NO_FLOOR, f"{row.name}: {differs(row)}", row.name
    if waiting[Finding.UNEQUAL]:
        row = waiting[Finding.UNEQUAL][0]
        if row.drift:
            return Reason.SAMPLE_RATIO_MISMATCH, unequal_predictions(row), row.name
        return Reason.FEEDBACK_MISMATCH, unequal_feedback(row), row.name
    if not waiting[Finding.NO_DATA]:
        return None
    row = waiting[Finding.NO_DATA][0]
    metric = next(metric for metric in spec.metrics if metric.name == row.name)
    return Reason.NO_DATA, _no_data(metric, row), row.name


def _no_data(metric: MetricSpec, row: MetricVerdict) -> str:
    if metric.of_cost:
        return cost.nothing(row)
    if metric.of_feedback:
        return f"{row.name} has no feedback on responses of canary, or none on those of stable"
    if metric.of_agreement:
        return f"{row.name} has no mirrored request with two predictions; {disagreement.READ}"
    if metric.of_predictions:
        return f"{row.name} has no predictions of canary, or none of stable; {predictions.READ}"
    text = f"{row.name} has no requests on canary, or none on stable"
    return (
        f"{text}, of a size and kind of which stable has the {LEAST_SAMPLES} that define slow"
        if metric.latency
        else text
    )


def unequal_feedback(row: MetricVerdict) -> str:
    """Why feedback is not compared, and the remedy."""
    both = row.canary_units + row.stable_units
    return (
        f"{row.name}: of {both} sessions with feedback {row.canary_units} are canary's, which its weight does not "
        "explain: send feedback on responses of both alike, also on those that are right"
    )


def unequal_predictions(row: MetricVerdict) -> str:
    """Why predictions are not compared."""
    assert row.drift, "of a metric of predictions"
    total = row.drift.canary + row.drift.stable
    return (
        f"{row.name}: of {total} predictions {row.drift.canary} are canary's, which its weight does not explain: its "
        "responses fail, or are read, more or less often than those of stable"
    )


def unit(symptom: Symptom) -> str:
    """The unit of a veto's numbers."""
    unit = UNITS.get(symptom.veto)
    return f" ({unit})" if unit else ""


def warming(spec: AnalysisSpec, reading: Reading) -> str:
    """How much of the warm-up is over."""
    return f"{reading.seconds:.0f} s of {spec.min_samples.warmup_seconds} s of warm-up"


def too_early(spec: AnalysisSpec, reading: Reading) -> tuple[Reason, str, str]:
    """Why a canary does not pass where only minSeconds are not over: reason, message, and no metric."""
    text = f"all is proved; {reading.seconds:.0f} s of {spec.min_samples.min_seconds} s (minSeconds) are over"
    return Reason.UNDECIDED, text, ""


def _rate(bad: int, requests: int) -> str:
    return f"{bad} of {requests} bad ({bad / requests:.2%})"


def _times(log: float) -> str:
    return f"{math.exp(log):.3g}" if log < 100 else f"10^{log / math.log(10):.0f}"
