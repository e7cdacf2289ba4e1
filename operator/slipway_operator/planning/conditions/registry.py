"""The condition about the model registry that spec.model.uri names."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import (
    AS_BEFORE,
    ConditionFacts,
    ConditionState,
    condition_type,
)

RESOLVED = "Resolved"


def _not_followed(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event when the registry cannot be followed any more, or for another reason than before."""
    is_new = now is not None and (before is None or (before.status, before.reason) != (now.status, now.reason))
    if now is None or now.status != "False" or not is_new:
        return None
    return Event("Warning", "RegistryNotResolved", now.message)


# What serves is not concerned, so it is no reason before those of the rollout.
@condition_type("RegistryResolved", rank=137, event=_not_followed)
def registry_resolved(facts: ConditionFacts) -> ConditionState | None:
    """Whether the operator knows which version spec.model.uri stands for now; only with a models:/ URI."""
    at = facts.at
    reference, answer, source = at.spec.registry, at.observed.registry, at.spec.inputs.registry
    if reference is None or source is None:
        return None
    if answer is None:
        return AS_BEFORE
    if answer.problem:
        kept = f"version {source.version}, which was found before, stays"
        return ConditionState(False, answer.reason, f"{reference.uri}: {answer.problem}; {kept}")
    return ConditionState(True, RESOLVED, f"{reference.uri} is version {source.version}")


TYPES = (registry_resolved,)
