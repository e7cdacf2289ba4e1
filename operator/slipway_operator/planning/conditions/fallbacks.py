"""The condition about what answers in place of a ModelDeployment."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type

NOT_FOUND, OWN_NAME = "BackendNotFound", "OwnName"  # the first one is the Gateway API's
NO_KEY = "KeyUnavailable"


def _unusable(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event for each message that the former condition lacks."""
    if now is None or (before is not None and before.message == now.message):
        return None
    if now.reason == NO_KEY:
        return Event("Warning", "ProviderKeyUnavailable", now.message)
    return Event("Warning", "FallbackNotFound", now.message)


# What serves is not concerned, so it is no reason before those of the rollout.
@condition_type("FallbacksResolved", rank=135, event=_unusable)
def fallbacks_resolved(facts: ConditionFacts) -> ConditionState | None:
    """False while a fallback of spec.traffic is not there, is the object itself, or lacks its API key; else nothing."""
    missing, own = facts.at.observed.missing_fallbacks, str(facts.obj["metadata"]["name"])
    if missing:
        text = f"there is no ModelDeployment {' and no '.join(missing)} in this namespace"
        return ConditionState(False, NOT_FOUND, f"spec.traffic: {text}: gateways pass over it until it is there")
    if own in facts.at.spec.fallback_deployments:
        text = f"spec.traffic: {own} is this ModelDeployment itself, which gateways pass over: name another one"
        return ConditionState(False, OWN_NAME, text)
    # Of the first gateway by name, so that the message changes only with what it says.
    with_problem = [gateway for gateway in facts.at.observed.gateways if gateway.key_problems and not gateway.gone]
    if facts.at.spec.external and with_problem:
        problems = "; ".join(sorted(min(with_problem, key=lambda gateway: gateway.name).key_problems))
        return ConditionState(False, NO_KEY, f"spec.traffic: gateways call no provider without its API key: {problems}")
    return None


TYPES = (fallbacks_resolved,)
