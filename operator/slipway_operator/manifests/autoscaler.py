"""The HorizontalPodAutoscaler of a ModelDeployment, and whether a live one matches the wanted one."""

from typing import Any

from slipway_operator.api.objects import Json
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels, quantity
from slipway_operator.model.deployment.autoscaling import OWN_NAMES, AutoscalerRules, Autoscaling, Metric, MetricType

API_VERSION, KIND = "autoscaling/v2", "HorizontalPodAutoscaler"
CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
# GPU utilization in percent, under the name that NVIDIA's DCGM exporter gives it and Prometheus adapters keep.
GPU_METRIC = "DCGM_FI_DEV_GPU_UTIL"


def horizontal_pod_autoscaler(owner: Owner, wanted: Autoscaling, group: str) -> dict[str, Any]:
    """Return an `autoscaling/v2` object that scales the ModelDeployment through its scale subresource.

    `group` is the metrics API that serves our own metrics. These measure the demand on all revisions together, which
    the autoscaler divides by the pods, so the weights of a rollout do not change them.
    """
    target = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": owner.name}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": labels.autoscaler_name(owner.name),
            "namespace": owner.namespace,
            "labels": {
                labels.MODEL_DEPLOYMENT: owner.name,
                labels.MANAGED_BY: "slipway",
                labels.COMPONENT: "autoscaler",
            },
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "scaleTargetRef": target,
            # At least 1: the operator itself scales to zero and back, because gateways must know first. See
            # planning/scaling/sleep.py.
            "minReplicas": max(1, wanted.min_replicas),
            "maxReplicas": wanted.max_replicas,
            "metrics": [_metric(metric, target, group) for metric in _followed(wanted)],
            "behavior": {"scaleUp": _rules(wanted.scale_up), "scaleDown": _rules(wanted.scale_down)},
        },
    }


def has_fields(live: Json, wanted: Json) -> bool:
    """Whether a live spec has all wanted fields with equal values; fields that the API server adds are ignored."""
    return _same("", live, wanted)


def _same(field: str, live: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(_same(key, live.get(key), item) for key, item in wanted.items())
    if isinstance(wanted, list):
        paired = isinstance(live, list) and len(live) == len(wanted)
        return paired and all(_same(field, *pair) for pair in zip(live, wanted, strict=True))
    if field in ("value", "averageValue") and isinstance(wanted, str):
        return _is_quantity(live) and quantity.parse(str(live)) == quantity.parse(wanted)
    return bool(live == wanted)


def _is_quantity(value: Any) -> bool:
    try:
        quantity.parse(str(value))
    except ValueError:
        return False
    return True


def _followed(wanted: Autoscaling) -> tuple[Metric, ...]:
    """The metrics of the spec, and before them the number of pods that the objective publishes: one for each pod."""
    published = (Metric(MetricType.DESIRED_REPLICAS, "1"),) if wanted.acts else ()
    return (*published, *wanted.metrics)


def _metric(metric: Metric, target: dict[str, Any], group: str) -> dict[str, Any]:
    if metric.type in OWN_NAMES:
        return _own(metric, target, group)
    if metric.type in (MetricType.CPU, MetricType.MEMORY):
        return {
            "type": "Resource",
            "resource": {"name": metric.type.lower(), "target": _share_or_average(metric.target)},
        }
    if metric.type is MetricType.EXTERNAL:
        return {"type": "External", "external": {"metric": _named(metric), "target": _amount(metric)}}
    name = {"name": GPU_METRIC} if metric.type is MetricType.GPU_UTILIZATION else _named(metric)
    return {"type": "Pods", "pods": {"metric": name, "target": _amount(metric)}}


def _own(metric: Metric, target: dict[str, Any], group: str) -> dict[str, Any]:
    name = {"name": OWN_NAMES[metric.type]}
    if group == EXTERNAL:
        selected = {**name, "selector": {"matchLabels": {labels.MODEL_DEPLOYMENT: target["name"]}}}
        return {"type": "External", "external": {"metric": selected, "target": _amount(metric)}}
    return {"type": "Object", "object": {"describedObject": target, "metric": name, "target": _amount(metric)}}


def _named(metric: Metric) -> dict[str, Any]:
    selector = {"selector": {"matchLabels": dict(metric.match_labels)}} if metric.match_labels else {}
    return {"name": metric.name, **selector}


def _amount(metric: Metric) -> dict[str, Any]:
    field = "value" if metric.target_type == "Value" else "averageValue"
    return {"type": metric.target_type, field: metric.target}


def _share_or_average(target: str) -> dict[str, Any]:
    if target.endswith("%"):
        return {"type": "Utilization", "averageUtilization": int(quantity.parse(target[:-1]))}
    return {"type": "AverageValue", "averageValue": target}


def _rules(rules: AutoscalerRules) -> dict[str, Any]:
    return {
        "stabilizationWindowSeconds": rules.window_s,
        "selectPolicy": rules.select,
        "policies": [
            {"type": policy.type, "value": policy.value, "periodSeconds": policy.period_s} for policy in rules.policies
        ],
    }
