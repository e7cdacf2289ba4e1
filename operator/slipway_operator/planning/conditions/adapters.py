"""Conditions about adapters: why one waits for its ModelDeployment, and why that waits for its adapters."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.adapter_views import BASE_ROLLING_OUT, ROLLOUTS_LIMIT
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type


def _held(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event when the condition becomes False, or gets another reason."""
    is_new = now is not None and (before is None or before.reason != now.reason)
    return Event("Warning", "RolloutHeld", f"{now.reason}: {now.message}") if now and is_new else None


def _not_loaded(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event for each message that the former condition lacks."""
    is_new = now is not None and (before is None or before.message != now.message)
    return Event("Warning", "AdaptersNotLoaded", now.message) if now and is_new else None


@condition_type("DeploymentAvailable", rank=69, event=_held)
def deployment_available(facts: ConditionFacts) -> ConditionState | None:
    """False while the ModelDeployment of an adapter lets it not roll out; else nothing."""
    hold, at = facts.at.observed.hold, facts.at
    if hold is None or not at.spec.inputs.base:
        return None
    if hold.reason in (BASE_ROLLING_OUT, ROLLOUTS_LIMIT) and facts.course.rollout is None:
        return None
    return ConditionState(False, hold.reason, hold.message)


@condition_type("AdaptersLoaded", rank=66, event=_not_loaded)
def adapters_loaded(facts: ConditionFacts) -> ConditionState | None:
    """False while the new revision of a ModelDeployment cannot load adapters that the stable one serves."""
    hold = facts.at.observed.hold
    if hold is None or facts.at.spec.inputs.base or facts.course.rollout is None:
        return None
    how = "spec.rollout.promoteFull goes on without them, spec.rollout.abort rejects the revision"
    return ConditionState(False, hold.reason, f"{hold.message}; the rollout takes no step: {how}")


TYPES = (deployment_available, adapters_loaded)
