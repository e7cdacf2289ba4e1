"""Metrics with a provider, by the rules of Argo Rollouts: phases of measurements and metrics, and the joint verdict.

The rules are those of Argo's analysis controller (`assessMetricStatus`, `EvaluateResult`) with two exceptions, so that
no canary passes without data: a comparison with NaN is inconclusive instead of false, and a metric that was never
measured is not successful.
"""

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipway_operator.api.v1alpha1.analysis_run import Outcome, Reason
from slipway_operator.api.v1alpha1.provider import AnalysisPhase, Measurement, MetricRun
from slipway_operator.model.analysis import expression
from slipway_operator.model.analysis.measure import MOST_KEPT, Measure, ProviderAnswer
from slipway_operator.model.analysis.verdict import Verdict
from slipway_operator.model.text import printable

VALUE_LIMIT, MESSAGE_LIMIT = 128, 256
_LARGEST_SHOWN = 10**18


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric with a provider, and its run: the measurements so far and their phase."""

    metric: Measure
    run: MetricRun


def measured(metric: Measure, answer: ProviderAnswer, at: datetime) -> Measurement:
    """The measurement of a provider's response, with the phase that the conditions of its metric give."""
    if answer.problem:
        return Measurement(at, AnalysisPhase.ERROR, message=_short(answer.problem, MESSAGE_LIMIT))
    value = _short(shown(answer.value), VALUE_LIMIT)
    if metric.job:
        phase, message = (
            AnalysisPhase.SUCCESSFUL if answer.value is True else AnalysisPhase.FAILED,
            answer.message,
        )
    else:
        phase, message = _by_conditions(metric, answer.value)
    return Measurement(at, phase, value, _short(message, MESSAGE_LIMIT))


def noted(metric: Measure, run: MetricRun, one: Measurement) -> MetricRun:
    """The run of a metric with one more measurement, and its new phase and message."""
    grown = dataclasses.replace(
        run,
        successful=run.successful + (one.phase is AnalysisPhase.SUCCESSFUL),
        failed=run.failed + (one.phase is AnalysisPhase.FAILED),
        inconclusive=run.inconclusive + (one.phase is AnalysisPhase.INCONCLUSIVE),
        error=run.error + (one.phase is AnalysisPhase.ERROR),
        consecutive_success=run.consecutive_success + 1 if one.phase is AnalysisPhase.SUCCESSFUL else 0,
        consecutive_error=run.consecutive_error + 1 if one.phase is AnalysisPhase.ERROR else 0,
        measurements=(*run.measurements, one)[-MOST_KEPT:],
    )
    phase, message = _assessed(metric, grown)
    last = f": {one.message}" if one.message and phase not in (AnalysisPhase.RUNNING, AnalysisPhase.SUCCESSFUL) else ""
    return dataclasses.replace(grown, phase=phase, message=_short(message + last, MESSAGE_LIMIT))


def composed(verdict: Verdict, known: Iterable[Measured]) -> Verdict:
    """The worse of the comparison's verdict and those of the measured metrics; dry-run metrics do not count."""
    deciding = [item for item in known if not item.metric.dry_run]
    if verdict.outcome is Outcome.FAIL:
        return verdict
    for phase, outcome, reason in (
        (AnalysisPhase.FAILED, Outcome.FAIL, Reason.METRIC_FAILED),
        (AnalysisPhase.ERROR, Outcome.FAIL, Reason.METRIC_ERROR),
        (AnalysisPhase.INCONCLUSIVE, Outcome.INCONCLUSIVE, Reason.METRIC_INCONCLUSIVE),
    ):
        if found := next((item for item in deciding if item.run.phase is phase), None):
            return _with_outcome(verdict, outcome, reason, f"{found.metric.name}: {found.run.message}", found)
    if verdict.outcome is not Outcome.PASS:
        return verdict
    if waiting := next((item for item in deciding if not _is_good(item)), None):
        return _with_outcome(verdict, Outcome.INCONCLUSIVE, Reason.MEASURING, _progress(waiting), waiting)
    if not deciding:
        return verdict
    names = ", ".join(item.metric.name for item in deciding)
    return dataclasses.replace(verdict, message=f"{verdict.message}; measured and good: {names}")


