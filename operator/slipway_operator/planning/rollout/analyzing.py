"""Rows about analyses: a run begins, is read, and ends its step. A verdict that rejects is in `rejecting.py`."""

from dataclasses import replace
from typing import Any

from slipway_operator.api.v1alpha1.analysis_run import Outcome as Verdict
from slipway_operator.api.v1alpha1.analysis_run import Reason, RunStatus
from slipway_operator.api.v1alpha1.status import State
from slipway_operator.manifests.analysis_run import run_name
from slipway_operator.model.analysis.spec import OnInconclusive
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.strategy import Ramp, TwinAnalysis
from slipway_operator.planning.analysis import continuing, findings, ramping, runs
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.rollout.progress import may_step, next_step, pausing, place
from slipway_operator.planning.rollout.rejecting import rejected
from slipway_operator.planning.rollout.row import ANALYZING, IN_FLIGHT, Outcome, row
from slipway_operator.planning.sizing import canary
from slipway_operator.planning.sizing.sizes import Sizes


@row(
    "analysis-begins",
    "It is the turn of an analysis and its template is there: counters are noted as they are.",
    IN_FLIGHT,
)
def analysis_begins(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    found = runs.next_beginning(course, at)
    if found is None:
        return None
    one, run = found
    how = "starts again, because its template changed" if one.run else "begins"
    if one.run is None and one.reference and one.reference.lost:
        how = f"starts again, because its AnalysisRun does not count ({one.reference.lost})"
    text = f"analysis {one.template} of revision {rollout_of(course).revision} {how}: {one.id}"
    return _with_run(course, at, one, run), (Event("Normal", "AnalysisRunRunning", text),)


@row(
    "analysis-counted",
    "Gateways counted more, or a provider answered: it is written down with the verdict, before anything is done "
    "because of it.",
    IN_FLIGHT,
)
def analysis_counted(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    found = runs.next_reading(course, at)
    if found is None:
        return None
    one, run = found
    return _with_run(course, at, one, run), (
        *_doubted(one, run),
        *_drifted(one, run),
        *_braked(course, one, run),
        *_ramped(course, one, run),
        *_undecided(course, one, run),
    )


@row(
    "analysis-skipped",
    "spec.rollout.promote names the analysis step: the next step begins without a verdict.",
    ANALYZING,
)
def analysis_skipped(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    if at.spec.intents.promote != rollout.step_token or at.holds or at.replicas == 0:
        return None
    text = f"revision {rollout.revision} goes on without a verdict at {place(rollout)}, as requested"
    entered, events = next_step(course, at)
    return entered, (Event("Normal", "RolloutResumed", text), *events)


@row(
    "analysis-passed",
    "No metric is worse than stable by its margin, and all that is measured is good: the next step begins.",
    ANALYZING,
)
def analysis_passed(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    verdict, step = runs.verdict_of_step(course, at), runs.step_of(rollout, at)
    if verdict is None or verdict.outcome is not Verdict.PASS or step is None or isinstance(step, Ramp):
        return None
    watched = not runs.lasts(course, at, step) or at.now >= runs.ends_at(rollout, at)
    if not watched or not may_step(course, at, sizes):
        return None
    text = f"revision {rollout.revision} passed the analysis at {place(rollout)}: {findings.sentence(verdict)}"
    entered, events = next_step(_with_proof(course, at), at)
    return entered, (Event("Normal", "AnalysisRunSuccessful", text), *events)


@row(
    "ramp-done",
    "The revision has passed, with the harm that maxHarm allows, and the bake is over: the next step begins.",
    ANALYZING,
)
def ramp_done(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    step, reference = runs.step_of(rollout, at), rollout.analysis
    late = at.now >= runs.ends_at(rollout, at)
    if not isinstance(step, Ramp) or reference is None or reference.id != rollout.step_token or not reference.ramp:
        return None
    if not ramping.is_over(at, reference.ramp, step, late=late) or not may_step(course, at, sizes):
        return None
    text = f"revision {rollout.revision} passed the ramp at {place(rollout)}: {ramping.sentence(reference.ramp)}"
    entered, events = next_step(course, at)
    return entered, (Event("Normal", "AnalysisRunSuccessful", text), *events)


@row(
    "analysis-inconclusive",
    "maxDuration is over without a verdict, or a metric ended inconclusive: the template's onInconclusive pauses, "
    "goes on (PromoteIf: if few enough extra bad responses are proved) or rejects; it does not pause for a stable that "
    "has had no ready pod for spec.progressDeadlineSeconds.",
    ANALYZING,
)
def analysis_inconclusive(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    """Applies when the time is over with too few counts, or when a metric ended without a verdict."""
    rollout, verdict = rollout_of(course), runs.verdict_of_step(course, at)
    undecided = (verdict is None or verdict.outcome is Verdict.INCONCLUSIVE) and not ramping.has_passed(rollout)
    ended = verdict is not None and verdict.reason in runs.ENDED
    over = ended or at.now >= runs.ends_at(rollout, at)
    if not undecided or not over or not may_step(course, at, sizes):
        return None
    why = runs.problem(course, at) or (f"{verdict.reason}: {verdict.message}" if verdict else "nothing was counted")
    choice = _on_inconclusive(course, at)
    if choice is OnInconclusive.PAUSE and sizes.stable_lost:
        choice, why = OnInconclusive.CONTINUE, f"{why}; stable has no ready pod to compare with"
    text = f"revision {rollout.revision} has no verdict at {place(rollout)}: {why}"
    if choice is OnInconclusive.CONTINUE or (choice is OnInconclusive.PROMOTE_IF and runs.may_promote(course, at)):
        entered, events = next_step(_with_proof(course, at), at)
    elif choice is OnInconclusive.ABORT:
        entered, events = rejected(course, at, "AnalysisInconclusive", why)
    else:
        paused = replace(rollout, state=State.PAUSED)
        entered, events = replace(course, rollout=paused), pausing(paused)
    return entered, (Event("Warning", "AnalysisRunInconclusive", text), *events)


def _on_inconclusive(course: Course, at: Situation) -> OnInconclusive:
    """The choice of the template; a pause where it cannot be read."""
    step = runs.step_of(rollout_of(course), at)
    spec = runs.template(at, step.template).spec if step else None
    return spec.on_inconclusive if spec else OnInconclusive.PAUSE


def _with_proof(course: Course, at: Situation) -> Course:
    """The course with what the twin shadow of the present step has proved, for a later ramp."""
    rollout = rollout_of(course)
    step, run = runs.step_of(rollout, at), course.runs.get("analysis")
    spec = runs.template(at, step.template).spec if isinstance(step, TwinAnalysis) else None
    if spec is None or run is None or run.id != rollout.step_token:
        return course
    return replace(course, rollout=replace(rollout, shadow_at_most=ramping.proved(run, spec.part(paired=True))))


def _with_run(course: Course, at: Situation, one: runs.Ongoing, run: RunStatus) -> Course:
    """The course with a run that is written, and with what the rollout acts on after that."""
    rollout, former = rollout_of(course), one.reference
    goes_on = one.run is not None and (one.run.started_at, one.run.template_hash) == (run.started_at, run.template_hash)
    name = former.run if former and goes_on else run_name(at.name, at.uid, run)
    spec = runs.template(at, one.template).spec
    bounded = spec is not None and spec.promote_if_extra is not None
    changed: dict[str, Any] = {one.field: continuing.recorded(former, run, name, bounded=bounded)}
    return replace(course, rollout=replace(rollout, **changed), runs=course.runs | {one.field: run})


def _doubted(one: runs.Ongoing, run: RunStatus) -> tuple[Event, ...]:
    """An Event when a comparison first becomes doubtful: by the split, by feedback, or by pairs that were withheld."""
    before, now = one.run and one.run.verdict, run.verdict
    if now is None or (before and before.reason is now.reason):
        return ()
    if now.reason is Reason.SAMPLE_RATIO_MISMATCH:
        return (Event("Warning", "SampleRatioMismatch", f"analysis {one.template}: {now.message}"),)
    if now.reason is Reason.FEEDBACK_MISMATCH:
        return (Event("Warning", "FeedbackMismatch", f"analysis {one.template}: {now.message}"),)
    if now.reason is Reason.SHADOW_STARVED:
        return (Event("Warning", "ShadowStarved", f"analysis {one.template}: {now.message}"),)
    return ()


def _drifted(one: runs.Ongoing, run: RunStatus) -> tuple[Event, ...]:
    """An Event when predictions are first found to differ; the verdict is another matter."""
    before, now = (found.verdict.predictions if found and found.verdict else None for found in (one.run, run))
    if now is None or not now.differs or (before and before.differs):
        return ()
    text = (
        f"analysis {one.template}: the predictions of canary differ from those of stable: population stability index "
        f"{now.psi:g}, e={now.evidence}"
    )
    return (Event("Normal", "PredictionsDiffer", text),)


def _ramped(course: Course, one: runs.Ongoing, run: RunStatus) -> tuple[Event, ...]:
    """An Event when a ramp chooses another weight."""
    before, now = one.run and one.run.ramp, run.ramp
    if before is None or now is None or before.weight == now.weight:
        return ()
    why = "it has passed, and bakes" if now.passed_at else ramping.sentence(now)
    text = f"revision {rollout_of(course).revision}: weight {before.weight} -> {now.weight}: {why}"
    return (Event("Normal", "RampWeightChanged", text),)


def _braked(course: Course, one: runs.Ongoing, run: RunStatus) -> tuple[Event, ...]:
    """An Event when the revision gets the least weight for the rest of its warm-up."""
    if not run.braked or (one.run and one.run.braked):
        return ()
    text = (
        f"revision {rollout_of(course).revision} is many times slower than stable during its warm-up: it keeps "
        f"{canary.BRAKED} % of the requests until the warm-up of analysis {one.template} is over"
    )
    return (Event("Warning", "CanaryBraked", text),)


def _undecided(course: Course, one: runs.Ongoing, run: RunStatus) -> tuple[Event, ...]:
    """An Event when a background metric ended without a verdict; an analysis step has its Event at its end."""
    before, now = one.run and one.run.verdict, run.verdict
    if one.field != "background" or now is None or now.reason is not Reason.METRIC_INCONCLUSIVE:
        return ()
    if before and before.reason is now.reason:
        return ()
    text = f"revision {rollout_of(course).revision}: analysis {one.template} has no verdict: {now.message}"
    return (Event("Warning", "AnalysisRunInconclusive", text),)
