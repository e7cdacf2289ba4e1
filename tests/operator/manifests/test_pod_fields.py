"""spec.pod, mounts, envFrom and the type of the accelerator in the pod of a revision."""

import dataclasses
from typing import Any

from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model.inputs.accelerator_types import BUILT_IN
from slipway_operator.model.inputs.pod_inputs import inputs_to_dict, parse_inputs
from tests.operator.manifests.test_workload import OWNER, SNAPSHOT

POD = {
    "labels": {"team": "a"},
    "annotations": {"prometheus.io/scrape": "true"},
    "serviceAccountName": "reader",
    "priorityClassName": "high",
    "schedulerName": "volcano",
    "volumes": [
        {"name": "tmp", "emptyDir": {"sizeLimit": "10Gi"}},
        {"name": "ca", "secret": {"secretName": "ca"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
    ],
}
ENGINE = {
    "envFrom": [{"prefix": "A_", "secretRef": {"name": "keys"}}, {"configMapRef": {"name": "settings"}}],
    "volumeMounts": [
        {"name": "tmp", "mountPath": "/data"},
        {"name": "ca", "mountPath": "/etc/ssl/extra", "readOnly": True, "subPath": "ca.pem"},
    ],
}
VLLM = {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"}
H100 = {"accelerator": {"type": "h100", "count": 1}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def template(accelerator: Any = None, **fields: Any) -> dict[str, Any]:
    inputs = parse_inputs({"model": {"uri": "hf://org/m"}, **fields}, "chat")
    snapshot = dataclasses.replace(SNAPSHOT, inputs=inputs, template_version=2, accelerator=accelerator or {})
    made: dict[str, Any] = replica_set(OWNER, snapshot, 1)["spec"]["template"]
    return made


def test_pod_fields_reach_the_pod() -> None:
    made = template(pod=POD, engine=ENGINE)
    spec, metadata = made["spec"], made["metadata"]
    assert {name: spec[name] for name in ("serviceAccountName", "priorityClassName", "schedulerName")} == {
        "serviceAccountName": "reader",
        "priorityClassName": "high",
        "schedulerName": "volcano",
    }
    assert spec["automountServiceAccountToken"] is False
    assert metadata["labels"]["team"] == "a" and metadata["labels"]["slipway.dev/modeldeployment"] == "chat"
    assert metadata["annotations"]["prometheus.io/scrape"] == "true"


def test_volumes_of_the_user_never_have_a_name_of_the_operators() -> None:
    spec = template(pod=POD, engine=ENGINE)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert len(volumes) == len(spec["volumes"])
    assert (
        volumes["tmp"]["emptyDir"]["sizeLimit"] == "4096Mi" and volumes["user-tmp"]["emptyDir"]["sizeLimit"] == "10Gi"
    )
    assert volumes["user-cache"]["persistentVolumeClaim"]["claimName"] == "cache"


def test_only_the_server_gets_mounts_and_sources() -> None:
    spec = template(pod=POD, engine=ENGINE)["spec"]
    [server], [fetcher] = spec["containers"], spec["initContainers"]
    assert server["envFrom"] == ENGINE["envFrom"]
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    assert mounts["/data"]["name"] == "user-tmp"
    assert mounts["/etc/ssl/extra"] == {
        "name": "user-ca",
        "mountPath": "/etc/ssl/extra",
        "readOnly": True,
        "subPath": "ca.pem",
    }
    assert "envFrom" not in fetcher and not any(mount["name"].startswith("user-") for mount in fetcher["volumeMounts"])


def test_a_type_of_accelerator_gives_nodes_toleration_and_resource() -> None:
    spec = template(BUILT_IN["mi300x"], resources={"accelerator": {"type": "mi300x", "count": 1}})["spec"]
    assert spec["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "1"
    assert spec["tolerations"] == [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == BUILT_IN["mi300x"]["nodeSelectorTerms"]


def test_devices_of_a_claim_are_no_extended_resource() -> None:
    accelerator = {"resourceClaimTemplateName": "gpus", "count": 2}
    spec = template({}, resources={"accelerator": accelerator, "memory": "8Gi"}, engine=VLLM)["spec"]
    assert spec["resourceClaims"] == [{"name": "accelerator", "resourceClaimTemplateName": "gpus"}]
    [server], fetchers = spec["containers"], spec["initContainers"]
    assert server["resources"]["claims"] == [{"name": "accelerator"}]
    assert server["resources"]["limits"].keys() == {"memory", "ephemeral-storage"}
    assert server["args"][server["args"].index("--tensor-parallel-size") + 1] == "2"
    assert all("claims" not in container["resources"] for container in fetchers)


def test_the_users_placement_is_added_to_that_of_the_type() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    placement = {
        "nodeSelector": {"pool": "ml"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": zones}}},
    }
    spec = template(BUILT_IN["h100"], resources=H100, placement=placement)["spec"]
    terms = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    keys = [[one["key"] for one in term["matchExpressions"]] for term in terms]
    assert len(terms) == 2 * len(BUILT_IN["h100"]["nodeSelectorTerms"]) and all(row[0] == "zone" for row in keys)
    assert spec["nodeSelector"] == {"pool": "ml"} and [one["key"] for one in spec["tolerations"]] == [
        "spot",
        "nvidia.com/gpu",
    ]


def test_the_user_replaces_what_an_administrators_type_sets_by_default() -> None:
    kind = {
        "resource": "nvidia.com/gpu",
        "nodeSelector": {"pool": "gpu"},
        "runtimeClassName": "nvidia",
        "sharedMemory": "16Gi",
        "env": {"NCCL_DEBUG": "INFO", "NCCL_P2P_LEVEL": "NVL"},
    }
    engine = {"env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}
    spec = template(kind, resources=H100, engine=engine)["spec"]
    variables = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert (variables["NCCL_DEBUG"], variables["NCCL_P2P_LEVEL"]) == ("WARN", "NVL")
    assert spec["runtimeClassName"] == "nvidia" and spec["nodeSelector"] == {"pool": "gpu"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in spec["volumes"]
    own = template(kind, resources={**H100, "sharedMemory": "2Gi"}, pod={"runtimeClassName": "kata"})["spec"]
    assert own["runtimeClassName"] == "kata"
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in own["volumes"]


def test_the_record_of_a_revision_gives_the_same_inputs_back() -> None:
    written = {"model": {"uri": "hf://org/m"}, "pod": POD, "engine": ENGINE, "resources": H100}
    inputs = parse_inputs(written, "chat")
    assert parse_inputs(inputs_to_dict(inputs), "chat") == inputs
