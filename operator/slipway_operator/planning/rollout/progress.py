"""How a rollout enters a step, when it may continue, and its progress clock."""

from dataclasses import replace
from datetime import datetime, timedelta

from slipway_operator.api.v1alpha1.status import Rollout, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.strategy import Analysis, Pause
from slipway_operator.planning.analysis import runs
from slipway_operator.planning.facts import error_budget
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of, step_now
from slipway_operator.planning.rollout import hooks
from slipway_operator.planning.rollout.row import ABORTING, FIRST, IN_FLIGHT, Outcome
from slipway_operator.planning.sizing import capacity
from slipway_operator.planning.sizing.replicas import room_for_target
from slipway_operator.planning.sizing.sizes import Sizes, lost_since

HELD = "held"  # the progress of a rollout that waits without a fault of its own; see `_held`
LOST = "lost"  # the progress of an analysis without a ready pod to judge
# An analysis of pairs and a ramp wait for their pods first: `provisioned` begins them.
_HOLDING: dict[type, State] = {Pause: State.PAUSED, Analysis: State.ANALYZING}


def may_step(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether the rollout may enter its next step, apart from conditions of the step itself."""
    free = not at.holds and at.replicas > 0 and (sizes.stable_carries or sizes.stable_lost)
    return free and runs.holds(course, at) is None and not error_budget.holds(course, at)


def next_step(course: Course, at: Situation) -> Outcome:
    """The rollout in its next step, with the Events: the present step is done."""
    rollout = rollout_of(course)
    text = f"step {rollout.step_index + 1} of {rollout.steps} of revision {rollout.revision} is done"
    entered = entering(rollout, at, rollout.step_index + 1)
    return replace(course, rollout=entered), (Event("Normal", "RolloutStepCompleted", text), *pausing(entered))


def entering(rollout: Rollout, at: Situation, index: int) -> Rollout:
    """The rollout at the start of a step; past the last one it is promoted."""
    steps = at.spec.strategy.steps
    if rollout.skip_steps or index >= len(steps):
        index, state = len(steps), State.PROMOTING
    else:
        state = _HOLDING.get(type(steps[index]), State.PROVISIONING)
    # A step that is entered again, because the steps were edited, does not continue its former run.
    kept = None if index < len(steps) and isinstance(steps[index], Analysis) else rollout.analysis
    moved = replace(rollout, state=state, step_index=index, analysis=kept)
    return replace(moved, step_started_at=at.now, progress_at=at.now, progress="")


def provisioned(course: Course, at: Situation) -> Outcome:
    """The rollout at its step, an analysis of pairs or a ramp, whose pods are ready: its time begins."""
    rollout = replace(rollout_of(course), state=State.ANALYZING, step_started_at=at.now)
    return replace(course, rollout=replace(rollout, progress_at=at.now, progress="")), ()


def pausing(entered: Rollout) -> tuple[Event, ...]:
    """One Event per pause, however it was reached: the message names it, and equal messages are one Event."""
    if entered.state is not State.PAUSED:
        return ()
    return (Event("Normal", "RolloutPaused", f"revision {entered.revision} pauses at {place(entered)}"),)


def place(rollout: Rollout) -> str:
    """Step and attempt, for messages."""
    return f"step {rollout.step_index + 1} of {rollout.steps}, attempt {rollout.attempt}"


def pause_ends(rollout: Rollout, at: Situation) -> datetime:
    """When a timed pause is over."""
    step = step_now(at.spec, rollout)
    duration_s = step.duration_s if isinstance(step, Pause) and step.duration_s is not None else 0
    return rollout.step_started_at + timedelta(seconds=duration_s)


def has_none(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether the revision under test needs pods and has no ready one."""
    return at.ready(rollout_of(course).revision) == 0 < sizes.needed


def note_progress(course: Course, at: Situation, sizes: Sizes) -> Course:
    """The course with its progress. The clock restarts with more ready pods, after a hold, and when all are lost."""
    if course.rollout and course.state in IN_FLIGHT | ABORTING:
        course = replace(course, rollout=replace(course.rollout, stable_lost_at=lost_since(course, at)))
    rollout = course.rollout
    if rollout is None or rollout.state not in IN_FLIGHT | FIRST:
        return course
    best = int(rollout.progress) if rollout.progress.isdigit() else -1
    noted = HELD if _held(course, at, sizes) else str(max(best, at.ready(rollout.revision)))
    if noted != HELD and rollout.state is State.ANALYZING and has_none(course, at, sizes):
        noted = LOST
    if noted == rollout.progress:
        return course
    return replace(course, rollout=replace(rollout, progress=noted, progress_at=at.now))


def _held(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether the target lacks pods, or does not continue, without a fault of its own."""
    queued = capacity.waits_for_node(at, course.target)
    short_of_room = room_for_target(course, at, sizes) < sizes.needed
    gated = hooks.holding(course, at, sizes) is not None or error_budget.holds(course, at)
    return at.holds or queued or short_of_room or gated
