"""When metrics with a provider are measured, and what the status records of it.

Nothing is written when a measurement starts: the number of measurements in the status gives the number of the next one.
So a restarted operator takes the same measurement under the same key, and never one more than the limits allow.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from slipway_contracts.api.times import format_time
from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.api.v1alpha1.provider import AnalysisPhase, MetricRun
from slipway_operator.judging.measurement import Measured, measured, noted
from slipway_operator.manifests.job import analysis_job
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.analysis.measure import ERROR_RETRY_S, Argument, Measure, Question, filled
from slipway_operator.model.analysis.spec import AnalysisSpec
from slipway_operator.planning.facts.situation import Course, Situation


def with_answers(at: Situation, run: RunStatus, spec: AnalysisSpec) -> tuple[MetricRun, ...]:
    """The runs of the metrics with a provider, with every response that the status does not have yet."""
    known = [_of(run, metric) for metric in spec.measured]
    return tuple(_with_answer(at, run, metric, one) for metric, one in zip(spec.measured, known, strict=True))


def state(run: RunStatus, spec: AnalysisSpec) -> tuple[Measured, ...]:
    """Each metric with a provider, and its run."""
    return tuple(Measured(metric, _of(run, metric)) for metric in spec.measured)


def is_endless(spec: AnalysisSpec | None) -> bool:
    """Whether a metric that decides is measured for as long as the analysis lasts."""
    return spec is not None and any(metric.endless and not metric.dry_run for metric in spec.measured)


def questions(
    owner: Owner, course: Course, at: Situation, runs: Iterable[tuple[RunStatus, AnalysisSpec]]
) -> Iterator[Question]:
    """Every measurement that is due now. The runner knows which are in progress already.

    No measurement is due while scaled to zero: a bad one would not be the revision's fault.
    """
    if at.replicas == 0:
        return
    for run, spec in runs:
        values = dict(_values(owner, course, spec.arguments))
        for metric in spec.measured:
            one = _of(run, metric)
            if _is_due(at, run, metric, one):
                measure, key = filled(metric, values), _key(at, run, metric, one)
                yield Question(key, measure, analysis_job(owner, key, measure.job) if measure.job else None)


def moments(run: RunStatus, spec: AnalysisSpec) -> Iterator[datetime]:
    """The time of the next measurement of each metric."""
    for metric in spec.measured:
        one = _of(run, metric)
        if one.phase is AnalysisPhase.RUNNING:
            yield _due_at(run, metric, one)


def _with_answer(at: Situation, run: RunStatus, metric: Measure, one: MetricRun) -> MetricRun:
    answer = at.observed.measured.get(_key(at, run, metric, one))
    if answer is None or one.phase is not AnalysisPhase.RUNNING:
        return one
    return noted(metric, one, measured(metric, answer, at.now))


def _of(run: RunStatus, metric: Measure) -> MetricRun:
    return next((one for one in run.measured if one.name == metric.name), None) or MetricRun(metric.name)


def _is_due(at: Situation, run: RunStatus, metric: Measure, one: MetricRun) -> bool:
    return one.phase is AnalysisPhase.RUNNING and at.now >= _due_at(run, metric, one)


def _due_at(run: RunStatus, metric: Measure, one: MetricRun) -> datetime:
    """When the next measurement is due: an interval after the last one; the first one after initialDelay.

    Without an interval an error is retried after ERROR_RETRY_S, as in Argo.
    """
    if not one.measurements:
        return run.started_at + timedelta(seconds=metric.initial_delay_s)
    return one.measurements[-1].at + timedelta(seconds=metric.interval_s or ERROR_RETRY_S)


def _key(at: Situation, run: RunStatus, metric: Measure, one: MetricRun) -> str:
    """UID/RUN/START/TEMPLATE/METRIC/NUMBER, with START because a revision may roll out as attempt 1 again."""
    begun = f"{format_time(run.started_at)}/{run.template_hash}"
    return f"{at.uid}/{run.id}/{begun}/{metric.name}/{one.taken + 1}"


def _values(owner: Owner, course: Course, arguments: Iterable[Argument]) -> Iterator[tuple[str, str]]:
    """Names and values of the arguments."""
    sources = {
        "Stable": course.stable or "",
        "Latest": course.target or "",
        "metadata.name": owner.name,
        "metadata.namespace": owner.namespace,
    }
    for argument in arguments:
        yield argument.name, sources[argument.source] if argument.value is None else argument.value
