"""The condition Autoscaling: whether an autoscaler follows demand, and whether two of them are in conflict."""

from collections.abc import Sequence

from slipway_operator.api.objects import Json
from slipway_operator.manifests.autoscaler import CUSTOM, EXTERNAL, KIND
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Autoscaler
from slipway_operator.model.deployment import last_applied
from slipway_operator.model.deployment.autoscaling import OWN_NAMES
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.facts.situation import Situation
from slipway_operator.planning.scaling import objective
from slipway_operator.planning.scaling.autoscale import INERT_S, Scalers, controller_condition, scalers_of

STARTING = "Starting"


@condition_type("Autoscaling", rank=110, event=None, starting=frozenset({STARTING}))
def autoscaling(facts: ConditionFacts) -> ConditionState | None:
    """Only where spec.autoscaling is set, or another autoscaler has the ModelDeployment as its target."""
    at, scalers = facts.at, scalers_of(facts.at)
    if len(scalers.rivals) == 1 and _follows_the_objective(at, scalers.rivals[0]):
        return _with_others_that_apply(_health(at, scalers.rivals[0]), facts)
    if len(scalers.rivals) + scalers.wanted > 1:
        return _two_scalers(scalers)
    if scalers.wanted and scalers.others:
        text = f"{KIND} {scalers.others[0].name} is not ours and has the name of ours: rename or delete it"
        return ConditionState(False, "NameTaken", text)
    if scalers.wanted:
        return _with_others_that_apply(_own_health(labels.autoscaler_name(_name(facts.obj)), at, scalers.ours), facts)
    return _with_others_that_apply(_health(at, scalers.rivals[0]), facts) if scalers.rivals else None


def _follows_the_objective(at: Situation, scaler: Autoscaler) -> bool:
    """Whether an autoscaler of the user's takes the place of ours, because both follow the published number alone."""
    scaled = at.spec.autoscaling
    return scaled is not None and scaled.acts and not scaled.metrics and objective.follows(scaler)


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _two_scalers(scalers: Scalers) -> ConditionState:
    names = [*(_called(scaler) for scaler in scalers.rivals), *(["spec.autoscaling"] if scalers.wanted else [])]
    back = "; until then spec.autoscaling steps back" if scalers.wanted else ""
    text = f"{' and '.join(names)} would fight over spec.replicas: keep one of them{back}"
    return ConditionState(False, "TwoScalers", text)


def _called(scaler: Autoscaler) -> str:
    made_for = f" of ScaledObject {scaler.scaled_object}" if scaler.scaled_object else ""
    return f"{KIND} {scaler.name}{made_for}"


def _own_health(name: str, at: Situation, ours: Autoscaler | None) -> ConditionState:
    if refusal := at.observed.autoscaler_refusal:
        return ConditionState(False, "Refused", refusal)
    if ours is None:
        return ConditionState(False, STARTING, f"{KIND} {name} is being created")
    health = _health(at, ours)
    if health.holds or not (foreign := _foreign_providers(at)):
        return health
    # The controller reports only that the metric is missing; the operator adds why.
    return ConditionState(False, "MetricsApiTaken", f"{foreign}; {health.message}")


def _foreign_providers(at: Situation) -> str:
    """Other servers of the metrics API; empty when it is ours, or when the spec uses no metric of ours."""
    providers = at.observed.metrics_providers
    used = at.spec.autoscaling is not None and any(metric.type in OWN_NAMES for metric in at.spec.autoscaling.metrics)
    if not used or not (providers.get(CUSTOM) and providers.get(EXTERNAL)):
        return ""
    served = ", ".join(f"{group} is served by {providers[group]}" for group in (CUSTOM, EXTERNAL))
    return f"{served}: it must serve Slipway's metrics too, or make room"


def _health(at: Situation, scaler: Autoscaler) -> ConditionState:
    """Health by the controller's own conditions: the existence of the object is not sufficient."""
    if at.asleep:  # without pods it can read few metrics
        text = "has no pods to scale until the next request; it shows what it reads divided by them, 0/0"
        return ConditionState(True, "Asleep", f"{_called(scaler)} {text}")
    for kind in ("AbleToScale", "ScalingActive"):
        reported = controller_condition(scaler, kind)
        if reported and reported.status == "False":
            text = f"{_called(scaler)}: {reported.message or reported.reason}"
            return ConditionState(False, reported.reason or kind, text)
    if controller_condition(scaler, "ScalingActive") is None:
        return _not_looked_at(at, scaler)
    bounds = f"{scaler.spec.get('minReplicas', 1)} to {scaler.spec.get('maxReplicas')}"
    return ConditionState(True, "ScalingActive", f"{_called(scaler)} keeps {bounds} pods and writes spec.replicas")


def _not_looked_at(at: Situation, scaler: Autoscaler) -> ConditionState:
    if at.elapsed_s(scaler.created_at) < INERT_S:
        return ConditionState(False, STARTING, f"{_called(scaler)} was not looked at yet")
    able = controller_condition(scaler, "AbleToScale")
    why = f": {able.message}" if able and able.message else ""
    text = f"has scaled nothing for {INERT_S} s: does kube-controller-manager run its controller?{why}"
    return ConditionState(False, "Inert", f"{_called(scaler)} {text}")


def _with_others_that_apply(health: ConditionState, facts: ConditionFacts) -> ConditionState:
    """The state with other managers that apply spec.replicas: each apply would undo the autoscaler's value."""
    managers = _appliers(facts.obj)
    if not managers:
        return health
    also = f"spec.replicas is also set by {', '.join(managers)}: remove it there, or each apply undoes what was scaled"
    return ConditionState(health.holds, health.reason, f"{health.message}; {also}")


def _appliers(obj: Json) -> Sequence[str]:
    entries = obj["metadata"].get("managedFields") or ()
    managers = [entry["manager"] for entry in entries if _applies_replicas(entry)]
    if not managers and _last_applied_has_replicas(obj):
        managers = ["kubectl apply"]
    return tuple(dict.fromkeys(managers))


def _applies_replicas(entry: Json) -> bool:
    fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
    return entry.get("operation") == "Apply" and not entry.get("subresource") and "f:replicas" in fields


def _last_applied_has_replicas(obj: Json) -> bool:
    spec = last_applied.manifest(obj).get("spec")
    return isinstance(spec, dict) and "replicas" in spec


TYPES = (autoscaling,)
