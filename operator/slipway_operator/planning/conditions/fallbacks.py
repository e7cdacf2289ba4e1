"""The condition about what answers in place of a ModelDeployment."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type

NOT_FOUND, OWN_NAME = "BackendNotFound", "OwnName"  # the first one is the Gateway API's


def _not_found(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event for each message that the former condition lacks."""
    is_new = now is not None and (before is None or before.message != now.message)
    return Event("Warning", "FallbackNotFound", now.message) if now and is_new else None


# What serves is not concerned, so it is no reason before those of the rollout.
@condition_type("FallbacksResolved", rank=135, event=_not_found)
def fallbacks_resolved(facts: ConditionFacts) -> ConditionState | None:
    """False while spec.traffic names a ModelDeployment as fallback that is not there, or its own; else nothing."""
    missing, own = facts.at.observed.missing_fallbacks, str(facts.obj["metadata"]["name"])
    if missing:
        text = f"there is no ModelDeployment {' and no '.join(missing)} in this namespace"
        return ConditionState(False, NOT_FOUND, f"spec.traffic: {text}: gateways pass over it until it is there")
    if own in facts.at.spec.fallback_deployments:
        text = f"spec.traffic: {own} is this ModelDeployment itself, which gateways pass over: name another one"
        return ConditionState(False, OWN_NAME, text)
    return None


TYPES = (fallbacks_resolved,)
