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


def nodes(**accelerator: Any) -> list[Any]:
    """The alternatives of the required affinity, each as (label, operator, values)."""
    kind = BUILT_IN.get(accelerator.get("type", ""))
    spec = template(resources={"accelerator": {"count": 1, **accelerator}}, accelerator=kind)["spec"]
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    return [[(one["key"], one["operator"], one["values"]) for one in term["matchExpressions"]] for term in terms]


def test_a_need_of_memory_selects_nodes_by_their_labels() -> None:
    assert nodes() == []
    assert nodes(memory="20Gi") == [
        [("nvidia.com/gpu.memory", "Gt", ["20479"])],
        [("karpenter.k8s.aws/instance-gpu-memory", "Gt", ["20479"])],
    ]
    assert nodes(memory=str(20 * 10**9))[0] == [("nvidia.com/gpu.memory", "Gt", ["19073"])], "19073.5 MiB, rounded up"


def test_a_type_and_a_mig_profile_say_by_themselves_which_memory_there_is() -> None:
    assert nodes(resource="nvidia.com/mig-1g.10gb", memory="8Gi") == []
    assert nodes(type="h100", memory="8Gi") == nodes(type="h100")


def test_shared_devices_are_on_nodes_that_share_in_this_way() -> None:
    assert nodes(sharing="TimeSlicing") == [
        [("nvidia.com/gpu.sharing-strategy", "In", ["time-slicing"])],
        [("cloud.google.com/gke-gpu-sharing-strategy", "In", ["time-sharing"])],
    ]
    assert nodes(sharing="MPS") == [[("nvidia.com/gpu.sharing-strategy", "In", ["mps"])]]
    both = nodes(sharing="MPS", memory="20Gi")
    assert [[key for key, _, _ in term] for term in both] == [
        ["nvidia.com/gpu.memory", "nvidia.com/gpu.sharing-strategy"],
        ["karpenter.k8s.aws/instance-gpu-memory", "nvidia.com/gpu.sharing-strategy"],
    ]
    [product, *_] = nodes(type="t4", sharing="MPS")
    assert product[0] == ("nvidia.com/gpu.product", "In", ["Tesla-T4", "Tesla-T4-SHARED"])


def test_with_mps_the_device_plugin_mounts_dev_shm_and_the_operator_does_not() -> None:
    resources = {"accelerator": {"count": 1, "sharing": "MPS"}}
    shared = template(resources=resources, engine=VLLM)["spec"]
    whole = template(resources={"accelerator": {"count": 1}}, engine=VLLM)["spec"]
    assert [
        any(mount["name"] == "shm" for mount in spec["containers"][0]["volumeMounts"]) for spec in (shared, whole)
    ] == [
        False,
        True,
    ]
    assert not any(volume["name"] == "shm" for volume in shared["volumes"])


def test_a_claim_of_all_pods_is_referred_to_by_name() -> None:
    spec = template(resources={"accelerator": {"count": 1, "resourceClaimName": "gpus"}})["spec"]
    assert spec["resourceClaims"] == [{"name": "accelerator", "resourceClaimName": "gpus"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "accelerator"}]


def test_how_devices_are_shared_is_part_of_the_identity_of_a_revision() -> None:
    accelerator = {"count": 1, "memory": "20Gi", "sharing": "MPS", "resource": "nvidia.com/gpu"}
    inputs = parse_inputs({"model": {"uri": "hf://org/m"}, "resources": {"accelerator": accelerator}}, "chat")
    assert inputs_to_dict(inputs)["resources"]["accelerator"] == accelerator
    assert parse_inputs(inputs_to_dict(inputs), "chat") == inputs
