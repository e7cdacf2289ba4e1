"""The twin shadow of an analysis of pairs: what gateways counted of it, and their table for copying requests."""

from collections.abc import Iterable
from dataclasses import replace

from slipway_contracts.counters import (
    MILLION,
    PROBE_FAILED,
    AgreementCounts,
    EventCounts,
    GenerationCounts,
    LatencyCounts,
    QualityCounts,
    ScoreCounts,
    no_pairs,
    no_requests,
    zero,
)
from slipway_contracts.twin_shadow import (
    ON_FAILURE,
    TailThreshold,
    TwinLatency,
    TwinScorer,
    TwinShadow,
)
from slipway_operator.api.v1alpha1.analysis_run import Reason, RunStatus
from slipway_operator.api.v1alpha1.twin_shadow import FormerRate, ShadowRun
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.model.analysis.spec import TOKENS_FLIP, AnalysisSpec
from slipway_operator.model.analysis.template import BAD_EVENTS, slower
from slipway_operator.model.cluster.observed import Gateway
from slipway_operator.model.deployment.strategy import TwinAnalysis
from slipway_operator.planning.analysis.columns import ColumnPart, CounterColumn
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.sizing import baseline
from slipway_operator.planning.sizing.sizes import sizes_of

MOST_TAILS = 16
OF_ADAPTERS = 10  # percent of the sessions of an adapter: its copies are load of the pods that serve clients
MICROSECONDS = 1_000_000

# -- what gateways counted


def counted(column: CounterColumn, sample: GenerationCounts, canary: str) -> tuple[int, int, int, int]:
    """The four counters of a column: pairs, pairs with a known outcome, those against canary, those against its twin.

    Columns of other parts than WHOLE count what `ColumnPart` describes.
    """
    found, latency = sample.twins.get(canary) or no_pairs(), slower(column.metric.event)
    if column.part is ColumnPart.WITHHELD:
        offered = found.pairs + sum(found.withheld.values())
        return offered, offered, found.starved, found.withheld.get(PROBE_FAILED, 0)
    if column.part is ColumnPart.PROBES:
        return found.probes.pairs, found.probes.pairs, found.probes.canary_only, found.probes.twin_only
    if column.metric.of_agreement:
        return agreements(column, found.agreements)
    if column.metric.event == TOKENS_FLIP:
        return _quality(column, found.quality)
    if column.metric.scorer is not None:
        return _scores(column, found.scores)
    if latency is None:
        events = found.events.get(BAD_EVENTS[column.metric.event], zero(EventCounts))
        return found.pairs, found.pairs - events.unanswered, events.canary_only, events.twin_only
    times = found.latencies.get(latency.kind, zero(LatencyCounts))
    if column.part is ColumnPart.TAIL:
        return times.tail_pairs, times.tail_pairs, times.tail_canary_only, times.tail_twin_only
    return times.pairs, times.pairs, times.over, 0


def agreements(column: CounterColumn, found: AgreementCounts) -> tuple[int, int, int, int]:
    """Copies with two predictions, the number twice, those where canary's is another one, and 0.

    Of the column of copies: all, the number twice, those that failed on canary, and those that could not be read.
    """
    if column.part is not ColumnPart.COPIES:
        return found.compared, found.compared, found.disagreed, 0
    copies = found.compared + found.failed + found.unread
    return copies, copies, found.failed, found.unread


def _quality(column: CounterColumn, found: QualityCounts) -> tuple[int, int, int, int]:
    if column.part is ColumnPart.TEXTS:
        return found.texts, found.texts, found.differ, 0
    if column.part is ColumnPart.TOKENS:
        return found.tokens, found.tokens, found.canary_flips, found.twin_flips
    if column.part is ColumnPart.CHANGED:
        return MILLION * found.compared, MILLION * found.compared, found.changed_millionths, 0
    if column.part is ColumnPart.COPIES:
        copies = found.compared + found.unscored
        return copies, copies, found.unscored, 0
    return found.scored, found.scored, found.canary_only, found.twin_only


def _scores(column: CounterColumn, found: ScoreCounts) -> tuple[int, int, int, int]:
    """The four counters of a column about scores.

    A pair without a result, for a reason that may lie in its texts, counts as a pair with an unknown outcome.
    """
    chosen = found.scored + found.unknown + found.dropped + found.blocked
    if column.part is ColumnPart.MARKS:
        return 1000 * found.rated, 1000 * found.rated, found.canary_thousandths, found.twin_thousandths
    if column.part is ColumnPart.UNSCORED:
        return chosen, chosen, found.unanswered, found.invalid
    if column.part is ColumnPart.UNSENT:
        return chosen, chosen, found.dropped, found.blocked
    return found.scored + found.unknown, found.scored, found.canary_only, found.twin_only


def are_sent(sample: GenerationCounts, canary: str) -> bool:
    """Whether a gateway sent any pair with a copy to canary, by this sample."""
    found = sample.twins.get(canary) or no_pairs()
    return found.pairs + found.open > 0


def _open(gateways: Iterable[Gateway], canary: str) -> int:
    """Pairs that were sent and have not ended, and those whose tokens are being scored, as far as gateways respond."""
    samples = (sample for gateway in gateways if gateway.incarnation for sample in gateway.samples)
    found = (sample.twins.get(canary) or no_pairs() for sample in samples)
    return sum(pairs.open + pairs.quality.open for pairs in found)


def _scoring(gateways: Iterable[Gateway], canary: str) -> int:
    """Pairs that were sent to a scorer and have no result yet, as far as gateways respond."""
    samples = (sample for gateway in gateways if gateway.incarnation for sample in gateway.samples)
    return sum((sample.twins.get(canary) or no_pairs()).scores.open for sample in samples)


