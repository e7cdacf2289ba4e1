"""Rows that reject the revision under test, and the one that ends the rejection."""

from dataclasses import replace

from slipway_operator.api.v1alpha1.analysis_run import Outcome as Verdict
from slipway_operator.api.v1alpha1.analysis_run import Reason
from slipway_operator.api.v1alpha1.status import Abort, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.analysis import runs
from slipway_operator.planning.facts import downloads
from slipway_operator.planning.facts.recall import MAX_ABORTED
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.rollout import hooks
from slipway_operator.planning.rollout.progress import HELD, LOST, has_none
from slipway_operator.planning.rollout.row import ABORTING, ANALYZING, COMING_UP, IN_FLIGHT, WAITING, Outcome, row
from slipway_operator.planning.sizing import capacity
from slipway_operator.planning.sizing.sizes import Sizes


def rejected(course: Course, at: Situation, reason: str, message: str) -> Outcome:
    """The course with the attempt rejected, and an Event with the reason."""
    aborting, text = _aborting(course, at, reason, message)
    return aborting, (Event("Warning", "RolloutAborted", text),)


def _aborting(course: Course, at: Situation, reason: str, message: str) -> tuple[Course, str]:
    """The course whose weight returns to stable, and the text of its Event."""
    rollout = rollout_of(course)
    abort = Abort(reason=reason, message=message, at=at.now, step=rollout.step_index)
    aborting = replace(rollout, state=State.ABORTING, abort=abort)
    remembered = (*course.aborted, rollout.attempt_token)[-MAX_ABORTED:]
    text = f"revision {rollout.revision}, attempt {rollout.attempt}, is rejected: {message}"
    return replace(course, rollout=aborting, aborted=remembered), text


