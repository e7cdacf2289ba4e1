"""The hook that a rollout waits for, rows that record calls and responses, and the effect of a response."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from slipway_contracts.api.times import format_time
from slipway_operator.api.v1alpha1.hooks import HookOutcome, HookState, HookType
from slipway_operator.api.v1alpha1.status import Rollout, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.hooks import GATES, Hook, HookAnswer
from slipway_operator.model.deployment.strategy import Ramp
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of, step_now
from slipway_operator.planning.rollout.row import IN_FLIGHT, Outcome, row
from slipway_operator.planning.sizing import gates
from slipway_operator.planning.sizing.sizes import Sizes

ROLLBACK_POLL_S = 10
ROLLBACK_SLACK_S = 5  # so that a response that takes the whole timeout arrives before the next call

# --- the rollout waits ------------------------------------------------------------------------------------------------


def holding(course: Course, at: Situation, sizes: Sizes) -> tuple[Hook, str] | None:
    """The hook that the rollout waits for at this moment, and what the call is about."""
    return None if at.holds else _held_by(course, at, sizes)


def _held_by(course: Course, at: Situation, sizes: Sizes) -> tuple[Hook, str] | None:
    """The hook of `holding`, even if spec.paused is set."""
    listens = at.replicas > 0 and gates.listens(course) is not None
    return gates.missing(course, at, _matters(course, at, sizes)) if listens else None


def _matters(course: Course, at: Situation, sizes: Sizes) -> Iterator[gates.Matter]:
    """What calls may be about in the rollout's present state: pods until enough are ready, then weight."""
    # Where revisions take turns, pods are added only as the weight moves: calls about weight start with the first pod.
    # So do those of a ramp, whose weight increases while it is analyzed.
    ramps = course.state is State.ANALYZING and isinstance(step_now(at.spec, rollout_of(course)), Ramp)
    turns = sizes.tight or ramps
    ready = at.ready(course.target) >= (1 if turns else max(1, sizes.enough))
    if not ready or (course.state in (State.PAUSED, State.ANALYZING) and not ramps):
        yield from gates.before_pods(course, at, sizes.mode)
        return
    before = gates.before_weight(course, at, sizes.mode)
    if course.state is State.PROVISIONING and not turns:
        yield from (matter for matter in before if matter in (gates.START, gates.PODS))
        return
    yield from before
    reached = course.state is State.SHIFTING and at.traffic_synced
    if reached and at.weight(course.target) == gates.goal_weight(course, at, sizes.mode):
        yield from gates.after_weight(course, at, sizes.mode)


