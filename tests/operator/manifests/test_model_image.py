"""The pod of a model that is mounted from an image."""

import dataclasses
from typing import Any

from slipway_operator.manifests.pods.prefetch import prefetch_job
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model.cluster.downloads import is_served
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import inputs_to_dict, parse_inputs
from tests.operator.manifests.test_workload import OWNER, SNAPSHOT

URI = "oci://registry.example.com/team/chat:v1"
IMAGE = {"uri": URI, "cache": "image"}
MOUNT = {"name": "model-image", "mountPath": "/mnt/image", "readOnly": True}


def snapshot(model: dict[str, Any] = IMAGE, **fields: Any) -> Snapshot:
    inputs = parse_inputs({"model": model, **fields}, "chat")
    return dataclasses.replace(SNAPSHOT, inputs=inputs, template_version=2, fetcher_image="fetcher:1")


def pod(model: dict[str, Any] = IMAGE, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = replica_set(OWNER, snapshot(model, **fields), 1)["spec"]["template"]["spec"]
    return made


def test_the_kubelet_mounts_the_image_for_fetcher_and_server() -> None:
    made = pod()
    [volume] = [volume for volume in made["volumes"] if volume["name"] == "model-image"]
    assert volume["image"] == {"reference": "registry.example.com/team/chat:v1", "pullPolicy": "IfNotPresent"}
    assert all(MOUNT in container["volumeMounts"] for container in made["containers"] + made["initContainers"])


def test_the_fetcher_checks_the_mounted_files_and_downloads_nothing() -> None:
    made = pod()
    [fetcher] = made["initContainers"]
    assert fetcher["args"][:2] == ["--uri", "file:///mnt/image/models"]
    assert URI not in str(made) and "--max-bytes" not in fetcher["args"]
    sizes = {volume["name"]: volume.get("emptyDir", {}).get("sizeLimit") for volume in made["volumes"]}
    assert sizes["models"] == "64Mi", "it has the marker alone"
    assert not is_served(dataclasses.replace(snapshot(), template_version=3)), "there is no progress to report"


def test_another_engine_gets_the_folder_too() -> None:
    made = pod(engine={"type": "vllm", "image": "vllm/vllm-openai:v0.10.0"})
    [fetcher] = made["initContainers"]
    assert "--any-engine" in fetcher["args"] and MOUNT in made["containers"][0]["volumeMounts"]


def test_credentials_go_to_the_kubelet_and_not_to_a_container() -> None:
    made = pod(IMAGE | {"secretRef": {"name": "registry"}}, engine={"imagePullSecrets": [{"name": "own"}]})
    assert made["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}]
    assert "DOCKER_AUTH_CONFIG" not in str(made)
    assert "imagePullSecrets" not in pod()


def test_a_node_pulls_the_image_ahead() -> None:
    job = prefetch_job(OWNER, snapshot(), "node-a")["spec"]["template"]["spec"]
    [fetcher] = [container for container in job["containers"] if container["name"] == "fetch"]
    assert MOUNT in fetcher["volumeMounts"] and "model-image" in {volume["name"] for volume in job["volumes"]}


def test_it_is_part_of_the_revision_and_changes_no_other_pod() -> None:
    plain, mounted = (parse_inputs({"model": {"uri": URI, **more}}, "chat") for more in ({}, {"cache": "image"}))
    assert "cache" not in inputs_to_dict(plain)["model"] and inputs_to_dict(mounted)["model"]["cache"] == "image"
    made = pod({"uri": URI})
    assert "model-image" not in str(made) and made["initContainers"][0]["args"][:2] == ["--uri", URI]