def _former(spec: AnalysisSpec, gateways: Iterable[Gateway], stable: str) -> tuple[FormerRate, ...]:
    """Bad and all sessions of stable so far, for each metric of bad events."""
    sides = [sample.revisions.get(stable, no_requests()) for gateway in gateways for sample in gateway.samples]
    units = sum(side.units for side in sides)
    names = {metric.name: BAD_EVENTS[metric.event] for metric in spec.metrics if metric.event in BAD_EVENTS}
    return tuple(
        FormerRate(name, min(units, sum(side.events.get(event, 0) for side in sides)), units)
        for name, event in names.items()
    )


# -- the run


def is_on_failure(course: Course, at: Situation, run: RunStatus | None, step: TwinAnalysis) -> bool:
    """Whether a run goes without a twin, and stable repeats what canary fails.

    That is decided at the run's start, because the counts then mean something else.
    """
    if run and run.shadow:
        return run.shadow.on_failure
    missing = not at.spec.strategy.baseline_pod or bool(baseline.absence(course, at, sizes_of(course, at)))
    return step.on_failure and missing


def begun(
    course: Course,
    at: Situation,
    before: RunStatus | None,
    run: RunStatus,
    spec: AnalysisSpec,
    step: TwinAnalysis,
) -> RunStatus:
    """A run of pairs at its start. It notes stable's rates of bad sessions once, before the first pair.

    `before`: a run of the same step that ends because its template changed.
    """
    former = _former(spec, at.observed.gateways, course.stable or "")
    on_failure = is_on_failure(course, at, before, step)
    started = replace(run, shadow=ShadowRun(former, probed=step.probes is not None, on_failure=on_failure))
    return replace(started, shadow=_continued(course, at, started, spec, step))


def read(
    course: Course, at: Situation, run: RunStatus, spec: AnalysisSpec, step: TwinAnalysis, *, complete: bool
) -> RunStatus:
    """The run with its shadow as it is now. `complete`: all ready gateways responded."""
    canary, before = rollout_of(course).revision, run.shadow or ShadowRun()
    now, rated = _open(at.observed.gateways, canary), _scoring(at.observed.gateways, canary)
    # A gateway that does not respond may still have the open pairs that it had.
    shadow = replace(before, open=now, scoring=rated)
    if not complete:
        shadow = replace(before, open=max(now, before.open), scoring=max(rated, before.scoring))
    return replace(run, shadow=_continued(course, at, replace(run, shadow=shadow), spec, step))


def _continued(course: Course, at: Situation, run: RunStatus, spec: AnalysisSpec, step: TwinAnalysis) -> ShadowRun:
    """The shadow with its table for gateways; without one while there is no twin, or a verdict waits for open pairs."""
    shadow = run.shadow or ShadowRun()
    missing = "" if shadow.on_failure or at.spec.inputs.base else baseline.absence(course, at, sizes_of(course, at))
    settling = run.verdict is not None and run.verdict.reason is Reason.PAIRS_OPEN
    table = None if missing or settling else _table(course, at, run, spec, step)
    return replace(shadow, no_twin=missing, published=table)


def _table(course: Course, at: Situation, run: RunStatus, spec: AnalysisSpec, step: TwinAnalysis) -> TwinShadow | None:
    """The twin shadow of the routing table; None while a side has no ready pod."""
    canary, on_failure = rollout_of(course).revision, run.shadow is not None and run.shadow.on_failure
    pods = at.ready(canary if on_failure else baseline.twin(course, at))
    if not pods or not at.ready(canary) or not at.ready(course.stable):
        return None
    epoch = clock_epoch(at.elapsed_s(run.started_at))
    percentage = step.percentage or (OF_ADAPTERS if at.spec.inputs.base else _as_busy_as_stable(pods, at))
    before = run.shadow.published if run.shadow else None
    kept = before.latencies if before and before.epoch == epoch else ()
    # Each change is a new table for all gateways: so limits change with the clock epoch only.
    latencies = kept if any(one.tail for one in kept) else _latencies(run, spec)
    quality = True if any(metric.event == TOKENS_FLIP for metric in spec.metrics) else None
    table = TwinShadow(canary, course.stable or "", percentage, step.max_pairs_per_second, epoch, latencies)
    if on_failure:
        return replace(table, reference=ON_FAILURE)
    return replace(table, quality=quality, scorer=_scorer(spec), tolerance=spec.tolerance(paired=True))


def _as_busy_as_stable(pods: int, at: Situation) -> int:
    """Percent of the sessions with which so many pods, which get only copies, are each as busy as a pod of stable."""
    return min(100, max(1, round(100 * pods / max(1, at.replicas))))


def _scorer(spec: AnalysisSpec) -> TwinScorer | None:
    return next((metric.scorer for metric in spec.metrics if metric.scorer), None)


def _latencies(run: RunStatus, spec: AnalysisSpec) -> tuple[TwinLatency, ...]:
    """What gateways compare of the latencies of a pair; nothing before the warm-up is over."""
    found = []
    for metric in spec.metrics if run.warm else ():
        latency = slower(metric.event)
        if latency and metric.max_slowdown is not None:
            limits = (
                (it.stratum, round(it.seconds * MICROSECONDS)) for it in run.thresholds if it.metric == metric.name
            )
            tail = tuple(TailThreshold(*limit) for limit in sorted(limits))[:MOST_TAILS]
            found.append(TwinLatency(latency.kind, round(100 * metric.max_slowdown), tail))
    return tuple(found)