def is_waiting(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether the gate that holds the rollout was called and did not open."""
    held, rollout = holding(course, at, sizes), course.rollout
    state = _state(rollout, *held) if held and rollout else None
    return state is not None and state.outcome is HookOutcome.WAITING


def sentence(course: Course, at: Situation, sizes: Sizes) -> str | None:
    """Which hook the rollout waits for, since when, and its last response; None when it waits for none."""
    held, rollout = _held_by(course, at, sizes), course.rollout
    if held is None or rollout is None:
        return None
    hook, about = held
    kind = "gate" if hook.type in GATES else "hook"
    state = _state(rollout, hook, about)
    since = f" since {format_time(state.since)}" if state else ""
    last = f"; last answer: {state.message}" if state and state.message else ""
    return f"revision {rollout.revision} waits for {kind} {hook.name} ({hook.type}, {about}){since}{last}"


# --- rows of the table ------------------------------------------------------------------------------------------------


@row(
    "hook-answered",
    "A hook responded: the response is written down before it has an effect.",
    IN_FLIGHT,
)
def hook_answered(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    if not any(is_open(state, at) for state in rollout.hooks):
        return None
    noted = tuple(_noted(state, at) for state in rollout.hooks)
    pairs = zip(rollout.hooks, noted, strict=True)
    events = (event for before, after in pairs for event in _events(before, after, rollout))
    return replace(course, rollout=replace(rollout, hooks=noted)), tuple(events)


@row(
    "hook-due",
    "A gate or a check is due: the call is written down, then made.",
    IN_FLIGHT,
)
def hook_due(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    held, rollout = holding(course, at, sizes), rollout_of(course)
    if held is None or _state(rollout, *held) is not None:
        return None
    hook, about = held
    names = {item.name for item in at.spec.hooks} - {hook.name}
    former = next((state for state in rollout.hooks if state.name == hook.name), None)
    number = former.asked + 1 if former else 1
    called = HookState(
        hook.name, hook.type, about, key(at, rollout, hook, number), HookOutcome.ASKED, since=at.now, asked=number
    )
    others = tuple(state for state in rollout.hooks if state.name in names)
    return replace(course, rollout=replace(rollout, hooks=(*others, called))), ()


# --- responses --------------------------------------------------------------------------------------------------------


def failure(course: Course) -> HookState | None:
    """The check of this attempt that failed; None while none has."""
    rollout = gates.listens(course)
    states = rollout.hooks if rollout else ()
    return next((state for state in states if state.outcome is HookOutcome.FAILED), None)


def rollback_answer(course: Course, at: Situation) -> tuple[Hook, HookAnswer] | None:
    """The rollback hook that returned 2xx, with its response; None while none has."""
    answers = ((hook, at.observed.hooks.get(key)) for hook, key, _ in rollback_polls(course, at))
    return next(((hook, answer) for hook, answer in answers if answer and answer.ok), None)


def is_open(state: HookState, at: Situation) -> bool:
    """Whether there is a response that the status does not have yet."""
    return state.outcome in (HookOutcome.ASKED, HookOutcome.WAITING) and state.key in at.observed.hooks


def _noted(state: HookState, at: Situation) -> HookState:
    """The state with the response, if any; a gate that does not open gets the key of its next call."""
    if not is_open(state, at):
        return state
    answer = at.observed.hooks[state.key]
    noted = replace(state, at=at.now, message=answer.message)
    if answer.ok:
        return replace(noted, outcome=HookOutcome.PASSED)
    if state.type not in GATES:
        return replace(noted, outcome=HookOutcome.FAILED)
    key = f"{state.key.rpartition('-')[0]}-{state.asked + 1}"
    return replace(noted, outcome=HookOutcome.WAITING, asked=state.asked + 1, key=key)


def _events(before: HookState, after: HookState, rollout: Rollout) -> Iterator[Event]:
    """The Event of a transition: one each, however often a gate is called."""
    if before.outcome is after.outcome:
        return
    what = f"{after.name} ({after.type}, {after.about})"
    if after.outcome is HookOutcome.FAILED:
        yield Event("Warning", "HookFailed", f"hook {what} failed for revision {rollout.revision}: {after.message}")
    elif after.outcome is HookOutcome.WAITING:
        yield Event("Normal", "GateWaiting", f"gate {what} holds revision {rollout.revision}: {after.message}")
    elif after.outcome is HookOutcome.PASSED and after.type in GATES:
        yield Event("Normal", "GateOpened", f"gate {what} is open for revision {rollout.revision}")


def _state(rollout: Rollout, hook: Hook, about: str) -> HookState | None:
    wanted = (hook.name, hook.type, about)
    return next((state for state in rollout.hooks if (state.name, state.type, state.about) == wanted), None)


def rollback_polls(course: Course, at: Situation) -> Iterator[tuple[Hook, str, datetime]]:
    """Each rollback hook, with the key of its present call and the time of the next one.

    The time gives the number of a call, so a failed call needs no write to the status.
    """
    rollout = gates.listens(course)
    for hook in at.spec.hooks if rollout else ():
        if rollout and hook.type is HookType.ROLLBACK:
            interval_s = max(ROLLBACK_POLL_S, hook.timeout_s + ROLLBACK_SLACK_S)
            number = max(0, int(at.elapsed_s(rollout.started_at))) // interval_s + 1
            then = rollout.started_at + timedelta(seconds=number * interval_s)
            yield hook, key(at, rollout, hook, number, step="-"), then


def key(at: Situation, rollout: Rollout, hook: Hook, number: int, step: str = "") -> str:
    """UID/REVISION/ATTEMPT/STEP/HOOK/START-NUMBER, with START because a revision may roll out as attempt 1 again."""
    start = int(rollout.started_at.timestamp())
    return f"{at.uid}/{rollout.attempt_token}/{step or rollout.step_index}/{hook.name}/{start}-{number}"
