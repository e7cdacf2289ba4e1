"""Calls to webhooks: which are due, their payload, when they are repeated, and the end of a rollout."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.hooks import Ended, HookOutcome, HookState, HookType
from slipway_operator.api.v1alpha1.status import Mode, Phase, State, Status
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.hooks import Hook, HookCall
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.rollout import hooks
from slipway_operator.planning.sizing import gates
from slipway_operator.planning.sizing.sizes import Sizes

GATE_FIRST_S, GATE_LIMIT_S = 5, 60  # bounds on the wait before a gate that holds is called again


# --- the end of a rollout ---------------------------------------------------------------------------------------------


def follow_end(before: Course, course: Course, at: Situation) -> tuple[Ended | None, tuple[Event, ...]]:
    """The rollout that ended last, with the responses of its post-rollout hooks; and Events of failed ones."""
    ended = at.status.ended
    if _just_ended(before, course):
        return _ended(before, course, at), ()
    if ended is None or not any(hooks.is_open(state, at) for state in ended.hooks):
        return ended, ()
    noted = tuple(_noted_end(state, at) for state in ended.hooks)
    pairs = zip(ended.hooks, noted, strict=True)
    failures = (
        Event("Warning", "HookFailed", f"hook {now.name} ({now.type}) of {ended.revision} failed: {now.message}")
        for former, now in pairs
        if former.outcome is not now.outcome and now.outcome is HookOutcome.FAILED
    )
    return replace(ended, hooks=noted), tuple(failures)


def _just_ended(before: Course, course: Course) -> bool:
    """Whether a rollout was promoted or fully rejected now; a first revision has no rollout."""
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
            HookState(hook.name, hook.type, "end", hooks.key(at, rollout, hook, 1), HookOutcome.ASKED, since=at.now)
            for hook in listeners
        ),
    )


def _noted_end(state: HookState, at: Situation) -> HookState:
    if not hooks.is_open(state, at):
        return state
    answer = at.observed.hooks[state.key]
    outcome = HookOutcome.PASSED if answer.ok else HookOutcome.FAILED
    return replace(state, outcome=outcome, at=at.now, message=answer.message)


# --- calls ------------------------------------------------------------------------------------------------------------


def calls(owner: Owner, course: Course, ended: Ended | None, at: Situation, sizes: Sizes) -> tuple[HookCall, ...]:
    """Every call whose response is needed now. The runner knows which are in progress already."""
    return (*_calls_of_rollout(owner, course, at, sizes), *_calls_of_end(owner, course, ended, at))


def moments(course: Course, at: Situation, sizes: Sizes) -> Iterator[datetime]:
    """When a hook is called next."""
    held = hooks.holding(course, at, sizes)
    for state in course.rollout.hooks if course.rollout else ():
        if state.outcome is HookOutcome.WAITING and held and held[0].name == state.name:
            yield _called_again_at(state)
    yield from (then for _, _, then in hooks.rollback_polls(course, at))


def _calls_of_rollout(owner: Owner, course: Course, at: Situation, sizes: Sizes) -> Iterator[HookCall]:
    rollout = gates.listens(course)
    if rollout is None:
        return
    held = hooks.holding(course, at, sizes)
    known = {(hook.name, hook.type): hook for hook in at.spec.hooks}
    for state in rollout.hooks:
        hook = known.get((state.name, state.type))
        again = state.outcome is HookOutcome.WAITING and held is not None and held == (hook, state.about)
        if hook and (state.outcome is HookOutcome.ASKED or (again and at.now >= _called_again_at(state))):
            yield HookCall(state.key, hook, _payload(owner, course, at, sizes.mode, hook))
    for hook, key, _ in hooks.rollback_polls(course, at):
        yield HookCall(key, hook, _payload(owner, course, at, sizes.mode, hook))


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


def _called_again_at(state: HookState) -> datetime:
    """When a gate is called again: after the time that it has held, from 5 to 60 seconds."""
    answered = state.at or state.since
    held_s = (answered - state.since).total_seconds()
    return answered + timedelta(seconds=min(GATE_LIMIT_S, max(GATE_FIRST_S, held_s)))


_PHASES = {HookType.CONFIRM_ROLLOUT: "Waiting", HookType.CONFIRM_PROMOTION: "WaitingPromotion"}


def _payload(owner: Owner, course: Course, at: Situation, mode: Mode, hook: Hook) -> dict[str, object]:
    """The body of a call; the sender adds key and time."""
    rollout = rollout_of(course)
    return {
        **_subject(owner.name, owner.namespace, hook, rollout.revision),
        "phase": _PHASES.get(hook.type, "Progressing"),
        "attempt": rollout.attempt,
        "step": rollout.step_index,
        "weight": at.weight(rollout.revision),
        "nextWeight": gates.goal_weight(course, at, mode),
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


def notices(
    obj: Json, hooks: Iterable[Hook], status: Status, events: Iterable[Event], now: datetime
) -> tuple[HookCall, ...]:
    """A call for every Event and event hook. Calls are sent once, and no decision waits for them."""
    listeners = [hook for hook in hooks if hook.type is HookType.EVENT]
    return tuple(_notice(Owner.of(obj), status, hook, event, now) for event in events for hook in listeners)


def _notice(owner: Owner, status: Status, hook: Hook, event: Event, now: datetime) -> HookCall:
    rollout = status.rollout
    revision = rollout.revision if rollout else status.stable_revision
    about = rollout.step_token if rollout else f"{revision}/0/0"
    moment_ms = int(now.timestamp() * 1000)
    identity = hashlib.sha256("\0".join((event.reason, event.message, str(moment_ms))).encode()).hexdigest()[:16]
    about_event = {"eventMessage": event.message, "eventType": event.type, "eventReason": event.reason}
    payload = {
        **_subject(owner.name, owner.namespace, hook, revision),
        "phase": _event_phase(status),
        "attempt": rollout.attempt if rollout else 0,
        "step": rollout.step_index if rollout else 0,
        "weight": status.weight or 0,
        "stable": status.stable_revision,
        "canary": status.canary_revision,
        "metadata": {**dict(hook.metadata), **about_event, "timestamp": str(moment_ms)},
    }
    return HookCall(f"{owner.uid}/{about}/{hook.name}/{identity}", hook, payload)


def _event_phase(status: Status) -> str:
    """The phase, by Flagger's names."""
    state = status.rollout.state if status.rollout else None
    if state in (State.ABORTING, State.ABORTED):
        return "Failed"
    words = {State.INITIALIZING: "Initializing", State.PROMOTING: "Promoting", None: "Succeeded"}
    return "Waiting" if status.phase is Phase.PAUSED else words.get(state, "Progressing")