@row(
    "reverted-to-stable",
    "The spec went back to the stable revision: the rollout ends as an abort does, and in peace.",
    IN_FLIGHT,
)
def reverted_to_stable(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    if at.wanted != course.stable:
        return None
    return rejected(course, at, "RevertedToStable", "the spec went back to the stable revision")


@row(
    "user-abort",
    "spec.rollout.abort names this attempt: it is rejected.",
    IN_FLIGHT,
)
def user_abort(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    if at.spec.intents.abort != rollout_of(course).attempt_token:
        return None
    return rejected(course, at, "UserAbort", "aborted by spec.rollout.abort")


@row(
    "superseded",
    "The spec names a third revision: this attempt ends as an abort does, then the third one begins.",
    IN_FLIGHT,
)
def superseded(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    if rollout_of(course).revision == at.wanted:
        return None
    aborting, text = _aborting(course, at, "Superseded", f"revision {at.wanted} replaces it")
    return aborting, (Event("Warning", "RevisionSuperseded", text),)


@row(
    "deadline",
    "No progress for spec.progressDeadlineSeconds: the revision is rejected, with the reason that a pod gives.",
    COMING_UP,
)
def deadline(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    lacking = at.ready(rollout.revision) < sizes.needed and rollout.progress not in ("", HELD)
    if not lacking or at.elapsed_s(rollout.progress_at) < at.spec.progress_deadline_s:
        return None
    return _without_progress(course, at, sizes)


@row(
    "analysis-lost",
    "No pod was ready during an analysis for spec.progressDeadlineSeconds: the revision is rejected as above.",
    ANALYZING,
)
def analysis_lost(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    lost = rollout.progress == LOST and has_none(course, at, sizes)
    if not lost or at.elapsed_s(rollout.progress_at) < at.spec.progress_deadline_s:
        return None
    return _without_progress(course, at, sizes)


def _without_progress(course: Course, at: Situation, sizes: Sizes) -> Outcome:
    target = rollout_of(course).revision
    why = at.trouble(target) or _slow_download(at, target) or "its pods give no reason"
    ready = f"{at.ready(target)} of {sizes.needed} pods ready"
    message = f"{ready} and no progress for {at.spec.progress_deadline_s} s: {why}"
    return rejected(course, at, "ProgressDeadlineExceeded", message)


def _slow_download(at: Situation, target: str) -> str:
    found = downloads.sentence(at, target)
    return f"{found}; a download must fit in spec.progressDeadlineSeconds" if found else ""


@row(
    "capacity-deadline",
    "No node took the pods for spec.strategy.capacity.deadlineSeconds: the revision is rejected.",
    WAITING,
)
def capacity_deadline(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout, deadline_s = rollout_of(course), at.spec.strategy.capacity.deadline_s
    if at.holds or at.elapsed_s(rollout.capacity_since or at.now) < deadline_s:
        return None
    shortage = capacity.shortage(at, sizes.mode, rollout.revision)
    return rejected(course, at, "InsufficientCapacity", f"no capacity for {deadline_s} s: {shortage}")


@row(
    "hook-rollback",
    "A rollback hook answered 2xx: the revision is rejected.",
    IN_FLIGHT,
)
def hook_rollback(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    found = hooks.rollback_answer(course, at)
    if found is None:
        return None
    hook, answer = found
    return rejected(course, at, "HookRollback", f"hook {hook.name} (rollback) requested it: {answer.message}")


@row(
    "hook-failed",
    "A pre-rollout or rollout hook had no 2xx in any of its tries: the revision is rejected.",
    IN_FLIGHT,
)
def hook_failed(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    state = hooks.failure(course)
    if state is None:
        return None
    message = f"hook {state.name} ({state.type}, {state.about}) failed: {state.message}"
    return rejected(course, at, "HookFailed", message)


@row(
    "analysis-failed",
    "An analysis, of the step or in the background, found the revision worse than stable, or one of its metrics "
    "missed its limits: it is rejected.",
    IN_FLIGHT,
)
def analysis_failed(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    found = runs.failed(course, at)
    if found is None:
        return None
    (one, verdict), target = found, rollout_of(course).revision
    vetoed = verdict.reason is Reason.VETOED
    # The reason that a pod gives for its end is more useful than its count.
    why = at.trouble(target) if vetoed else ""
    message = f"analysis {one.template}: {verdict.message}" + (f"; {why}" if why else "")
    if verdict.outcome is not Verdict.FAIL:  # its Event was sent when the metric ended
        return rejected(course, at, "AnalysisInconclusive", message)
    text = f"revision {target}: {message}"
    failed: tuple[Event, ...] = (Event("Warning", "AnalysisRunFailed", text),)
    if vetoed:
        failed = (*failed, Event("Warning", "CanaryVetoed", text))
    aborted, events = rejected(course, at, "AnalysisFailed", message)
    return aborted, (*failed, *events)


@row(
    "stable-replaced",
    "Stable has had no ready pod for spec.progressDeadlineSeconds and the spec names a third revision: the rejected "
    "one, which alone serves, takes the place of stable, so that the third one goes out.",
    ABORTING,
)
def stable_replaced(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    """Otherwise the weight would wait for pods that do not come, and the third revision for the weight."""
    target = rollout_of(course).revision
    serves = at.ready(target) > 0 and at.weight(target) > 0
    if not (sizes.stable_lost and serves) or at.holds or at.wanted in (target, course.stable):
        return None
    replaced = replace(course, rollout=None, stable=target, previous=course.stable)
    text = (
        f"stable {course.stable} has had no ready pod for {at.spec.progress_deadline_s} s: revision {target}, which "
        f"serves, takes its place until revision {at.wanted} is promoted"
    )
    return replaced, (Event("Warning", "StableReplaced", text),)


@row(
    "weight-returned",
    "No gateway sends requests to the rejected revision any more.",
    ABORTING,
)
def weight_returned(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    """A revert to stable leaves no rejection; any other rejection stays in the status until the spec changes."""
    rollout = rollout_of(course)
    if at.weight(rollout.revision) != 0 or not at.traffic_synced:
        return None
    reverted = rollout.abort is not None and rollout.abort.reason == "RevertedToStable"
    kept = None if reverted else replace(rollout, state=State.ABORTED)
    text = f"no request goes to revision {rollout.revision} any more; {course.stable} serves"
    return replace(course, rollout=kept), (Event("Normal", "RolloutAborted", text),)
