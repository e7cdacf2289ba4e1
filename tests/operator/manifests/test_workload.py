"""The shapes of owned objects. The golden file pins the pod of template version 1: it may never change."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from slipway_operator.kube.reading import observe
from slipway_operator.manifests.engines import slipway
from slipway_operator.manifests.history import controller_revision
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import claim_of, replica_set
from slipway_operator.manifests.service import headless_service
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import Engine, KeyRef, Model, PodInputs, Resources, parse_inputs

GOLDEN = Path(__file__).parent / "golden_replicaset_v1.json"
OWNER = Owner("chat", "default", "u1")
INPUTS = PodInputs(
    Model("pvc://weights/llama", "chat", version="3.1", max_model_len_tokens=4096),
    Engine(args=("--max-num-seqs", "8"), env=(("HF_HUB_OFFLINE", "1"),)),
    Resources("4", "24Gi", ("nvidia.com/gpu", 2)),
)
SNAPSHOT = Snapshot("abcdefghij", 3, INPUTS, "server:1", 600, 1)


def test_replica_set_equals_its_golden_file() -> None:
    rendered = replica_set(OWNER, SNAPSHOT, 2)
    assert rendered == json.loads(GOLDEN.read_text()), "existing revisions must be rendered as they were made"


def test_grace_covers_pre_stop_and_drain() -> None:
    pod = replica_set(OWNER, SNAPSHOT, 1)["spec"]["template"]["spec"]
    server = pod["containers"][0]
    assert pod["terminationGracePeriodSeconds"] >= server["lifecycle"]["preStop"]["sleep"]["seconds"] + 600 + 10


def test_accelerators_go_to_the_server_alone() -> None:
    pod = replica_set(OWNER, SNAPSHOT, 1)["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in pod["initContainers"][0]["resources"]["limits"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.finding(12)
def test_a_pod_with_an_accelerator_never_takes_the_cpu() -> None:
    """Safety 12: a pod that requests a GPU computes on it or fails with the reason."""
    new = dataclasses.replace(SNAPSHOT, template_version=2)
    assert " --device cuda " in f" {' '.join(slipway.profile(new).args)} "
    assert "--device" not in slipway.profile(SNAPSHOT).args, "a revision of the older template is rendered as it was"
    plain = dataclasses.replace(new, inputs=PodInputs(Model("file:///m", "chat")))
    assert "--device" not in slipway.profile(plain).args


def test_without_resources_none_are_written() -> None:
    plain = Snapshot("abcdefghij", 1, PodInputs(Model("file:///m", "chat")), "server:1", 600, 1)
    pod = replica_set(OWNER, plain, 1)["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {}
    assert [volume["name"] for volume in pod["volumes"]] == ["models", "tmp"]


def test_children_are_owned_and_labelled_alike() -> None:
    children = (
        replica_set(OWNER, SNAPSHOT, 1),
        headless_service(OWNER, "abcdefghij"),
        controller_revision(OWNER, SNAPSHOT),
    )
    assert len({json.dumps(child["metadata"], sort_keys=True) for child in children}) == 1
    owner = children[0]["metadata"]["ownerReferences"][0]
    assert (owner["controller"], owner["uid"]) == (True, "u1")


def test_claims_are_read_from_the_uri() -> None:
    assert claim_of("pvc://weights/a/b") == "weights"
    assert claim_of("pvc://weights") == "weights"
    assert claim_of("hf://org/model") is None


REFERENCES = PodInputs(
    Model("hf://org/m", "chat", secret=KeyRef("hub", "HF_TOKEN")),
    Engine(
        env=(("HF_ENDPOINT", "https://mirror"),),
        env_from=(("KEY", KeyRef("keys", "k")), ("MODE", KeyRef("modes", "m", "configMapKeyRef"))),
    ),
)


@pytest.mark.finding(21)
@pytest.mark.attack_class(22)
def test_secrets_are_referenced_and_only_where_they_are_needed() -> None:
    """Safety 21: the hub's token was in the clear, and in both containers."""
    snapshot = Snapshot("abcdefghij", 1, REFERENCES, "server:1", 600, 1)
    pod = replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    fetcher, server = (
        {item["name"]: item.get("valueFrom", item.get("value")) for item in container["env"]}
        for container in (pod["initContainers"][0], pod["containers"][0])
    )
    assert fetcher["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
    assert "KEY" not in fetcher and "MODE" not in fetcher
    assert server["KEY"] == {"secretKeyRef": {"name": "keys", "key": "k"}}
    assert server["MODE"] == {"configMapKeyRef": {"name": "modes", "key": "m"}}
    assert "HF_TOKEN" not in server and server["HF_ENDPOINT"] == fetcher["HF_ENDPOINT"] == "https://mirror"
    assert not [volume for volume in pod["volumes"] if "secret" in volume], "no Secret is mounted"


ZONES = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
PLACEMENT: dict[str, Any] = {
    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ZONES]}},
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}


def placed(**placement: object) -> PodInputs:
    return parse_inputs({"model": {"uri": "file:///m"}, "placement": placement}, "chat")


def test_placement_reaches_the_pod_as_it_is_written() -> None:
    snapshot = dataclasses.replace(SNAPSHOT, inputs=placed(**PLACEMENT), template_version=2)
    pod = replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    [spread] = pod.pop("topologySpreadConstraints")
    assert {name: pod[name] for name in PLACEMENT if name in pod} == {
        name: value for name, value in PLACEMENT.items() if name != "topologySpreadConstraints"
    }
    selector = {"slipway.dev/modeldeployment": "chat", "slipway.dev/revision": "abcdefghij"}
    assert spread == {**PLACEMENT["topologySpreadConstraints"][0], "labelSelector": {"matchLabels": selector}}


def test_the_pods_of_a_baseline_are_spread_among_themselves() -> None:
    snapshot = dataclasses.replace(SNAPSHOT, inputs=placed(**PLACEMENT), template_version=2)
    pod = replica_set(OWNER, snapshot, 1, "abcdefghij-baseline")["spec"]["template"]["spec"]
    [spread] = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"]["slipway.dev/revision"] == "abcdefghij-baseline"


def test_pull_secrets_of_the_installation_come_after_those_of_the_spec_and_stay_with_the_revision() -> None:
    inputs = PodInputs(Model("file:///m", "chat"), Engine(image_pull_secrets=("own", "both")))
    snapshot = dataclasses.replace(SNAPSHOT, inputs=inputs, pull_secrets=("both", "shared"))
    pod = replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["imagePullSecrets"]] == ["own", "both", "shared"]
    record = controller_revision(OWNER, snapshot)
    assert record["data"]["pullSecrets"] == ["both", "shared"]
    assert observe.snapshot(record, "chat").pull_secrets == ("both", "shared")
    assert "pullSecrets" not in controller_revision(OWNER, SNAPSHOT)["data"]


def test_pull_secrets_belong_to_the_pod() -> None:
    inputs = PodInputs(Model("file:///m", "chat"), Engine(image_pull_secrets=("registry", "mirror")))
    pod = replica_set(OWNER, dataclasses.replace(SNAPSHOT, inputs=inputs), 1)["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]


def test_without_placement_a_pod_has_none_of_its_fields() -> None:
    pod = replica_set(OWNER, SNAPSHOT, 1)["spec"]["template"]["spec"]
    assert not pod.keys() & {*PLACEMENT, "imagePullSecrets"}
