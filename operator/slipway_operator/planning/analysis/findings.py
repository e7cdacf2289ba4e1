"""Verdicts as the status shows them: odds and percentages in place of logarithms, and sentences."""

import math
from dataclasses import replace
from datetime import datetime

from slipway_operator.api.v1alpha1.analysis_run import MetricRow, Reason, RunVerdict
from slipway_operator.api.v1alpha1.status import StepVerdict
from slipway_operator.model.analysis.verdict import MetricVerdict, Verdict


def shown(verdict: Verdict, former: RunVerdict | None, now: datetime) -> RunVerdict:
    """A verdict for the status; `since` is kept while outcome and reason are the same."""
    same = former is not None and (former.outcome, former.reason) == (verdict.outcome, verdict.reason)
    return RunVerdict(
        outcome=verdict.outcome,
        reason=verdict.reason,
        message=verdict.message,
        since=former.since if former and same else now,
        evidence=odds(verdict.log_evidence),
        threshold=odds(verdict.log_threshold),
        metric=verdict.metric or None,
        samples=verdict.samples,
        needed=verdict.samples_needed,
        seconds_left=verdict.seconds_left,
        extra=verdict.extra,
        pairs=verdict.pairs,
        quality=verdict.quality,
        scores=verdict.scores,
        predictions=verdict.predictions,
        cost=verdict.cost,
        metrics=tuple(_row(row) for row in verdict.metrics),
    )


def without_split(verdict: Verdict, weight: int) -> Verdict:
    """The verdict, with the reason why there is no data where one side has all requests, as in a blue-green switch."""
    if verdict.reason not in (Reason.NO_DATA, Reason.WARM_UP) or 0 < weight < 100:
        return verdict
    text = f"no request is split between the two while the weight is {weight}; give the metrics a provider"
    return replace(verdict, reason=Reason.NO_DATA, message=text)


def odds(log: float) -> str:
    """e to the power of a logarithm, in three digits; as a power of ten where it is very large or very small."""
    if abs(log) > 100:
        return f"10^{log / math.log(10):.0f}"
    return f"{math.exp(log):.3g}"


def sentence(verdict: StepVerdict | None) -> str:
    """The verdict as a message, with the expected time to a decision."""
    if verdict is None:
        return "counting"
    left = f"; about {time_left(verdict)}" if verdict.seconds_left is not None else ""
    return f"{verdict.outcome}, {verdict.reason}: {verdict.message}{left}"


def time_left(verdict: StepVerdict | None) -> str:
    """The expected time to a decision, such as `4 min left`; empty where it is unknown."""
    known = verdict is not None and verdict.seconds_left is not None
    return f"{_duration(verdict.seconds_left)} left" if known and verdict and verdict.seconds_left is not None else ""


def _row(row: MetricVerdict) -> MetricRow:
    return MetricRow(
        name=row.name,
        finding=str(row.finding),
        canary_samples=row.canary_units,
        stable_samples=row.stable_units,
        canary_bad=row.canary_bad,
        stable_bad=row.stable_bad,
        evidence=odds(row.log_evidence),
        threshold=odds(row.log_threshold),
        canary_rate=_percent(row.canary_rate),
        stable_rate=_percent(row.stable_rate),
        needed=row.samples_needed,
    )


def _percent(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.2%}"


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
