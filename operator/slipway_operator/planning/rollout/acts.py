"""What a row of the rollout's table does: the next state, and the Events that tell of it."""

from collections.abc import Callable
from dataclasses import replace

from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun, Reason
from slipway_operator.api.v1alpha1.analysis_run import Outcome as Verdict
from slipway_operator.api.v1alpha1.status import Abort, Mode, Rollout, State
from slipway_operator.model.analysis.spec import OnInconclusive
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.strategy import Analysis, Pause
from slipway_operator.planning.analysis import findings, runs
from slipway_operator.planning.facts.revision import in_window, steps_hash
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.rollout import hooks
from slipway_operator.planning.rollout.guards import FIRST, HELD, IN_FLIGHT, LOST, has_none
from slipway_operator.planning.sizing import baseline, canary, capacity
from slipway_operator.planning.sizing.replicas import needed_replicas, room_for_target

MAX_ABORTED = 20
_HOLDING: dict[type, State] = {Pause: State.PAUSED, Analysis: State.ANALYZING}

Outcome = tuple[Course, tuple[Event, ...]]


def start_first(course: Course, at: Situation) -> Outcome:
    rollout = _new_rollout(course, at, State.INITIALIZING)
    return replace(course, rollout=rollout), (_normal("RolloutUpdated", f"first revision {at.wanted} comes up"),)


def start(course: Course, at: Situation) -> Outcome:
    rollout = _new_rollout(course, at, State.PROVISIONING)
    rollout = _entering(replace(rollout, skip_steps=_goes_back(course, at)), at, 0)
    way = "without steps" if rollout.skip_steps else f"in {rollout.steps} steps"
    text = f"revision {at.wanted} goes out {way}, attempt {rollout.attempt}; {course.stable} is stable"
    return replace(course, rollout=rollout), (_normal("RolloutUpdated", text), *_pausing(rollout))


def _goes_back(course: Course, at: Situation) -> bool:
    """Whether the revision was good before, so that its steps would teach nothing."""
    served = not any(token.startswith(f"{at.wanted}/") for token in course.aborted)
    window = in_window(at.observed.snapshots, course.stable, at.wanted, at.spec.rollback_window)
    still_up = at.wanted == course.previous and at.ready(at.wanted) >= at.replicas
    return at.rolled_back or (served and window) or (at.spec.strategy.blue_green and still_up)


def retry(course: Course, at: Situation) -> Outcome:
    started, _ = start(course, at)
    text = f"revision {at.wanted} is tried again, attempt {rollout_of(started).attempt}"
    return started, (_normal("RolloutRetry", text), *_pausing(rollout_of(started)))


def promote(course: Course, at: Situation) -> Outcome:
    target = rollout_of(course).revision
    done = replace(course, rollout=None, stable=target, previous=course.stable or course.previous)
    return done, (_normal("RolloutCompleted", f"revision {target} is stable and serves all requests"),)


def abort_because(reason: str, event: str, sentence: Callable[[Course, Situation], str]) -> Callable[..., Outcome]:
    def act(course: Course, at: Situation) -> Outcome:
        rollout = rollout_of(course)
        message = sentence(course, at)
        abort = Abort(reason=reason, message=message, at=at.now, step=rollout.step_index)
        rejected = replace(rollout, state=State.ABORTING, abort=abort)
        remembered = (*course.aborted, rollout.attempt_token)[-MAX_ABORTED:]
        text = f"revision {rollout.revision}, attempt {rollout.attempt}, is rejected: {message}"
        return replace(course, rollout=rejected, aborted=remembered), (Event("Warning", event, text),)

    return act


def wait_for_capacity(course: Course, at: Situation) -> Outcome:
    rollout = replace(rollout_of(course), state=State.CAPACITY_WAIT, capacity_since=at.now)
    text = capacity.shortage(course, at, rollout.revision)
    return replace(course, rollout=rollout), (Event("Warning", "CapacityUnavailable", text),)


def fall_back(course: Course, at: Situation) -> Outcome:
    mode = capacity.fallback(at) or Mode.SURGE
    rollout = replace(rollout_of(course), capacity_mode=mode, capacity_since=at.now)
    text = f"no further pods for {at.spec.strategy.capacity.surge_timeout_s} s: going on in mode {mode}"
    return replace(course, rollout=rollout), (Event("Warning", "CapacityModeChanged", text),)


