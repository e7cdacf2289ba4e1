"""Analyses of a rollout: which ones run now, what they counted, and the judge's verdicts.

Rows of the rollout's table start and read a run, so a verdict is in the status before it has an effect. All input is in
the status: the same status and the same counters give the same verdict, in any process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from slipway_operator.api.v1alpha1.analysis_run import (
    Counts,
    Load,
    Outcome,
    Reason,
    RunStatus,
    Symptom,
    VerdictChange,
)
from slipway_operator.api.v1alpha1.status import AnalysisReference, Rollout, State, StepVerdict
from slipway_operator.judging.margins.shadow import FIRST_PAIR_S, OFFER_S
from slipway_operator.judging.measurement import composed
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, OnInconclusive
from slipway_operator.model.analysis.template import CANARY_CUT_OFF, CANARY_UNAVAILABLE, POD_CRASH_LOOP, Template, found
from slipway_operator.model.analysis.verdict import Reading, Verdict
from slipway_operator.model.deployment.strategy import Analysis, Ramp, Strategy, TwinAnalysis
from slipway_operator.planning.analysis import (
    brake,
    costs,
    counting,
    findings,
    measuring,
    ramping,
    series,
    trace,
    twins,
)
from slipway_operator.planning.analysis.columns import columns
from slipway_operator.planning.facts.revision import same_weights
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of, step_now
from slipway_operator.planning.sizing import baseline

READ_S = 5  # between two readings
WRITE_S = 10  # between two writes of a run, and so of the status, that bring new counts alone
MOST_CHANGES = 10
THOUSANDTHS = 1000
BUSY = 1000  # thousandths of a request in progress at a pod of stable: up to this, load explains no latency
MINUTE_S = 60

# Reasons with which PromoteIf may decide by a bound: not by one from stale counters or a doubtful split.
DECIDED_BY_BOUND = frozenset({Reason.UNDECIDED, Reason.NO_DATA, Reason.LOAD_MISMATCH, Reason.PAIRS_OPEN})
# Nothing more will be counted: onInconclusive decides at once.
ENDED = frozenset({Reason.METRIC_INCONCLUSIVE, Reason.NO_TWIN, Reason.HARM_SPENT})

Away = tuple[datetime | None, datetime | None]  # since when canary, and stable, have no ready pod


@dataclass(frozen=True, slots=True)
class Ongoing:
    """An analysis that applies at the rollout's present step. `run` is None before it begins, and when it is lost.

    `reference`: what the status has of it, on which the rollout acts.
    """

    field: str  # of Rollout: analysis | background
    id: str
    template: str
    run: RunStatus | None
    reference: AnalysisReference | None
    twins: TwinAnalysis | None = None  # the step, where it compares pairs
    ramp: Ramp | None = None  # the step, where it chooses the weight


def ongoing(course: Course, at: Situation) -> Iterator[Ongoing]:
    """The analysis of the present step, and the one in the background."""
    rollout = course.rollout
    if rollout is None or course.stable is None or not rollout.in_flight or rollout.skip_steps:
        return
    if rollout.state is State.ANALYZING and (step := step_of(rollout, at)):
        own = _own(course, "analysis", rollout.step_token)
        twin_step = step if isinstance(step, TwinAnalysis) else None
        ramp = step if isinstance(step, Ramp) else None
        yield Ongoing("analysis", rollout.step_token, step.template, *own, twin_step, ramp)
    background = at.spec.strategy.background
    if background and rollout.step_index >= background.starting_step:
        id = f"{rollout.attempt_token}/background"
        yield Ongoing("background", id, background.template, *_own(course, "background", id))


def step_of(rollout: Rollout, at: Situation) -> Analysis | None:
    """The present step, where it is an analysis."""
    step = step_now(at.spec, rollout)
    return step if isinstance(step, Analysis) else None


def ends_at(rollout: Rollout, at: Situation) -> datetime:
    """When the time of the present analysis step is over."""
    step = step_of(rollout, at)
    return rollout.step_started_at + timedelta(seconds=step.max_duration_s if step else 0)


def template(at: Situation, name: str) -> Template:
    """The template of this name, or why there is none."""
    return at.observed.templates.get(name) or found(name, None)


def problem(course: Course, at: Situation) -> str | None:
    """Why an analysis cannot begin; None when all can."""
    return next((why for one in ongoing(course, at) if (why := _chosen(course, at, one).problem)), None)


def _chosen(course: Course, at: Situation, one: Ongoing) -> Template:
    """The template of an analysis with the part that applies to it, or why there is none."""
    found = template(at, one.template)
    if found.spec is None:
        return found
    try:
        part = found.spec.part(paired=one.twins is not None)
        if one.twins and twins.is_on_failure(course, at, one.run, one.twins):
            part = part.without_latencies
        if one.ramp and (why := ramping.lacks(part)):
            raise ValueError(why)
        if one.ramp and rollout_of(course).shadow_at_most is not None:
            part = part.warmed
        return found if part is found.spec else replace(found, spec=part, whole=found.hash)
    except ValueError as error:
        return Template(problem=f"AnalysisTemplate {one.template!r}: {error}")


def holds(course: Course, at: Situation) -> str | None:
    """Why a rollout waits for its background analysis: no template, or an inconclusive metric; None if it does not."""
    for one in ongoing(course, at):
        if one.field == "background":
            return _chosen(course, at, one).problem or _undecided(at, one, OnInconclusive.PAUSE)
    return None


def is_undecided(course: Course, at: Situation) -> bool:
    """Whether a metric of the background analysis ended without a verdict, so that the rollout pauses."""
    background = (one for one in ongoing(course, at) if one.field == "background")
    return any(_undecided(at, one, OnInconclusive.PAUSE) for one in background)


def _undecided(at: Situation, one: Ongoing, choice: OnInconclusive) -> str | None:
    """The message of an inconclusive metric that has ended, where the template makes this choice; else None."""
    verdict, spec = one.reference.verdict if one.reference else None, template(at, one.template).spec
    ended = verdict is not None and verdict.reason is Reason.METRIC_INCONCLUSIVE
    return verdict.message if verdict and ended and spec and spec.on_inconclusive is choice else None


def ruling(course: Course, at: Situation) -> Iterator[tuple[Ongoing, StepVerdict]]:
    """Analyses with a verdict, as the status has it: one that only a run has is not acted on."""
    found = ((one, one.reference) for one in ongoing(course, at) if one.reference)
    return ((one, reference.verdict) for one, reference in found if reference.verdict)


def failed(course: Course, at: Situation) -> tuple[Ongoing, StepVerdict] | None:
    """The analysis that rejects the revision: a failed one, or an undecided background one with the choice Abort."""
    return next((pair for pair in ruling(course, at) if _rejects(at, *pair)), None)


def _rejects(at: Situation, one: Ongoing, verdict: StepVerdict) -> bool:
    undecided = one.field == "background" and _undecided(at, one, OnInconclusive.ABORT) is not None
    return verdict.outcome is Outcome.FAIL or undecided


def verdict_of_step(course: Course, at: Situation) -> StepVerdict | None:
    """The verdict on the present step; None before there is one."""
    return next((verdict for one, verdict in ruling(course, at) if one.field == "analysis"), None)


def may_promote(course: Course, at: Situation) -> bool:
    """Whether the status has a bound on extra bad responses that is low enough for PromoteIf of the template."""
    step, verdict = step_of(rollout_of(course), at), verdict_of_step(course, at)
    spec = template(at, step.template).spec if step else None
    if verdict is None or verdict.extra_at_most is None or spec is None or spec.promote_if_extra is None:
        return False
    return verdict.reason in DECIDED_BY_BOUND and verdict.extra_at_most <= spec.promote_if_extra


def lasts(course: Course, at: Situation, step: Analysis) -> bool:
    """Whether an analysis step lasts for its whole time, even if it could pass before."""
    return not step.until_verdict or measuring.is_endless(template(at, step.template).spec)


def under_way(course: Course, at: Situation) -> Iterator[tuple[RunStatus, AnalysisSpec]]:
    """Analyses that began, with the present spec of their template."""
    for one in ongoing(course, at):
        found = _chosen(course, at, one)
        if one.run and found.spec and _is_of(one.run, found):
            yield one.run, found.spec


# --- beginning and reading --------------------------------------------------------------------------------------------


def next_beginning(course: Course, at: Situation) -> tuple[Ongoing, RunStatus] | None:
    """The analysis that begins now, with its run at the start.

    It begins when every ready gateway has reported, so that all counters are current, and its run can be written.
    """
    if not at.traffic_synced or at.observed.run_refusal:
        return None
    for one in ongoing(course, at):
        found = _chosen(course, at, one)
        if found.spec and not _is_of(one.run, found):
            return one, _begun(course, at, one, found.hash, found.spec)
    return None


def _begun(course: Course, at: Situation, one: Ongoing, template_hash: str, spec: AnalysisSpec) -> RunStatus:
    pair = _pair(course)
    restarts = tuple(at.observed.restarts(revision) for revision in pair)
    lost = one.run is None and one.reference is not None and one.reference.lost is not None
    braked = bool(lost and one.reference and one.reference.braked)
    run = RunStatus(one.id, one.template, template_hash, at.now, at.now, restarts=restarts, braked=braked, sequence=1)
    run = counting.begin(run, spec, at.observed.gateways, pair) if spec.metrics else run
    run = replace(run, ramp=ramping.begun(course, at, one.ramp)) if one.ramp else run
    return twins.begun(course, at, one.run, run, spec, one.twins) if one.twins else run


def next_reading(course: Course, at: Situation) -> tuple[Ongoing, RunStatus] | None:
    """The analysis that is due and has new data, with its run as read and judged now.

    One whose run was written, and whose status was not, is due at once as it is. New counts alone are written once in
    WRITE_S: gateways keep them, so that the next reading has them too.
    """
    for one in ongoing(course, at) if not at.observed.run_refusal else ():
        if one.run and one.reference and one.reference.sequence != one.run.sequence:
            return one, one.run
        found = _chosen(course, at, one)
        if one.run is None or found.spec is None or not _is_of(one.run, found):
            continue
        due = at.elapsed_s(one.run.read_at) >= READ_S
        if due and (
            (read := _read(course, at, one, found.spec)) != one.run or _is_due_by_time(at, one.run, found.spec)
        ):
            judged = _judged(course, at, one.run.counts, read, found.spec)
            judged = ramping.judged(at, judged, one.ramp) if one.ramp else judged
            if at.elapsed_s(one.run.read_at) >= WRITE_S or _news(judged) != _news(one.run):
                return one, series.noted(replace(judged, sequence=one.run.sequence + 1), found.spec)
    return None


def _news(run: RunStatus) -> tuple[object, ...]:
    """What the rollout and gateways act on, and when each state began: a run where it changed is written at once."""
    verdict, ramp, shadow = run.verdict, run.ramp, run.shadow
    return (
        verdict and (verdict.outcome, verdict.reason),
        ramp and (ramp.weight, ramp.passed_at, ramp.bake_until),
        shadow and (shadow.published, shadow.no_twin),
        run.measured,
        (run.braked, run.warm, run.stale),
        (run.first_request_at, run.missing_since, run.canary_away_since, run.stable_away_since),
    )


def _is_due_by_time(at: Situation, run: RunStatus, spec: AnalysisSpec) -> bool:
    """Whether time alone may change the verdict: a period that it depends on ended since the last reading."""
    times = [
        (run.first_request_at, spec.min_samples.min_seconds),
        *((run.started_at, seconds) for seconds in (OFFER_S, FIRST_PAIR_S) if run.shadow),
    ]
    over = (since + timedelta(seconds=least) for since, least in times if since)
    return run.verdict is None or any(run.read_at < moment <= at.now for moment in over)


def _judged(course: Course, at: Situation, before: Sequence[Counts], read: RunStatus, spec: AnalysisSpec) -> RunStatus:
    """The run with the verdict on it; `before` are its counts at the last reading."""
    load = _loaded(course, at, read.load)
    traced = trace.noted(read, before, int(at.elapsed_s(read.started_at)))
    read = replace(read, read_at=at.now, load=load, trace=traced)
    verdict = findings.shown(concluded(read, its_part(at.spec.strategy, spec)), read.verdict, at.now)
    changes = read.decisions
    if read.verdict is None or verdict.since != read.verdict.since:
        changes = (*changes, VerdictChange(at.now, verdict.outcome, verdict.reason, verdict.message))[-MOST_CHANGES:]
    return replace(read, verdict=verdict, decisions=changes)


def concluded(run: RunStatus, spec: AnalysisSpec) -> Verdict:
    """The joint verdict of the judge and the measured metrics, computed from the status alone."""
    verdict = ruled(run, spec)
    if run.weight is not None and not spec.compares_mirrored and not spec.compares_pairs:
        verdict = findings.without_split(verdict, run.weight)
    return ramping.spent_up(composed(verdict, measuring.state(run, spec)), run)


def ruled(run: RunStatus, spec: AnalysisSpec) -> Verdict:
    """The judge's verdict on a run at its last reading, computed from the status alone."""

    def elapsed_s(since: datetime) -> float:
        return (run.read_at - since).total_seconds()

    reading = Reading(
        counts=run.counts,
        # Without a request there is no warm-up: the judge has to report NoData.
        seconds=elapsed_s(run.first_request_at) if run.first_request_at else spec.min_samples.warmup_seconds,
        age_seconds=elapsed_s(run.missing_since or run.read_at),
        canary_load=_load_ratio(run.load),
        symptoms=run.symptoms,
        assigned=run.assigned,
        clocks=run.clocks,
        weights_differ=run.weights_differ,
        paces=run.paces,
        cost=run.cost,
        shadow=run.shadow,
        running_seconds=elapsed_s(run.started_at),
    )
    return judge(counting.applicable(run, spec), reading)


