"""Which hook is asked what, when, under which key; and what an answer means."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from slipway_operator.api.v1alpha1.hook_state import Ended, HookOutcome, HookState, HookType
from slipway_operator.api.v1alpha1.status import Phase, Rollout, State, Status
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import wire
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.hooks import GATES, Hook, HookAnswer, HookCall
from slipway_operator.model.deployment.spec import Json, parse_hooks_of
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing import capacity, gates
from slipway_operator.planning.sizing.replicas import enough_replicas

GATE_FIRST_S, GATE_LIMIT_S = 5, 60  # a gate that holds is asked again after as long as it has held, within these
ROLLBACK_POLL_S = 10
ROLLBACK_SLACK_S = 5  # so that an answer that takes its whole time comes before the next question

Outcome = tuple[Course, tuple[Event, ...]]


# --- the rollout waits ------------------------------------------------------------------------------------------------


def holding(course: Course, at: Situation) -> tuple[Hook, str] | None:
    """The hook that the rollout waits for at this moment, and what it is asked about."""
    return None if at.spec.paused else _held_by(course, at)


def _held_by(course: Course, at: Situation) -> tuple[Hook, str] | None:
    """The same, pause of the spec or not."""
    asks = at.replicas > 0 and gates.listens(course) is not None
    return gates.missing(course, at, _matters(course, at)) if asks else None


def _matters(course: Course, at: Situation) -> Iterator[gates.Matter]:
    """What may be asked where the rollout is: about pods when they are ready, about weight when it is its turn."""
    # Where revisions take turns, further pods come only as the weight moves: it is asked about from the first pod on.
    turns = capacity.tight(course, at)
    ready = at.ready(course.target) >= (1 if turns else max(1, enough_replicas(course, at)))
    if not ready or course.state in (State.PAUSED, State.ANALYZING):
        yield from gates.before_pods(course, at)
        return
    before = gates.before_weight(course, at)
    if course.state is State.PROVISIONING and not turns:
        yield from (matter for matter in before if matter in (gates.START, gates.PODS))
        return
    yield from before
    reached = course.state is State.SHIFTING and at.traffic_synced
    if reached and at.weight(course.target) == gates.goal_weight(course, at):
        yield from gates.after_weight(course, at)


def is_waiting(course: Course, at: Situation) -> bool:
    """Whether the gate whose turn it is was asked and does not open."""
    held, rollout = holding(course, at), course.rollout
    state = _state(rollout, *held) if held and rollout else None
    return state is not None and state.outcome is HookOutcome.WAITING


def sentence(course: Course, at: Situation) -> str | None:
    """Which hook is waited for, since when, and what it said last; None when none is."""
    held, rollout = _held_by(course, at), course.rollout
    if held is None or rollout is None:
        return None
    hook, about = held
    kind = "gate" if hook.type in GATES else "hook"
    state = _state(rollout, hook, about)
    since = f" since {wire.format_time(state.since)}" if state else ""
    said = f"; last answer: {state.message}" if state and state.message else ""
    return f"revision {rollout.revision} waits for {kind} {hook.name} ({hook.type}, {about}){since}{said}"


# --- guards and acts of the table -------------------------------------------------------------------------------------


def newly_due(course: Course, at: Situation) -> bool:
    """Whether a hook is to be asked about something that it was not asked about."""
    held, rollout = holding(course, at), course.rollout
    return held is not None and rollout is not None and _state(rollout, *held) is None


def ask(course: Course, at: Situation) -> Outcome:
    """Write the question down; it is put when that is done."""
    held, rollout = holding(course, at), course.rollout
    assert held and rollout, "the guard saw to it"
    hook, about = held
    names = {item.name for item in at.spec.hooks} - {hook.name}
    former = next((state for state in rollout.hooks if state.name == hook.name), None)
    number = former.asked + 1 if former else 1
    key = _key(at, rollout, hook, number)
    asked = HookState(hook.name, hook.type, about, key, HookOutcome.ASKED, since=at.now, asked=number)
    others = tuple(state for state in rollout.hooks if state.name in names)
    return replace(course, rollout=replace(rollout, hooks=(*others, asked))), ()


def is_answered(course: Course, at: Situation) -> bool:
    """Whether an answer came that is not written down."""
    return course.rollout is not None and any(_open(state, at) for state in course.rollout.hooks)


def note(course: Course, at: Situation) -> Outcome:
    """Write answers down; what they allow or forbid is done when that is done."""
    rollout = course.rollout
    assert rollout, "the guard saw to it"
    noted = tuple(_noted(state, at, rollout) for state in rollout.hooks)
    pairs = zip(rollout.hooks, noted, strict=True)
    events = (event for before, after in pairs for event in _told(before, after, rollout))
    return replace(course, rollout=replace(rollout, hooks=noted)), tuple(events)


def failed(course: Course, at: Situation) -> bool:
    """Whether a check of this attempt failed."""
    return gates.listens(course) is not None and _failure(course) is not None


def failure_sentence(course: Course, at: Situation) -> str:
    """Which check failed, and what it said."""
    state = _failure(course)
    assert state, "the guard saw to it"
    return f"hook {state.name} ({state.type}, {state.about}) failed: {state.message}"


def rollback_asked(course: Course, at: Situation) -> bool:
    """Whether a rollback hook said yes."""
    return _rollback_answer(course, at) is not None


def rollback_sentence(course: Course, at: Situation) -> str:
    """Which rollback hook said yes, and with which words."""
    found = _rollback_answer(course, at)
    assert found, "the guard saw to it"
    return f"hook {found[0].name} (rollback) asked for it: {found[1].message}"


def _failure(course: Course) -> HookState | None:
    states = course.rollout.hooks if course.rollout else ()
    return next((state for state in states if state.outcome is HookOutcome.FAILED), None)


def _rollback_answer(course: Course, at: Situation) -> tuple[Hook, HookAnswer] | None:
    answers = ((hook, at.observed.hooks.get(key)) for hook, key, _ in _rollback_polls(course, at))
    return next(((hook, answer) for hook, answer in answers if answer and answer.ok), None)


def _open(state: HookState, at: Situation) -> bool:
    return state.outcome in (HookOutcome.ASKED, HookOutcome.WAITING) and state.key in at.observed.hooks


def _noted(state: HookState, at: Situation, rollout: Rollout) -> HookState:
    """A gate that does not open gets the key of its next question."""
    if not _open(state, at):
        return state
    answer = at.observed.hooks[state.key]
    heard = replace(state, at=at.now, message=answer.message)
    if answer.ok:
        return replace(heard, outcome=HookOutcome.PASSED)
    if state.type not in GATES:
        return replace(heard, outcome=HookOutcome.FAILED)
    key = f"{state.key.rpartition('-')[0]}-{state.asked + 1}"
    return replace(heard, outcome=HookOutcome.WAITING, asked=state.asked + 1, key=key)


def _told(before: HookState, after: HookState, rollout: Rollout) -> Iterator[Event]:
    """Once per transition, however often a gate is asked."""
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


# --- the end is told --------------------------------------------------------------------------------------------------


def follow_end(before: Course, course: Course, at: Situation) -> tuple[Ended | None, tuple[Event, ...]]:
    """The rollout that ended last, with the answers of those who were told."""
    ended = at.status.ended
    if _just_ended(before, course):
        return _ended(before, course, at), ()
    if ended is None or not any(_open(state, at) for state in ended.hooks):
        return ended, ()
    noted = tuple(_told_of_end(state, at) for state in ended.hooks)
    pairs = zip(ended.hooks, noted, strict=True)
    failures = (
        Event("Warning", "HookFailed", f"hook {now.name} ({now.type}) of {ended.revision} failed: {now.message}")
        for former, now in pairs
        if former.outcome is not now.outcome and now.outcome is HookOutcome.FAILED
    )
    return replace(ended, hooks=noted), tuple(failures)


def _just_ended(before: Course, course: Course) -> bool:
    """Promoted or fully rejected; a first revision had no rollout to tell of."""
    ran = before.stable is not None and before.state not in (None, State.ABORTED)
    return ran and course.state in (None, State.ABORTED)


def _ended(before: Course, course: Course, at: Situation) -> Ended | None:
    rollout = before.rollout
    listeners = [hook for hook in at.spec.hooks if hook.type is HookType.POST_ROLLOUT]
    if rollout is None or not listeners:
        return None
    return Ended(
        revision=rollout.revision,
        attempt=rollout.attempt,
        step_index=rollout.step_index,
        promoted=course.stable == rollout.revision,
        reason=rollout.abort.message if rollout.abort else "promoted",
        at=at.now,
        hooks=tuple(
            HookState(hook.name, hook.type, "end", _key(at, rollout, hook, 1), HookOutcome.ASKED, since=at.now)
            for hook in listeners
        ),
    )


def _told_of_end(state: HookState, at: Situation) -> HookState:
    if not _open(state, at):
        return state
    answer = at.observed.hooks[state.key]
    outcome = HookOutcome.PASSED if answer.ok else HookOutcome.FAILED
    return replace(state, outcome=outcome, at=at.now, message=answer.message)


# --- questions --------------------------------------------------------------------------------------------------------


def calls(owner: Owner, course: Course, ended: Ended | None, at: Situation) -> tuple[HookCall, ...]:
    """Every question whose answer is wanted now. The one who puts them knows which are on their way already."""
    return (*_calls_of_rollout(owner, course, at), *_calls_of_end(owner, course, ended, at))


def moments(course: Course, at: Situation) -> Iterator[datetime]:
    """When a hook is asked next."""
    held = holding(course, at)
    for state in course.rollout.hooks if course.rollout else ():
        if state.outcome is HookOutcome.WAITING and held and held[0].name == state.name:
            yield _asked_again_at(state)
    yield from (then for _, _, then in _rollback_polls(course, at))


def _calls_of_rollout(owner: Owner, course: Course, at: Situation) -> Iterator[HookCall]:
    rollout = gates.listens(course)
    if rollout is None:
        return
    held = holding(course, at)
    known = {(hook.name, hook.type): hook for hook in at.spec.hooks}
    for state in rollout.hooks:
        hook = known.get((state.name, state.type))
        again = state.outcome is HookOutcome.WAITING and held is not None and held == (hook, state.about)
        if hook and (state.outcome is HookOutcome.ASKED or (again and at.now >= _asked_again_at(state))):
            yield HookCall(state.key, hook, _payload(owner, course, at, hook, rollout))
    for hook, key, _ in _rollback_polls(course, at):
        yield HookCall(key, hook, _payload(owner, course, at, hook, rollout))


def _calls_of_end(owner: Owner, course: Course, ended: Ended | None, at: Situation) -> Iterator[HookCall]:
    known = {hook.name: hook for hook in at.spec.hooks if hook.type is HookType.POST_ROLLOUT}
    for state in ended.hooks if ended else ():
        hook = known.get(state.name)
        if ended and hook and state.outcome is HookOutcome.ASKED:
            payload = {
                **_subject(owner.name, owner.namespace, hook, ended.revision),
                "phase": "Succeeded" if ended.promoted else "Failed",
                "attempt": ended.attempt,
                "step": ended.step_index,
                "weight": 100 if ended.promoted else 0,
                "stable": course.stable,
                "canary": ended.revision,
                "reason": ended.reason,
            }
            yield HookCall(state.key, hook, payload)


def _asked_again_at(state: HookState) -> datetime:
    """After as long as the gate has held, at least 5 and at most 60 seconds."""
    answered = state.at or state.since
    held_s = (answered - state.since).total_seconds()
    return answered + timedelta(seconds=min(GATE_LIMIT_S, max(GATE_FIRST_S, held_s)))


def _rollback_polls(course: Course, at: Situation) -> Iterator[tuple[Hook, str, datetime]]:
    """(hook, key of the present question, moment of the next one). Nothing is written for a no: time is the count."""
    rollout = gates.listens(course)
    for hook in at.spec.hooks if rollout else ():
        if rollout and hook.type is HookType.ROLLBACK:
            interval_s = max(ROLLBACK_POLL_S, hook.timeout_s + ROLLBACK_SLACK_S)
            number = max(0, int(at.elapsed_s(rollout.started_at))) // interval_s + 1
            then = rollout.started_at + timedelta(seconds=number * interval_s)
            yield hook, _key(at, rollout, hook, number, step="-"), then


def _key(at: Situation, rollout: Rollout, hook: Hook, number: int, step: str = "") -> str:
    """UID/REVISION/ATTEMPT/STEP/HOOK/START-NUMBER. A revision may go out again one day, as attempt 1 again."""
    start = int(rollout.started_at.timestamp())
    return f"{at.uid}/{rollout.attempt_token}/{step or rollout.step_index}/{hook.name}/{start}-{number}"


_PHASES = {HookType.CONFIRM_ROLLOUT: "Waiting", HookType.CONFIRM_PROMOTION: "WaitingPromotion"}


def _payload(owner: Owner, course: Course, at: Situation, hook: Hook, rollout: Rollout) -> dict[str, object]:
    """What a hook is told; the one who sends it adds key and time."""
    return {
        **_subject(owner.name, owner.namespace, hook, rollout.revision),
        "phase": _PHASES.get(hook.type, "Progressing"),
        "attempt": rollout.attempt,
        "step": rollout.step_index,
        "weight": at.weight(rollout.revision),
        "nextWeight": gates.goal_weight(course, at),
        "stable": course.stable,
        "canary": rollout.revision,
    }


def _subject(name: str, namespace: str, hook: Hook, revision: str | None) -> dict[str, object]:
    return {
        "name": name,
        "namespace": namespace,
        "hook": hook.name,
        "type": str(hook.type),
        "revision": revision,
        "checksum": revision,
        "metadata": dict(hook.metadata),
    }


# --- events -----------------------------------------------------------------------------------------------------------


def notices(obj: Json, status: Status, events: Iterable[Event], now: datetime) -> tuple[HookCall, ...]:
    """Every Event for every event hook. They are sent once and nobody waits for them."""
    listeners = [hook for hook in parse_hooks_of(obj) if hook.type is HookType.EVENT]
    return tuple(_notice(Owner.of(obj), status, hook, event, now) for event in events for hook in listeners)


def _notice(owner: Owner, status: Status, hook: Hook, event: Event, now: datetime) -> HookCall:
    rollout = status.rollout
    revision = rollout.revision if rollout else status.stable_revision
    about = rollout.step_token if rollout else f"{revision}/0/0"
    moment_ms = int(now.timestamp() * 1000)
    identity = hashlib.sha256("\0".join((event.reason, event.message, str(moment_ms))).encode()).hexdigest()[:16]
    said = {"eventMessage": event.message, "eventType": event.type, "eventReason": event.reason}
    payload = {
        **_subject(owner.name, owner.namespace, hook, revision),
        "phase": _event_phase(status),
        "attempt": rollout.attempt if rollout else 0,
        "step": rollout.step_index if rollout else 0,
        "weight": status.weight or 0,
        "stable": status.stable_revision,
        "canary": status.canary_revision,
        "metadata": {**dict(hook.metadata), **said, "timestamp": str(moment_ms)},
    }
    return HookCall(f"{owner.uid}/{about}/{hook.name}/{identity}", hook, payload)


def _event_phase(status: Status) -> str:
    """In Flagger's words."""
    state = status.rollout.state if status.rollout else None
    if state in (State.ABORTING, State.ABORTED):
        return "Failed"
    words = {State.INITIALIZING: "Initializing", State.PROMOTING: "Promoting", None: "Succeeded"}
    return "Waiting" if status.phase is Phase.PAUSED else words.get(state, "Progressing")
