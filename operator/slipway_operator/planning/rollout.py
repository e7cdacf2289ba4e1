"""The rollout's state machine: one table of (states, guard, act) rows, of which one reconcile takes at most one.

Each transition is written to the status before the next is considered, so an operator that dies between any two calls
goes on from where it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from slipway_operator.model.plan import Event
from slipway_operator.model.spec import Pause
from slipway_operator.model.status import Abort, Rollout, State
from slipway_operator.planning import canary
from slipway_operator.planning.replicas import needed_replicas, room_for_target
from slipway_operator.planning.revision import steps_hash
from slipway_operator.planning.situation import Course, Situation

MAX_ABORTED = 20
HELD = "held"  # noted as progress while others are waited for

IDLE = frozenset({None})
FIRST = frozenset({State.INITIALIZING})
STEPPING = frozenset({State.PROVISIONING, State.SHIFTING, State.PAUSED})
IN_FLIGHT = STEPPING | {State.PROMOTING}

Outcome = tuple[Course, tuple[Event, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """In one of `states`, when `guard` holds, `act`. `name` is the row's name in tests and docs."""

    name: str
    states: frozenset[State | None]
    guard: Callable[[Course, Situation], bool]
    act: Callable[[Course, Situation], Outcome]


def advance(course: Course, at: Situation) -> Outcome:
    """Take the first row that applies; else only note progress."""
    row = matching_row(course, at)
    return row.act(course, at) if row else (_note_progress(course, at), ())


def matching_row(course: Course, at: Situation) -> Row | None:
    """The row that applies, if any."""
    return next((row for row in TABLE if course.state in row.states and row.guard(course, at)), None)


# --- guards -----------------------------------------------------------------------------------------------------------


def _rollout(course: Course) -> Rollout:
    assert course.rollout is not None, "only the rows of idle states run without a rollout"
    return course.rollout


def _no_stable(course: Course, at: Situation) -> bool:
    return course.stable is None


def _target_changed(course: Course, at: Situation) -> bool:
    return _rollout(course).revision != at.wanted


def _serves_but_changed(course: Course, at: Situation) -> bool:
    serves = at.weight(_rollout(course).revision) == 100 and at.traffic_synced
    return serves and _target_changed(course, at)


def _unserved_and_changed(course: Course, at: Situation) -> bool:
    return at.weight(_rollout(course).revision) == 0 and _target_changed(course, at)


def _fully_shifted(course: Course, at: Situation) -> bool:
    """All pods ready, all requests there, on every gateway."""
    target = _rollout(course).revision
    enough = at.ready(target) >= max(at.replicas, 1)
    return enough and at.weight(target) == 100 and at.traffic_synced and not at.spec.paused


def _reverted(course: Course, at: Situation) -> bool:
    return at.wanted == course.stable


def _abort_asked(course: Course, at: Situation) -> bool:
    return at.spec.intents.abort == _rollout(course).attempt_token


def _deadline_passed(course: Course, at: Situation) -> bool:
    rollout = _rollout(course)
    waiting = at.ready(rollout.revision) < needed_replicas(course, at) and rollout.progress not in ("", HELD)
    return waiting and at.elapsed_s(rollout.progress_at) >= at.spec.progress_deadline_s


def _steps_changed(course: Course, at: Situation) -> bool:
    return _rollout(course).steps_hash != steps_hash(at.spec.strategy.steps)


def _skip_asked(course: Course, at: Situation) -> bool:
    return at.spec.intents.promote_full == _rollout(course).revision


def _may_step(course: Course, at: Situation) -> bool:
    return not at.spec.paused and at.replicas > 0 and at.stable_healthy(course.stable)


def _pods_ready(course: Course, at: Situation) -> bool:
    return _may_step(course, at) and at.ready(_rollout(course).revision) >= needed_replicas(course, at)


def _pods_lost(course: Course, at: Situation) -> bool:
    return at.ready(_rollout(course).revision) < needed_replicas(course, at)


def _weight_reached(course: Course, at: Situation) -> bool:
    rollout = _rollout(course)
    asked = canary.weight_at(at.spec.strategy.steps, rollout.step_index)
    return _may_step(course, at) and at.weight(rollout.revision) == asked and at.traffic_synced


def _pause_over(course: Course, at: Situation) -> bool:
    rollout = _rollout(course)
    if at.spec.paused or at.replicas == 0:
        return False
    if at.spec.intents.promote == rollout.step_token:
        return True
    step = at.spec.strategy.steps[rollout.step_index]
    timed = isinstance(step, Pause) and step.duration_s is not None
    return timed and _may_step(course, at) and at.now >= pause_ends(rollout, at)


