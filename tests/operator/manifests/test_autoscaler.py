"""The HorizontalPodAutoscaler of autoscaling/v2, and which differences of a live one need a correction."""

import copy
from typing import Any

import pytest

from slipway_operator.manifests.autoscaler import CUSTOM, EXTERNAL, has_fields, horizontal_pod_autoscaler
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.deployment.autoscaling import Autoscaling, parse_autoscaling

OWNER = Owner("chat", "default", "u1")
TARGET = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "name": "chat"}


def wanted(*metrics: dict[str, Any], **fields: Any) -> Autoscaling:
    given = metrics or ({"type": "QueueDepth", "target": "4"},)
    parsed = parse_autoscaling({"maxReplicas": 8, "metrics": list(given), **fields})
    assert parsed is not None
    return parsed


def rendered(*metrics: dict[str, Any], group: str = CUSTOM, **fields: Any) -> dict[str, Any]:
    return horizontal_pod_autoscaler(OWNER, wanted(*metrics, **fields), group)


def test_autoscaler_has_its_owner_name_and_target() -> None:
    manifest = rendered()
    assert manifest["metadata"]["name"] == "chat-autoscaler"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert manifest["spec"]["scaleTargetRef"] == TARGET
    assert (manifest["spec"]["minReplicas"], manifest["spec"]["maxReplicas"]) == (1, 8)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (
            {"type": "QueueDepth", "target": "4"},
            {
                "type": "Object",
                "object": {
                    "describedObject": TARGET,
                    "metric": {"name": "slipway_queue_depth"},
                    "target": {"type": "AverageValue", "averageValue": "4"},
                },
            },
        ),
        (
            {"type": "CPU", "target": "70%"},
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
            },
        ),
        (
            {"type": "Memory", "target": "20Gi"},
            {
                "type": "Resource",
                "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "20Gi"}},
            },
        ),
        (
            {"type": "GPUUtilization", "target": "80"},
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "DCGM_FI_DEV_GPU_UTIL"},
                    "target": {"type": "AverageValue", "averageValue": "80"},
                },
            },
        ),
        (
            {
                "type": "External",
                "name": "depth",
                "selector": {"matchLabels": {"queue": "a"}},
                "target": "30",
                "targetType": "Value",
            },
            {
                "type": "External",
                "external": {
                    "metric": {"name": "depth", "selector": {"matchLabels": {"queue": "a"}}},
                    "target": {"type": "Value", "value": "30"},
                },
            },
        ),
    ],
    ids=lambda value: value["type"] if "target" in value else "",
)
def test_each_metric(metric: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rendered(metric)["spec"]["metrics"] == [expected]


@pytest.mark.parametrize("kind", ["QueueDepth", "InFlight", "TokensPerSecond", "TTFT", "KVCacheUsage"])
def test_our_own_metrics_come_from_whichever_group_is_ours(kind: str) -> None:
    (custom,) = rendered({"type": kind, "target": "4"})["spec"]["metrics"]
    (external,) = rendered({"type": kind, "target": "4"}, group=EXTERNAL)["spec"]["metrics"]
    name = custom["object"]["metric"]["name"]
    assert name.startswith("slipway_")
    assert external["external"]["metric"] == {
        "name": name,
        "selector": {"matchLabels": {"slipway.dev/modeldeployment": "chat"}},
    }
    assert external["external"]["target"] == custom["object"]["target"]


def test_behavior_is_written_out_with_kubernetes_own_defaults() -> None:
    rules = {"stabilizationWindowSeconds": 60, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}
    behavior = rendered(behavior={"scaleUp": rules})["spec"]["behavior"]
    assert behavior["scaleUp"] == {**rules, "selectPolicy": "Max"}
    assert behavior["scaleDown"] == {
        "stabilizationWindowSeconds": 300,
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    }


def test_defaults_and_formats_of_the_api_server_are_no_difference() -> None:
    spec = rendered({"type": "TTFT", "target": "0.5"}, {"type": "Memory", "target": "2048Mi"})["spec"]
    live = copy.deepcopy(spec)
    live["metrics"][0]["object"]["target"]["averageValue"] = "500m"
    live["metrics"][1]["resource"]["target"]["averageValue"] = "2Gi"
    live["behavior"]["scaleUp"]["tolerance"] = None
    assert has_fields(live, spec)


@pytest.mark.parametrize(
    "edit",
    [
        lambda spec: spec.update(maxReplicas=9),
        lambda spec: spec.pop("minReplicas"),
        lambda spec: spec["metrics"].append(spec["metrics"][0]),
        lambda spec: spec["metrics"][0]["object"]["target"].update(averageValue="5"),
        lambda spec: spec["metrics"][0]["object"]["target"].update(averageValue="odd"),
        lambda spec: spec["behavior"].pop("scaleDown"),
        lambda spec: spec["behavior"]["scaleDown"]["policies"][0].update(value=10),
        lambda spec: spec["scaleTargetRef"].update(name="other"),
    ],
)
def test_manual_edit_is_a_difference(edit: Any) -> None:
    spec = rendered()["spec"]
    live = copy.deepcopy(spec)
    edit(live)
    assert not has_fields(live, spec)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"maxReplicas": 2, "minReplicas": 3}, "minReplicas 3 must be from 0 to maxReplicas 2"),
        ({"minReplicas": -1}, "spec.autoscaling.minReplicas: must be at least 0, and is '-1'"),
        ({"minReplicas": 0}, "write both or neither"),
        ({"idleSeconds": 60}, "write both or neither"),
        ({"metrics": [{"type": "QueueDepth", "target": "0"}]}, "the target 0 of QueueDepth must be above 0"),
        ({"metrics": [{"type": "QueueDepth", "target": "70%"}]}, "is no quantity"),
        ({"metrics": [{"type": "Pods", "target": "4"}]}, "Pods needs the name of a metric"),
        ({"metrics": [{"type": "Joy", "target": "4"}]}, "Joy"),
    ],
)
def test_invalid_autoscaling_is_refused_with_a_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wanted(**fields)


def test_the_way_to_zero_is_not_its_own() -> None:
    read = wanted({"type": "InFlight", "target": "4"}, minReplicas=0, idleSeconds=60)
    assert (read.min_replicas, read.idle_s, read.hold_s) == (0, 60, 300)
    assert horizontal_pod_autoscaler(OWNER, read, CUSTOM)["spec"]["minReplicas"] == 1
