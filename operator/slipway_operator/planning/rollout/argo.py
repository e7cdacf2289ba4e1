"""Argo Rollouts' status patches as our intents, for users of Argo's commands.

A plan reads the patches from the status and applies them. The status that it writes no longer has them, so each takes
effect once; only the user writes the spec.
"""

from dataclasses import replace
from typing import Any

from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import PauseCondition, Rollout, State, Status
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.model.deployment.strategy import Analysis
from slipway_operator.planning.facts.situation import Course, step_now
from slipway_operator.planning.rollout.row import IN_FLIGHT

Translation = tuple[Spec, tuple[Event, ...]]


def translate(spec: Spec, raw: Json, status: Status) -> Translation:
    """The spec with the intents from patches of the status, and Events about them.

    `raw` is `.status` as the API server returned it, `status` the parsed form.
    """
    found = [word for word in (_abort(raw, status), _promote_full(raw, status), _released(spec, status)) if word]
    for intent, _ in found:
        spec = replace(spec, intents=replace(spec.intents, **intent))
    return spec, tuple(event for _, event in found)


def pause_conditions(course: Course, spec: Spec, status: Status) -> tuple[PauseCondition, ...]:
    """The conditions that a user may remove while a pause step holds; once removed, absent until the step ends."""
    rollout = course.rollout
    if rollout is None or rollout.state is not State.PAUSED or _is_released(status, rollout):
        return ()
    reason = "InconclusiveAnalysis" if isinstance(step_now(spec, rollout), Analysis) else "CanaryPauseStep"
    return (PauseCondition(reason, rollout.step_started_at),)


def controller_pause(course: Course) -> bool | None:
    """Argo's controllerPause, true during a pause, else None: only after it, missing conditions are a user's act."""
    return True if course.state is State.PAUSED else None


_Translated = tuple[dict[str, Any], Event] | None


def _abort(raw: Json, status: Status) -> _Translated:
    """`abort: true` aborts, and `abort: false` retries, as Argo's own plugin writes them."""
    rollout, abort = status.rollout, raw.get("abort")
    if abort is None:
        return None
    if abort and rollout and rollout.state in IN_FLIGHT:
        return _taken("status.abort", "abort", rollout.attempt_token)
    if not abort and rollout and rollout.state is State.ABORTED:
        return _taken("status.abort false", "retry", f"{rollout.revision}/{rollout.attempt + 1}")
    return _ignored(
        f"status.abort {str(abort).lower()}", "no attempt can be rejected" if abort else "none was rejected"
    )


def _promote_full(raw: Json, status: Status) -> _Translated:
    rollout = status.rollout
    if not raw.get("promoteFull"):
        return None
    if rollout and rollout.state in IN_FLIGHT and not rollout.skip_steps:
        return _taken("status.promoteFull", "promote_full", rollout.attempt_token)
    return _ignored("status.promoteFull", "no rollout is in its steps")


def _released(spec: Spec, status: Status) -> _Translated:
    """A promotion for a pause whose conditions were removed, as soon as the spec allows it."""
    rollout = status.rollout
    if rollout is None or not _is_released(status, rollout) or spec.paused or spec.replicas == 0:
        return None
    return _taken("the removal of status.pauseConditions", "promote", rollout.step_token)


def _is_released(status: Status, rollout: Rollout) -> bool:
    """Whether a user removed the conditions of the pause that holds this rollout now."""
    former = status.rollout
    if former is None or former.state is not State.PAUSED or not status.controller_pause or status.pause_conditions:
        return False
    return (former.step_token, former.step_started_at) == (rollout.step_token, rollout.step_started_at)


def _taken(what: str, field: str, token: str) -> _Translated:
    name = "promoteFull" if field == "promote_full" else field
    return {field: token}, Event("Normal", "ControlTranslated", f"{what} is taken as spec.rollout.{name}: {token}")


def _ignored(what: str, why: str) -> _Translated:
    return {}, Event("Normal", "ControlIgnored", f"{what} has no effect: {why} now")
