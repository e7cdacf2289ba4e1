"""The autoscaler of a ModelDeployment: our HorizontalPodAutoscaler, a user's, or two in conflict; and its health."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.manifests.autoscaler import (
    API_VERSION,
    CUSTOM,
    EXTERNAL,
    KIND,
    has_fields,
    horizontal_pod_autoscaler,
)
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Autoscaler, ScalerCondition
from slipway_operator.model.cluster.plan import Create, Delete
from slipway_operator.model.deployment import last_applied
from slipway_operator.model.deployment.autoscaling import OWN_NAMES
from slipway_operator.planning.facts.conditions import condition
from slipway_operator.planning.facts.situation import Situation

CONDITION = "Autoscaling"
# The controller handles a new HorizontalPodAutoscaler within its period, 15 s by default.
INERT_S = 60
REFUSED_AGAIN_S = 60  # no event reports that a quota has room again, or that a policy was removed

Finding = tuple[bool, str, str]  # whether it works, reason, message


@dataclass(frozen=True, slots=True)
class Scaling:
    """The writes about autoscalers, and the condition to report."""

    create: Create | None = None
    delete: tuple[Delete, ...] = ()
    condition: Condition | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The condition, where there is one."""
        return (self.condition,) if self.condition else ()


def scaling(owner: Owner, at: Situation, obj: Json) -> Scaling:
    """The writes about our HorizontalPodAutoscaler, and the condition; `spec.replicas` is never written.

    Ours exists exactly while spec.autoscaling is set and no other autoscaler scales the deployment.
    """
    ours = _ours(at)
    others = [item for item in at.observed.autoscalers if item is not ours]
    rivals = [item for item in others if item.aims_here]
    wanted = at.spec.autoscaling is not None
    scalers = len(rivals) + wanted
    gone = (Delete(API_VERSION, KIND, ours.name),) if ours and (not wanted or others) else ()
    if scalers > 1:
        return Scaling(delete=gone, condition=_shown(at, _two_scalers(rivals, wanted=wanted)))
    if wanted and others:
        return Scaling(delete=gone, condition=_shown(at, _name_taken(others[0])))
    if wanted:
        return Scaling(_creation(owner, at, ours), condition=_shown(at, _own_health(owner, at, ours), obj))
    found = _health(at, rivals[0]) if rivals else None
    return Scaling(delete=gone, condition=_shown(at, found, obj) if found else None)


def moments(at: Situation) -> tuple[datetime, ...]:
    """When an autoscaler without status counts as inert, and a refused one is tried again: no event reports either."""
    inert = (
        item.created_at + timedelta(seconds=INERT_S)
        for item in at.observed.autoscalers
        if item.aims_here and _condition_of(item, "ScalingActive") is None
    )
    return (*inert, *([at.now + timedelta(seconds=REFUSED_AGAIN_S)] if at.observed.autoscaler_refusal else ()))


def _ours(at: Situation) -> Autoscaler | None:
    """Our autoscaler; an orphan is adopted where one is wanted."""
    wanted = at.spec.autoscaling is not None
    return next((item for item in at.observed.autoscalers if item.ours or (wanted and item.orphan)), None)


def _creation(owner: Owner, at: Situation, live: Autoscaler | None) -> Create | None:
    assert at.spec.autoscaling is not None, "called only where the field is set"
    manifest = horizontal_pod_autoscaler(owner, at.spec.autoscaling, _group(at))
    return None if live and not live.orphan and has_fields(live.spec, manifest["spec"]) else Create(manifest)


def _group(at: Situation) -> str:
    """The metrics API that serves our own metrics: custom unless another provider has it and external is ours."""
    providers = at.observed.metrics_providers
    return EXTERNAL if providers.get(CUSTOM) and providers.get(EXTERNAL) == "" else CUSTOM


# --- the condition ----------------------------------------------------------------------------------------------------


def _shown(at: Situation, finding: Finding, obj: Json | None = None) -> Condition:
    holds, reason, message = finding
    also = _also_applied(obj) if obj else ""
    return condition(CONDITION, holds, reason, f"{message}; {also}" if also else message, at.now)


