"""The bounds of a run's metrics over time, and what its ramp may have cost: for people, and for the console.

They decide nothing. When a series is full, every second point is dropped, and the newest one stays.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from slipway_operator.api.v1alpha1.analysis_run import MOST_POINTS, HarmPoint, MetricSeries, RunStatus, SeriesPoint
from slipway_operator.judging.margins.intervals import interval, unit_of
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec

T = TypeVar("T")


def noted(run: RunStatus, spec: AnalysisSpec) -> RunStatus:
    """The run with a point of each metric that has a bound, as of its last reading."""
    seconds = int((run.read_at - run.started_at).total_seconds())
    harm = (*run.harm, HarmPoint(seconds, run.ramp.spent, run.ramp.weight)) if run.ramp else run.harm
    return replace(run, series=tuple(_series(run, spec, seconds)), harm=_thinned(harm))


def _series(run: RunStatus, spec: AnalysisSpec, seconds: int) -> Iterator[MetricSeries]:
    former = {item.metric: item for item in run.series}
    for metric in spec.metrics:
        if (unit := unit_of(metric)) is None:
            continue
        before = former.get(metric.name)
        points = before.points if before and (before.unit, before.limit) == unit else ()
        point = _point(run, spec, metric, seconds)
        yield MetricSeries(metric.name, *unit, _thinned((*points, *([point] if point else ()))))


def _point(run: RunStatus, spec: AnalysisSpec, metric: MetricSpec, seconds: int) -> SeriesPoint | None:
    if metric.of_cost:
        cost = run.cost
        return SeriesPoint(seconds, cost.low, cost.high, cost.minutes) if cost and cost.minutes else None
    epochs = next((item.epochs for item in run.counts if item.metric == metric.name), ())
    found = interval(metric, epochs, run.shadow, spec.false_promote_rate)
    if found is None:
        return None
    low, high = (float(f"{end:.4g}") for end in found)
    return SeriesPoint(seconds, low, high, sum(epoch.canary_units for epoch in epochs))


def _thinned(points: tuple[T, ...]) -> tuple[T, ...]:
    return points if len(points) <= MOST_POINTS else points[::-1][::2][::-1]