def _read(course: Course, at: Situation, one: Ongoing, spec: AnalysisSpec) -> RunStatus:
    """The run with new data; equal to the run as written where nothing new could change a verdict."""
    assert one.run, "what did not begin is not read"
    run = one.run
    pair, gateways = _pair(course), at.observed.gateways
    ready = [gateway for gateway in gateways if gateway.ready]
    complete = bool(ready) and all(gateway.reachable for gateway in ready)
    first = run.first_request_at or (at.now if counting.has_requests(gateways, pair) else None)
    missing = None if complete else run.missing_since or at.now
    away = _away(at, run, pair)
    facts = replace(
        run,
        weight=at.weight(course.target),
        first_request_at=first,
        missing_since=missing,
        stale=missing is not None and at.elapsed_s(missing) > spec.stale_seconds,
        warm=first is not None and at.elapsed_s(first) >= spec.min_samples.warmup_seconds,
        canary_away_since=away[0],
        stable_away_since=away[1],
        symptoms=tuple(_symptoms(at, run, spec, pair, away)),
        weights_differ=spec.compares_texts and _weights_differ(course, at),
    )
    facts = replace(facts, measured=measuring.with_answers(at, run, spec))
    if not spec.metrics:
        return facts
    # If the warm-up was over at the last reading, all counts since then came after it.
    comparable = run.warm and not _has_more_to_do(course, at, run, spec)
    facts = counting.add(facts, spec, gateways, pair, comparable=comparable, seconds=at.elapsed_s(run.started_at))
    facts = costs.read(course, at, facts, spec)
    if one.twins:
        return twins.read(course, at, facts, spec, one.twins, complete=complete)
    if one.ramp:
        facts = replace(facts, ramp=ramping.read(course, at, run, facts, spec, one.ramp, complete=complete))
    return replace(facts, braked=not facts.warm and (run.braked or brake.is_grossly_slow(facts, spec)))


