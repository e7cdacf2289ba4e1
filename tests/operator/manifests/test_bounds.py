"""What template versions 2 and 3 add. Their golden files may never change either."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway_operator.api.inputs.pod_inputs import PROGRESS_VARIABLE
from slipway_operator.manifests.history import config_map
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.cluster.weights import Weights, parse
from slipway_operator.model.inputs.pod_inputs import Engine, KeyRef, Model, PodInputs, Resources

FOLDER = Path(__file__).parent
OWNER = Owner("chat", "default", "u1")
INPUTS = PodInputs(
    Model("hf://org/llama", "chat", "main", version="3.1", max_model_len_tokens=4096),
    Engine(args=("--max-num-seqs", "8"), env=(("HF_ENDPOINT", "https://hub.example.com"),)),
    Resources("4", "24Gi", ("nvidia.com/gpu", 2), "200Gi"),
)
SNAPSHOT = Snapshot("abcdefghij", 3, INPUTS, "server:1", 600, 2)
NOTHING, PLAIN = Resources(), Engine()


def pod(uri: str = "hf://org/m", resources: Resources = NOTHING, engine: Engine = PLAIN) -> dict[str, Any]:
    snapshot = replace(SNAPSHOT, inputs=PodInputs(Model(uri, "chat"), engine, resources))
    spec: dict[str, Any] = replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    return spec


def volumes(spec: dict[str, Any]) -> dict[str, Any]:
    return {volume.pop("name"): volume for volume in spec["volumes"]}


@pytest.mark.parametrize("version", [2, 3])
def test_replica_set_equals_its_golden_file(version: int) -> None:
    golden = json.loads((FOLDER / f"golden_replicaset_v{version}.json").read_text())
    made = replica_set(OWNER, replace(SNAPSHOT, template_version=version), 2)
    assert made == golden, "revisions are rendered as they were made"


def fetcher_env(version: int, uri: str = "hf://org/m", engine: Engine = PLAIN) -> dict[str, Any]:
    snapshot = replace(SNAPSHOT, inputs=PodInputs(Model(uri, "chat"), engine), template_version=version)
    containers = replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    assert PROGRESS_VARIABLE not in [item["name"] for item in containers["containers"][0]["env"] if not engine.env]
    return {item["name"]: item.get("value") for item in containers["initContainers"][0]["env"]}


def test_fetchers_that_download_serve_their_progress_since_version_3() -> None:
    assert fetcher_env(3)[PROGRESS_VARIABLE] == "8000"
    assert PROGRESS_VARIABLE not in fetcher_env(2)
    assert PROGRESS_VARIABLE not in fetcher_env(3, "pvc://claim/m")
    assert fetcher_env(3, engine=Engine(env=((PROGRESS_VARIABLE, "0"),)))[PROGRESS_VARIABLE] == "0", "the user's counts"
    assert fetcher_env(3, engine=Engine("vllm:v1", "vllm"))[PROGRESS_VARIABLE] == "8000"


@pytest.mark.finding(22)
@pytest.mark.attack_class(15)
def test_all_that_a_pod_writes_is_bounded() -> None:
    """Safety 22: emptyDir without sizeLimit, no ephemeral-storage, --max-bytes never passed."""
    spec = pod(resources=Resources(storage="200Gi"))
    fetch, server = spec["initContainers"][0], spec["containers"][0]
    assert fetch["args"][-2:] == ["--max-bytes", str(200 * 2**30)]
    assert "--max-bytes" not in server["args"]
    for container in (fetch, server):
        assert container["resources"]["limits"]["ephemeral-storage"] == f"{200 * 1024 + 64 + 4096 + 1024}Mi"
        assert container["resources"]["requests"]["ephemeral-storage"] == f"{200 * 1024 + 64 + 256}Mi"
    found = volumes(spec)
    assert all("sizeLimit" in volume["emptyDir"] for volume in found.values() if "emptyDir" in volume)
    assert found["models"]["emptyDir"]["sizeLimit"] == f"{200 * 1024 + 64}Mi"


@pytest.mark.parametrize("uri", ["pvc://claim/m", "file:///m"])
def test_model_that_is_not_copied_needs_room_for_a_marker_only(uri: str) -> None:
    spec = pod(uri)
    assert "--max-bytes" not in spec["initContainers"][0]["args"]
    assert volumes(spec)["models"]["emptyDir"]["sizeLimit"] == "64Mi"


def test_without_a_size_64_gib_are_allowed_and_few_are_requested() -> None:
    spec = pod()
    assert spec["initContainers"][0]["args"][-1] == str(64 * 2**30)
    assert spec["containers"][0]["resources"]["requests"]["ephemeral-storage"] == "256Mi"


@pytest.mark.finding(22)
def test_no_pod_is_best_effort() -> None:
    """Safety 22. A CPU request would change what autoscalers of CPU compute, so there is none."""
    server = pod()["containers"][0]["resources"]
    assert (
        server["requests"]["memory"] == "128Mi" and "memory" not in server["limits"] and "cpu" not in server["requests"]
    )
    written = pod(resources=Resources("2", "4Gi"))["containers"][0]["resources"]
    assert (written["requests"]["memory"], written["limits"]["memory"], written["requests"]["cpu"]) == (
        "4Gi",
        "4Gi",
        "2",
    )


def test_the_fetcher_alone_reads_the_pin() -> None:
    spec = pod()
    fetch, server = spec["initContainers"][0], spec["containers"][0]
    assert fetch["env"][-1] == {"name": "SLIPWAY_PIN_FILE", "value": "/etc/slipway/weights/pin.json"}
    assert {"name": "weights", "mountPath": "/etc/slipway/weights", "readOnly": True} in fetch["volumeMounts"]
    assert "weights" not in {mount["name"] for mount in server["volumeMounts"]}
    wanted = {"name": "chat-abcdefghij", "optional": True, "items": [{"key": "pin.json", "path": "pin.json"}]}
    assert volumes(spec)["weights"] == {"configMap": wanted}


@pytest.mark.parametrize("name", ["HOME", "POD_NAME", "SLIPWAY_PIN_FILE", "SLIPWAY_DEPLOYMENT"])
def test_no_variable_stands_twice(name: str) -> None:
    """The API server refuses such a pod with 500."""
    for engine in (Engine(env=((name, "mine"),)), Engine(env_from=((name, KeyRef("secretKeyRef", "a", "b")),))):
        spec = pod(engine=engine)
        for container in (*spec["initContainers"], *spec["containers"]):
            names = [item["name"] for item in container["env"]]
            assert len(names) == len(set(names))
    server = pod(engine=Engine(env=((name, "mine"),)))["containers"][0]["env"]
    values = {item["name"]: item.get("value") for item in server}
    assert values["SLIPWAY_DEPLOYMENT"] == "default/chat" or name != "SLIPWAY_DEPLOYMENT"
    assert values["HOME"] == ("mine" if name == "HOME" else "/tmp")


def test_a_baseline_reads_the_pin_of_what_it_runs() -> None:
    spec = replica_set(OWNER, SNAPSHOT, 1, "abcdefghij-baseline")["spec"]["template"]["spec"]
    assert volumes(spec)["weights"]["configMap"]["name"] == "chat-abcdefghij"


def test_the_config_map_goes_with_the_record() -> None:
    """With the name that the pods of the revision mount, whatever the name of the record."""
    record = {"metadata": {"name": "chat-abcdefgh-1", "namespace": "default", "uid": "u2", "labels": {"a": "b"}}}
    weights = Weights("sha256:" + "1" * 64, "a" * 40)
    made = config_map("chat-abcdefghij", record, weights)
    assert made["immutable"] is True and made["metadata"]["name"] == "chat-abcdefghij"
    assert [(one["name"], one["uid"]) for one in made["metadata"]["ownerReferences"]] == [("chat-abcdefgh-1", "u2")]
    assert parse(made["data"]["pin.json"]) == weights