def yield_baseline(course: Course, at: Situation) -> Outcome:
    """Its pods leave for others. Who waits for a node begins to wait anew, for these."""
    whose = baseline.stands_in_the_way(course, at)
    given_up, events = _without_baseline(course, at, f"pods of {whose} found no node")
    since = at.now if given_up.state is State.CAPACITY_WAIT else rollout_of(given_up).capacity_since
    return replace(given_up, rollout=replace(rollout_of(given_up), capacity_since=since)), events


def give_up_baseline(course: Course, at: Situation) -> Outcome:
    why = at.trouble(baseline.name(course)) or "its pods give no reason"
    waited_s = at.spec.strategy.capacity.surge_timeout_s
    return _without_baseline(course, at, f"it was not ready {waited_s} s after the pods of the new revision: {why}")


def _without_baseline(course: Course, at: Situation, why: str) -> Outcome:
    rollout = replace(rollout_of(course), without_baseline=why)
    text = f"revision {rollout.revision} goes on without a baseline at {_place(rollout)}: {why}"
    return replace(course, rollout=rollout), (Event("Warning", "BaselineGivenUp", text),)


def go_on(course: Course, at: Situation) -> Outcome:
    rollout = rollout_of(course)
    promoting = rollout.skip_steps or rollout.step_index >= rollout.steps
    state = State.PROMOTING if promoting else State.PROVISIONING
    found = replace(rollout, state=state, capacity_since=None, progress="", progress_at=at.now)
    return replace(course, rollout=found), ()


def capacity_sentence(course: Course, at: Situation) -> str:
    waited = f"no capacity for {at.spec.strategy.capacity.deadline_s} s"
    return f"{waited}: {capacity.shortage(course, at, rollout_of(course).revision)}"


def deadline_sentence(course: Course, at: Situation) -> str:
    target = rollout_of(course).revision
    ready, needed = at.ready(target), needed_replicas(course, at)
    why = at.trouble(target) or "its pods give no reason"
    return f"{ready} of {needed} pods ready and no progress for {at.spec.progress_deadline_s} s: {why}"


def skip(course: Course, at: Situation) -> Outcome:
    rollout = replace(rollout_of(course), skip_steps=True)
    text = f"the steps of revision {rollout.revision} are skipped, as asked"
    return replace(course, rollout=_entering(rollout, at, rollout.steps)), (_normal("SkipSteps", text),)


def remap(course: Course, at: Situation) -> Outcome:
    """Keep the weight and go on at the first step that reaches it; steering by hand may also go down."""
    rollout, strategy = rollout_of(course), at.spec.strategy
    index = 0 if strategy.by_hand else canary.step_reaching(strategy.steps, at.weight(rollout.revision))
    if rollout.skip_steps:
        index = len(strategy.steps)
    renewed = replace(rollout, steps=len(strategy.steps), steps_hash=steps_hash(strategy.steps))
    text = f"the steps were edited: going on at step {min(index + 1, renewed.steps)} of {renewed.steps}"
    entered = _entering(renewed, at, index)
    return replace(course, rollout=entered), (_normal("StepsChanged", text), *_pausing(entered))


def shift(course: Course, at: Situation) -> Outcome:
    return replace(course, rollout=replace(rollout_of(course), state=State.SHIFTING)), ()


def provision(course: Course, at: Situation) -> Outcome:
    rollout = replace(rollout_of(course), state=State.PROVISIONING, progress="", progress_at=at.now)
    return replace(course, rollout=rollout), ()


def next_step(course: Course, at: Situation) -> Outcome:
    rollout = rollout_of(course)
    text = f"step {rollout.step_index + 1} of {rollout.steps} of revision {rollout.revision} is done"
    entered = _entering(rollout, at, rollout.step_index + 1)
    return replace(course, rollout=entered), (_normal("RolloutStepCompleted", text), *_pausing(entered))


def resume(course: Course, at: Situation) -> Outcome:
    rollout = rollout_of(course)
    text = f"revision {rollout.revision} goes on after the pause at {_place(rollout)}"
    entered, events = next_step(course, at)
    return entered, (_normal("RolloutResumed", text), *events)


def begin_analysis(course: Course, at: Situation) -> Outcome:
    one = runs.next_beginning(course, at)
    assert one, "the guard saw to it"
    again = "begins anew, for its template changed" if one.run else "begins"
    text = f"analysis {one.template} of revision {rollout_of(course).revision} {again}: {one.id}"
    return _with_run(course, one, runs.begun(course, at, one)), (_normal("AnalysisRunRunning", text),)