def shown(value: Any) -> str:
    """A value as text: a number, a boolean, or a list of them. Of anything else only its type and size.

    A provider's response may contain data that is private to its server's owner; a status has many readers.
    """
    if isinstance(value, list):
        return "[" + ", ".join(_shown_one(item) for item in value[:VALUE_LIMIT]) + "]"
    return _shown_one(value)


def _shown_one(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.6g}"
    if isinstance(value, int):
        return str(value) if abs(value) < _LARGEST_SHOWN else "a huge number"
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    return f"a list of {len(value)} values" if isinstance(value, list) else f"an object with {len(value)} fields"


def _by_conditions(metric: Measure, value: Any) -> tuple[AnalysisPhase, str]:
    """Phase and message. One condition decides alone; with two, a value that meets neither is inconclusive."""
    try:
        good = expression.holds(metric.success, value) if metric.success else None
        bad = expression.holds(metric.failure, value) if metric.failure else None
    except expression.NotANumber as error:
        return AnalysisPhase.INCONCLUSIVE, f"{error} compares NaN: there is no data"
    except expression.Unclear as error:
        return AnalysisPhase.ERROR, str(error)
    if bad or (bad is None and good is False):
        text = f"failureCondition {metric.failure} holds" if bad else f"successCondition {metric.success} does not hold"
        return AnalysisPhase.FAILED, f"{text} for {_short(shown(value), VALUE_LIMIT)}"
    if good or good is None:
        return AnalysisPhase.SUCCESSFUL, ""
    return AnalysisPhase.INCONCLUSIVE, "neither successCondition nor failureCondition holds"


def _assessed(metric: Measure, run: MetricRun) -> tuple[AnalysisPhase, str]:
    """Phase and message of a metric: limits first, in Argo's order; then whether it is complete."""
    if run.failed > metric.failure_limit >= 0:
        return AnalysisPhase.FAILED, f"{run.failed} failed, failureLimit is {metric.failure_limit}"
    if run.inconclusive > metric.inconclusive_limit:
        return (
            AnalysisPhase.INCONCLUSIVE,
            f"{run.inconclusive} inconclusive, inconclusiveLimit is {metric.inconclusive_limit}",
        )
    if run.consecutive_error > metric.error_limit:
        return (
            AnalysisPhase.ERROR,
            f"{run.consecutive_error} errors in a row, consecutiveErrorLimit is {metric.error_limit}",
        )
    if 0 < metric.success_limit <= run.consecutive_success:
        return AnalysisPhase.SUCCESSFUL, f"{run.consecutive_success} good ones in a row"
    if metric.count is None or run.count < metric.count:
        return AnalysisPhase.RUNNING, ""
    if metric.success_limit:
        return (
            AnalysisPhase.INCONCLUSIVE,
            f"never {metric.success_limit} good ones in a row, as consecutiveSuccessLimit requires",
        )
    return AnalysisPhase.SUCCESSFUL, f"{run.successful} of {run.count} good"


def _is_good(item: Measured) -> bool:
    """Whether a metric is complete and successful; for an endless one, whether its last measurement was successful."""
    if item.metric.endless and item.run.measurements:
        return item.run.measurements[-1].phase is AnalysisPhase.SUCCESSFUL
    return item.run.phase is AnalysisPhase.SUCCESSFUL


def _progress(item: Measured) -> str:
    run, count = item.run, item.metric.count
    of = f" of {count}" if count else ""
    last = run.measurements[-1] if run.measurements else None
    why = f"; the last one: {last.phase}{': ' + last.message if last.message else ''}" if last else ""
    return f"{item.metric.name}: {run.count}{of} measurements{why}"


def _with_outcome(verdict: Verdict, outcome: Outcome, reason: Reason, message: str, item: Measured) -> Verdict:
    """The verdict with another outcome and the same rows, without a forecast: that is about the comparison alone."""
    return dataclasses.replace(
        verdict,
        outcome=outcome,
        reason=reason,
        message=message,
        metric=item.metric.name,
        samples_needed=None,
        seconds_left=None,
    )


def _short(text: str, limit: int) -> str:
    line = printable(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"