def _away(at: Situation, run: RunStatus, pair: tuple[str, str]) -> Away:
    """Since when canary, by its own fault, and stable have no ready pod; None where that is not so."""
    canary, stable = pair
    return (
        (run.canary_away_since or at.now) if _has_failed(at, run, canary) else None,
        (run.stable_away_since or at.now) if at.ready(stable) == 0 else None,
    )


def _has_failed(at: Situation, run: RunStatus, revision: str) -> bool:
    """Whether no pod is ready by the revision's own fault: one was restarted, or existed when the run began.

    Pods that wait for a node, and new ones that replace those of a lost node, do not count as failed.
    """
    workload = at.workload(revision)
    if workload is None or workload.ready or workload.unschedulable:
        return False
    return any(pod.restarts or pod.created_at <= run.started_at for pod in workload.pods)


def _symptoms(
    at: Situation, run: RunStatus, spec: AnalysisSpec, pair: tuple[str, str], away: Away
) -> Iterator[Symptom]:
    """Symptoms of the template's vetoes that the operator itself observes, where canary shows any."""
    restarts = [max(0, at.observed.restarts(name) - before) for name, before in zip(pair, run.restarts, strict=True)]
    cut = [sum(gateway.cut_off == name for gateway in at.observed.gateways if gateway.ready) for name in pair]
    minutes = [int(at.elapsed_s(since or at.now)) // MINUTE_S for since in away]
    shown = {POD_CRASH_LOOP: restarts, CANARY_CUT_OFF: cut, CANARY_UNAVAILABLE: minutes}
    for veto in spec.vetoes:
        on_canary, on_stable = shown.get(veto.name, (0, 0))
        if on_canary:
            yield Symptom(veto.name, float(on_canary), float(on_stable))


def _loaded(course: Course, at: Situation, load: Load) -> Load:
    """The load with one more reading of both sides; unchanged where a side has no ready pod or no weight."""
    pair = rollout_of(course).revision, baseline.compared(course, at)
    pods, weights = [at.ready(name) for name in pair], [at.weight(name) for name in pair]
    inflight = at.observed.inflight(pair[1])
    if inflight is None or not all((*pods, *weights)):
        return load
    canary, stable = (THOUSANDTHS * weight // count for weight, count in zip(weights, pods, strict=True))
    busy = THOUSANDTHS * inflight // pods[1]
    return Load(load.readings + 1, load.canary + canary, load.stable + stable, load.busy + busy)


def _load_ratio(load: Load) -> float:
    """Load of a canary pod divided by that of a stable pod; 1 while stable's pods have little load."""
    return load.canary / load.stable if _is_busy(load) else 1.0


def _is_busy(load: Load) -> bool:
    return load.busy > BUSY * load.readings


def _has_more_to_do(course: Course, at: Situation, run: RunStatus, spec: AnalysisSpec) -> bool:
    """Whether a canary pod has so much more load than a stable pod that latencies are not comparable."""
    now = _loaded(course, at, Load())
    differs = now.canary > (1 + spec.max_load_difference) * now.stable
    return differs and _is_busy(_loaded(course, at, run.load))


def its_part(strategy: Strategy, spec: AnalysisSpec) -> AnalysisSpec:
    """The spec with a part of the error rate: the guarantee is per rollout, so the strategy's analyses share it."""
    return replace(spec, false_rollback_rate=spec.false_rollback_rate / max(1, len(strategy.templates)))


def _weights_differ(course: Course, at: Situation) -> bool:
    """Whether canary and stable have other model weights, or unknown ones: drift is then only reported."""
    one, other = (at.observed.snapshots.get(name) for name in _pair(course))
    return one is None or other is None or not same_weights(one, other)


def _pair(course: Course) -> tuple[str, str]:
    assert course.rollout and course.stable, "an analysis compares two revisions"
    return course.rollout.revision, course.stable


def _own(course: Course, field: str, id: str) -> tuple[RunStatus | None, AnalysisReference | None]:
    """The run of the analysis with this id, and what the status has of it."""
    reference: AnalysisReference | None = getattr(rollout_of(course), field)
    if reference is None or reference.id != id:
        return None, None
    run = course.runs.get(field)
    return run if run and run.id == id else None, reference


def _is_of(run: RunStatus | None, found: Template) -> bool:
    """Whether a run is of this template, and counts what this release counts."""
    if run is None or found.spec is None or run.template_hash != found.hash:
        return False
    counted = [item.metric for item in run.counts]
    return not counted or counted == [column.name for column in columns(found.spec)]