def count_analysis(course: Course, at: Situation) -> Outcome:
    """Write down what was counted and what the judge says; what follows from it is the next reconcile's."""
    found = runs.next_reading(course, at)
    assert found, "the guard saw to it"
    one, read = found
    run = runs.judged(course, at, one, read)
    return _with_run(course, one, run), (*_mismatch(one, run), *_undecided(course, one, run))


def _mismatch(one: runs.Ongoing, run: AnalysisRun) -> tuple[Event, ...]:
    """A split that is not as it should be is told when it is found: until it is mended nothing can pass or fail."""
    before, now = one.run and one.run.verdict, run.verdict
    if now is None or now.reason is not Reason.SAMPLE_RATIO_MISMATCH or (before and before.reason is now.reason):
        return ()
    return (Event("Warning", "SampleRatioMismatch", f"analysis {one.template}: {now.message}"),)


def _undecided(course: Course, one: runs.Ongoing, run: AnalysisRun) -> tuple[Event, ...]:
    """That a metric in the background ended without a verdict; a step tells so when it ends."""
    before, now = one.run and one.run.verdict, run.verdict
    if one.field != "background" or now is None or now.reason is not Reason.METRIC_INCONCLUSIVE:
        return ()
    if before and before.reason is now.reason:
        return ()
    text = f"revision {rollout_of(course).revision}: analysis {one.template} has no verdict: {now.message}"
    return (Event("Warning", "AnalysisRunInconclusive", text),)


def _with_run(course: Course, one: runs.Ongoing, run: AnalysisRun) -> Course:
    rollout = rollout_of(course)
    changed = replace(rollout, analysis=run) if one.field == "analysis" else replace(rollout, background=run)
    return replace(course, rollout=changed)


def fail_analysis(course: Course, at: Situation) -> Outcome:
    found = runs.failed(course, at)
    assert found, "the guard saw to it"
    verdict, sentence = found[1], failure_sentence(course, at)
    if verdict.outcome is not Verdict.FAIL:  # it was told when it ended so
        return abort_because("AnalysisInconclusive", "RolloutAborted", failure_sentence)(course, at)
    text = f"revision {rollout_of(course).revision}: {sentence}"
    told: tuple[Event, ...] = (Event("Warning", "AnalysisRunFailed", text),)
    if verdict.reason is Reason.VETOED:
        told = (*told, Event("Warning", "CanaryVetoed", text))
    aborted, events = abort_because("AnalysisFailed", "RolloutAborted", failure_sentence)(course, at)
    return aborted, (*told, *events)


def failure_sentence(course: Course, at: Situation) -> str:
    found = runs.failed(course, at)
    assert found, "the guard saw to it"
    one, verdict = found
    # What a pod says of its end is worth more than that it was counted.
    why = at.trouble(rollout_of(course).revision) if verdict.reason is Reason.VETOED else ""
    return f"analysis {one.template}: {verdict.message}" + (f"; {why}" if why else "")


def pass_analysis(course: Course, at: Situation) -> Outcome:
    said = runs.verdict_of_step(course, at)
    text = f"revision {rollout_of(course).revision} passed the analysis at {_place(rollout_of(course))}"
    entered, events = next_step(course, at)
    return entered, (_normal("AnalysisRunSuccessful", f"{text}: {findings.sentence(said)}"), *events)


def skip_analysis(course: Course, at: Situation) -> Outcome:
    rollout = rollout_of(course)
    text = f"revision {rollout.revision} goes on without a verdict at {_place(rollout)}, as asked"
    entered, events = next_step(course, at)
    return entered, (_normal("RolloutResumed", text), *events)


def end_inconclusive(course: Course, at: Situation) -> Outcome:
    """What the template says: pause, go on, or reject. A template that cannot be read says nothing: pause."""
    rollout = rollout_of(course)
    text = f"revision {rollout.revision} has no verdict at {_place(rollout)}: {inconclusive_sentence(course, at)}"
    told = Event("Warning", "AnalysisRunInconclusive", text)
    step = runs.step_of(rollout, at)
    spec = runs.template(at, step.template).spec if step else None
    choice = spec.on_inconclusive if spec else OnInconclusive.PAUSE
    if choice is OnInconclusive.CONTINUE:
        entered, events = next_step(course, at)
    elif choice is OnInconclusive.ABORT:
        entered, events = abort_because("AnalysisInconclusive", "RolloutAborted", inconclusive_sentence)(course, at)
    else:
        paused = replace(rollout, state=State.PAUSED)
        entered, events = replace(course, rollout=paused), _pausing(paused)
    return entered, (told, *events)