def pause_ends(rollout: Rollout, at: Situation) -> datetime:
    """When a timed pause is over."""
    step = at.spec.strategy.steps[rollout.step_index]
    duration_s = step.duration_s if isinstance(step, Pause) and step.duration_s is not None else 0
    return rollout.step_started_at + timedelta(seconds=duration_s)


def _target_left(course: Course, at: Situation) -> bool:
    return at.weight(_rollout(course).revision) == 0 and at.traffic_synced


def _retry_asked(course: Course, at: Situation) -> bool:
    rollout = _rollout(course)
    revision, _, attempt = (at.spec.intents.retry or "").partition("/")
    return revision == rollout.revision == at.wanted and attempt.isdigit() and int(attempt) > rollout.attempt


def _new_wanted(course: Course, at: Situation) -> bool:
    return at.wanted != course.stable


# --- acts -------------------------------------------------------------------------------------------------------------


def _start_first(course: Course, at: Situation) -> Outcome:
    rollout = _new_rollout(course, at, State.INITIALIZING)
    return replace(course, rollout=rollout), (_normal("RolloutUpdated", f"first revision {at.wanted} comes up"),)


def _start(course: Course, at: Situation) -> Outcome:
    rollout = _new_rollout(course, at, State.PROVISIONING)
    rollout = _entering(replace(rollout, skip_steps=at.rolled_back), at, 0)
    way = "without steps" if rollout.skip_steps else f"in {rollout.steps} steps"
    text = f"revision {at.wanted} goes out {way}, attempt {rollout.attempt}; {course.stable} is stable"
    return replace(course, rollout=rollout), (_normal("RolloutUpdated", text),)


def _retry(course: Course, at: Situation) -> Outcome:
    started, _ = _start(course, at)
    text = f"revision {at.wanted} is tried again, attempt {_rollout(started).attempt}"
    return started, (_normal("RolloutRetry", text),)


def _promote(course: Course, at: Situation) -> Outcome:
    target = _rollout(course).revision
    done = Course(rollout=None, stable=target, previous=course.stable or course.previous, aborted=course.aborted)
    return done, (_normal("RolloutCompleted", f"revision {target} is stable and serves all requests"),)


def _abort_because(reason: str, event: str, sentence: Callable[[Course, Situation], str]) -> Callable[..., Outcome]:
    def act(course: Course, at: Situation) -> Outcome:
        rollout = _rollout(course)
        message = sentence(course, at)
        abort = Abort(reason=reason, message=message, at=at.now, step=rollout.step_index)
        rejected = replace(rollout, state=State.ABORTING, abort=abort)
        remembered = (*course.aborted, rollout.attempt_token)[-MAX_ABORTED:]
        text = f"revision {rollout.revision}, attempt {rollout.attempt}, is rejected: {message}"
        return replace(course, rollout=rejected, aborted=remembered), (Event("Warning", event, text),)

    return act


def _deadline_sentence(course: Course, at: Situation) -> str:
    target = _rollout(course).revision
    ready, needed = at.ready(target), needed_replicas(course, at)
    why = at.trouble(target) or "its pods give no reason"
    return f"{ready} of {needed} pods ready and no progress for {at.spec.progress_deadline_s} s: {why}"


def _skip(course: Course, at: Situation) -> Outcome:
    rollout = replace(_rollout(course), skip_steps=True)
    text = f"the steps of revision {rollout.revision} are skipped, as asked"
    return replace(course, rollout=_entering(rollout, at, rollout.steps)), (_normal("SkipSteps", text),)


def _remap(course: Course, at: Situation) -> Outcome:
    """Keep the weight and go on at the first step that reaches it; steering by hand may also go down."""
    rollout, strategy = _rollout(course), at.spec.strategy
    index = 0 if strategy.by_hand else canary.step_reaching(strategy.steps, at.weight(rollout.revision))
    if rollout.skip_steps:
        index = len(strategy.steps)
    renewed = replace(rollout, steps=len(strategy.steps), steps_hash=steps_hash(strategy.steps))
    text = f"the steps were edited: going on at step {min(index + 1, renewed.steps)} of {renewed.steps}"
    return replace(course, rollout=_entering(renewed, at, index)), (_normal("StepsChanged", text),)


def _shift(course: Course, at: Situation) -> Outcome:
    return replace(course, rollout=replace(_rollout(course), state=State.SHIFTING)), ()


def _provision(course: Course, at: Situation) -> Outcome:
    rollout = replace(_rollout(course), state=State.PROVISIONING, progress="", progress_at=at.now)
    return replace(course, rollout=rollout), ()