def _two_scalers(rivals: Sequence[Autoscaler], *, wanted: bool) -> Finding:
    named = " and ".join([*(_called(item) for item in rivals), *(["spec.autoscaling"] if wanted else [])])
    back = "; until then spec.autoscaling steps back" if wanted else ""
    return False, "TwoScalers", f"{named} would fight over spec.replicas: keep one of them{back}"


def _called(item: Autoscaler) -> str:
    made_for = f" of ScaledObject {item.scaled_object}" if item.scaled_object else ""
    return f"{KIND} {item.name}{made_for}"


def _name_taken(item: Autoscaler) -> Finding:
    return False, "NameTaken", f"{KIND} {item.name} is not ours and has the name of ours: rename or delete it"


def _own_health(owner: Owner, at: Situation, ours: Autoscaler | None) -> Finding:
    if refusal := at.observed.autoscaler_refusal:
        return False, "Refused", refusal
    if ours is None:
        return False, "Starting", f"{KIND} {labels.autoscaler_name(owner.name)} is being created"
    worked = _health(at, ours)
    if worked[0] or not (foreign := _foreign_providers(at)):
        return worked
    # The controller reports only that the metric is missing; the operator adds why.
    return False, "MetricsApiTaken", f"{foreign}; {worked[2]}"


def _foreign_providers(at: Situation) -> str:
    """Other servers of the metrics API; empty when it is ours, or when the spec uses no metric of ours."""
    providers = at.observed.metrics_providers
    used = at.spec.autoscaling is not None and any(metric.type in OWN_NAMES for metric in at.spec.autoscaling.metrics)
    if not used or not (providers.get(CUSTOM) and providers.get(EXTERNAL)):
        return ""
    served = ", ".join(f"{group} is served by {providers[group]}" for group in (CUSTOM, EXTERNAL))
    return f"{served}: it must serve Slipway's metrics too, or make room"


def _health(at: Situation, item: Autoscaler) -> Finding:
    """Health by the controller's own conditions: the existence of the object is not sufficient."""
    if at.asleep:  # without pods it can read few metrics
        text = (
            f"{_called(item)} has no pods to scale until the next request; it shows what it reads divided by them, 0/0"
        )
        return True, "Asleep", text
    for kind in ("AbleToScale", "ScalingActive"):
        found = _condition_of(item, kind)
        if found and found.status == "False":
            return False, found.reason or kind, f"{_called(item)}: {found.message or found.reason}"
    if _condition_of(item, "ScalingActive") is None:
        return _not_looked_at(at, item)
    bounds = f"{item.spec.get('minReplicas', 1)} to {item.spec.get('maxReplicas')}"
    return True, "ScalingActive", f"{_called(item)} keeps {bounds} pods and writes spec.replicas"


def _not_looked_at(at: Situation, item: Autoscaler) -> Finding:
    if at.elapsed_s(item.created_at) < INERT_S:
        return False, "Starting", f"{_called(item)} was not looked at yet"
    able = _condition_of(item, "AbleToScale")
    why = f": {able.message}" if able and able.message else ""
    text = f"{_called(item)} has scaled nothing for {INERT_S} s: does kube-controller-manager run its controller?{why}"
    return False, "Inert", text


def _condition_of(item: Autoscaler, kind: str) -> ScalerCondition | None:
    return next((found for found in item.conditions if found.type == kind), None)


def _also_applied(obj: Json) -> str:
    """Other managers that apply spec.replicas, as a message: each apply would undo the autoscaler's value."""
    managers = [item["manager"] for item in obj["metadata"].get("managedFields") or () if _applies_replicas(item)]
    if not managers and _last_applied_has_replicas(obj):
        managers = ["kubectl apply"]
    who = ", ".join(dict.fromkeys(managers))
    return f"spec.replicas is also set by {who}: remove it there, or each apply undoes what was scaled" if who else ""


def _applies_replicas(entry: Json) -> bool:
    fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
    return entry.get("operation") == "Apply" and not entry.get("subresource") and "f:replicas" in fields


def _last_applied_has_replicas(obj: Json) -> bool:
    spec = last_applied.manifest(obj).get("spec")
    return isinstance(spec, dict) and "replicas" in spec