def inconclusive_sentence(course: Course, at: Situation) -> str:
    said, why = runs.verdict_of_step(course, at), runs.problem(course, at)
    return why or (f"{said.reason}: {said.message}" if said else "nothing was counted")


def _pausing(entered: Rollout) -> tuple[Event, ...]:
    """Each pause is told once, whichever way it was reached: the text names it, and equal texts are one Event."""
    if entered.state is not State.PAUSED:
        return ()
    return (_normal("RolloutPaused", f"revision {entered.revision} pauses at {_place(entered)}"),)


def _place(rollout: Rollout) -> str:
    return f"step {rollout.step_index + 1} of {rollout.steps}, attempt {rollout.attempt}"


def settle(course: Course, at: Situation) -> Outcome:
    """A revert ends in peace; any other rejection is remembered until the spec changes."""
    rollout = rollout_of(course)
    reverted = rollout.abort is not None and rollout.abort.reason == "RevertedToStable"
    kept = None if reverted else replace(rollout, state=State.ABORTED)
    text = f"no request goes to revision {rollout.revision} any more; {course.stable} serves"
    return replace(course, rollout=kept), (_normal("RolloutAborted", text),)


def forget(course: Course, at: Situation) -> Outcome:
    return replace(course, rollout=None), ()


def _new_rollout(course: Course, at: Situation, state: State) -> Rollout:
    steps = at.spec.strategy.steps
    return Rollout(
        state=state,
        revision=at.wanted,
        attempt=_next_attempt(course, at),
        started_at=at.now,
        step_started_at=at.now,
        progress_at=at.now,
        steps=len(steps),
        steps_hash=steps_hash(steps),
    )


def _next_attempt(course: Course, at: Situation) -> int:
    """One more than the last rejected attempt, so that a standing abort token does not hit the new one."""
    former = (token.split("/") for token in course.aborted)
    last = max((int(attempt) for revision, attempt in former if revision == at.wanted), default=0)
    asked = int((at.spec.intents.retry or "/0").split("/")[1]) if _names_wanted(at) else 0
    return max(last + 1, asked)


def _names_wanted(at: Situation) -> bool:
    return (at.spec.intents.retry or "").split("/")[0] == at.wanted


def _entering(rollout: Rollout, at: Situation, index: int) -> Rollout:
    """The rollout at the start of a step; past the last one it is promoted."""
    steps = at.spec.strategy.steps
    if rollout.skip_steps or index >= len(steps):
        index, state = len(steps), State.PROMOTING
    else:
        state = _HOLDING.get(type(steps[index]), State.PROVISIONING)
    # A run of the same step that is entered anew, because the steps were edited, is no part of it.
    kept = None if state is State.ANALYZING else rollout.analysis
    moved = replace(rollout, state=state, step_index=index, analysis=kept)
    return replace(moved, step_started_at=at.now, progress_at=at.now, progress="")


def note_progress(course: Course, at: Situation) -> Course:
    """The progress clock starts anew with every further ready pod, when a hold ends, and when an analysis loses all."""
    rollout = course.rollout
    if rollout is None or rollout.state not in IN_FLIGHT | FIRST:
        return course
    best = int(rollout.progress) if rollout.progress.isdigit() else -1
    noted = HELD if _held(course, at) else str(max(best, at.ready(rollout.revision)))
    if noted != HELD and rollout.state is State.ANALYZING and has_none(course, at):
        noted = LOST
    if noted == rollout.progress:
        return course
    return replace(course, rollout=replace(rollout, progress=noted, progress_at=at.now))


def _held(course: Course, at: Situation) -> bool:
    """Whether the target lacks pods, or goes no further, for no fault of its own."""
    queued = capacity.waits_for_node(at, course.target)
    short_of_room = room_for_target(course, at) < needed_replicas(course, at)
    return at.spec.paused or queued or short_of_room or hooks.holding(course, at) is not None


def _normal(reason: str, message: str) -> Event:
    return Event("Normal", reason, message)


def says(text: str) -> Callable[[Course, Situation], str]:
    return lambda course, at: text


def superseded_sentence(course: Course, at: Situation) -> str:
    return f"revision {at.wanted} replaces it"