def _next_step(course: Course, at: Situation) -> Outcome:
    rollout = _rollout(course)
    text = f"step {rollout.step_index + 1} of {rollout.steps} of revision {rollout.revision} is done"
    entered = _entering(rollout, at, rollout.step_index + 1)
    paused = (_normal("RolloutPaused", f"revision {rollout.revision} pauses"),) if entered.state is State.PAUSED else ()
    return replace(course, rollout=entered), (_normal("RolloutStepCompleted", text), *paused)


def _settle(course: Course, at: Situation) -> Outcome:
    """A revert ends in peace; any other rejection is remembered until the spec changes."""
    rollout = _rollout(course)
    reverted = rollout.abort is not None and rollout.abort.reason == "RevertedToStable"
    kept = None if reverted else replace(rollout, state=State.ABORTED)
    text = f"no request goes to revision {rollout.revision} any more; {course.stable} serves"
    return replace(course, rollout=kept), (_normal("RolloutAborted", text),)


def _forget(course: Course, at: Situation) -> Outcome:
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
        state = State.PAUSED if isinstance(steps[index], Pause) else State.PROVISIONING
    return replace(rollout, state=state, step_index=index, step_started_at=at.now, progress_at=at.now, progress="")


def _note_progress(course: Course, at: Situation) -> Course:
    """The progress clock starts anew with every further ready pod, and when a hold ends."""
    rollout = course.rollout
    if rollout is None or rollout.state not in IN_FLIGHT | FIRST:
        return course
    best = int(rollout.progress) if rollout.progress.isdigit() else -1
    noted = HELD if _held(course, at) else str(max(best, at.ready(rollout.revision)))
    if noted == rollout.progress:
        return course
    return replace(course, rollout=replace(rollout, progress=noted, progress_at=at.now))


def _held(course: Course, at: Situation) -> bool:
    """Whether the target lacks pods for no fault of its own."""
    return at.spec.paused or room_for_target(course, at) < needed_replicas(course, at)


def _normal(reason: str, message: str) -> Event:
    return Event("Normal", reason, message)


def _says(text: str) -> Callable[[Course, Situation], str]:
    return lambda course, at: text


def _superseded_sentence(course: Course, at: Situation) -> str:
    return f"revision {at.wanted} replaces it"


# Order matters: what ends an attempt comes before what carries it on.
TABLE: tuple[Row, ...] = (
    Row("first-revision", IDLE, _no_stable, _start_first),
    Row("first-serves-and-changes", FIRST, _serves_but_changed, _promote),
    Row("first-replaced", FIRST, _unserved_and_changed, _start_first),
    Row("first-ready", FIRST, _fully_shifted, _promote),
    Row("new-revision", IDLE, _new_wanted, _start),
    Row(
        "reverted-to-stable",
        IN_FLIGHT,
        _reverted,
        _abort_because("RevertedToStable", "RolloutAborted", _says("the spec went back to the stable revision")),
    ),
    Row(
        "user-abort",
        IN_FLIGHT,
        _abort_asked,
        _abort_because("UserAbort", "RolloutAborted", _says("aborted by spec.rollout.abort")),
    ),
    Row(
        "superseded",
        IN_FLIGHT,
        _target_changed,
        _abort_because("Superseded", "RevisionSuperseded", _superseded_sentence),
    ),
    Row(
        "deadline",
        frozenset({State.PROVISIONING, State.PROMOTING}),
        _deadline_passed,
        _abort_because("ProgressDeadlineExceeded", "RolloutAborted", _deadline_sentence),
    ),
    Row("promote-full", STEPPING, _skip_asked, _skip),
    Row("steps-changed", IN_FLIGHT, _steps_changed, _remap),
    Row("pods-ready", frozenset({State.PROVISIONING}), _pods_ready, _shift),
    Row("pods-lost", frozenset({State.SHIFTING}), _pods_lost, _provision),
    Row("step-done", frozenset({State.SHIFTING}), _weight_reached, _next_step),
    Row("pause-over", frozenset({State.PAUSED}), _pause_over, _next_step),
    Row("promoted", frozenset({State.PROMOTING}), _fully_shifted, _promote),
    Row("weight-returned", frozenset({State.ABORTING}), _target_left, _settle),
    Row("retry", frozenset({State.ABORTED}), _retry_asked, _retry),
    Row("reverted-after-abort", frozenset({State.ABORTED}), _reverted, _forget),
    Row("changed-after-abort", frozenset({State.ABORTED}), _target_changed, _start),
)
