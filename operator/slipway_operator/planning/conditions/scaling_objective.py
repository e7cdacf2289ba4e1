"""The condition about spec.autoscaling.objective: whether the number of pods that it needs is known, and followed."""

from slipway_operator.model.deployment.autoscaling import OWN_NAMES, MetricType
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.scaling import objective
from slipway_operator.scaling_model.replicas import Rule

STARTING, UNKNOWN, OTHER_METRIC = "Starting", "Unknown", "OtherMetric"
ADVISES, ACTS = "Advises", "Acts"
_DESIRED = OWN_NAMES[MetricType.DESIRED_REPLICAS]


@condition_type("ScalingObjective", rank=112, event=None, starting=frozenset({STARTING, UNKNOWN}))
def scaling_objective(facts: ConditionFacts) -> ConditionState | None:
    """Only where spec.autoscaling.objective is set."""
    at = facts.at
    if at.spec.autoscaling is None or at.spec.autoscaling.objective is None:
        return None
    now, others = objective.shown(at), objective.others(at)
    if now is None:
        return ConditionState(None, STARTING, "the first decision follows from two readings of pods and gateways")
    if at.spec.autoscaling.acts and others:
        text = f"HorizontalPodAutoscaler {others[0].name} does not follow {_DESIRED}, so this is advice only"
        return ConditionState(False, OTHER_METRIC, f"{text}: {now.message}")
    if now.rule == Rule.UNKNOWN:
        return ConditionState(None, UNKNOWN, now.message)
    return ConditionState(True, ACTS if at.spec.autoscaling.acts else ADVISES, now.message)


TYPES = (scaling_objective,)
