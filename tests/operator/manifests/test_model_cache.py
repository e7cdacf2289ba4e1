"""The pod of a model that is kept in a cache."""

import dataclasses
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway_operator.api.inputs.pod_inputs import PROGRESS_VARIABLE
from slipway_operator.manifests.pods.prefetch import prefetch_job
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model.inputs.pod_inputs import inputs_to_dict, parse_inputs
from tests.operator.manifests.test_workload import OWNER, SNAPSHOT

NODE = {"uri": "hf://org/m", "cache": "node"}
CLAIM = {"uri": "hf://org/m", "cache": "claim", "cacheClaimName": "models"}
CUSTOM = {"type": "custom", "image": "a/b:1", "custom": {"runAsUser": 1000}}


def pod(model: dict[str, Any] = NODE, revision: str = "", **fields: Any) -> dict[str, Any]:
    inputs = parse_inputs({"model": model, **fields}, "chat")
    snapshot = dataclasses.replace(SNAPSHOT, inputs=inputs, template_version=2, fetcher_image="fetcher:1")
    made: dict[str, Any] = replica_set(OWNER, snapshot, 1, revision)["spec"]["template"]["spec"]
    return made


def mounts(container: dict[str, Any]) -> dict[str, Any]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def test_the_server_only_reads_the_cache() -> None:
    made = pod()
    [server], (lease, fetcher) = made["containers"], made["initContainers"]
    assert mounts(server)["cache"] == {"name": "cache", "mountPath": "/mnt/cache", "readOnly": True}
    assert mounts(lease)["cache"] == mounts(fetcher)["cache"] == {"name": "cache", "mountPath": "/mnt/cache"}


@pytest.mark.parametrize(("model", "claim"), [(NODE, "slipway-model-cache"), (CLAIM, "models")])
def test_the_cache_is_a_claim(model: dict[str, Any], claim: str) -> None:
    volumes = {volume["name"]: volume for volume in pod(model)["volumes"]}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": claim}
    assert volumes["models"]["emptyDir"]["sizeLimit"] == "64Mi", "it has the marker alone"


def test_a_sidecar_holds_the_lease_of_the_pod_before_the_fetcher_starts() -> None:
    lease, fetcher = pod()["initContainers"]
    assert (lease["name"], lease["restartPolicy"], lease["command"]) == ("lease", "Always", ["slipway-model-cache"])
    assert lease["args"] == ["lease", "--cache-dir", "/mnt/cache", "--pod", "$(POD_UID)", "--dest", "/mnt/models"]
    assert lease["resources"]["requests"] == lease["resources"]["limits"]
    assert "restartPolicy" not in fetcher and fetcher["name"] == "fetch"
    assert lease["image"] == fetcher["image"] == "fetcher:1"


def test_the_fetcher_downloads_into_the_scope_of_the_revision_also_for_a_baseline() -> None:
    for revision in ("", "abcdefghij-baseline"):
        _, fetcher = pod(revision=revision)["initContainers"]
        start = fetcher["args"].index("--cache-dir")
        scope = f"{OWNER.namespace}/{OWNER.name}/{SNAPSHOT.revision}"
        found = fetcher["args"][start : start + 6]
        assert found == ["--cache-dir", "/mnt/cache", "--cache-scope", scope, "--cache-pod", "$(POD_UID)"]
        assert "--max-bytes" in fetcher["args"], "a download is limited as without a cache"


def test_the_uid_of_the_pod_is_no_variable_of_the_user() -> None:
    engine = {"env": [{"name": "POD_UID", "value": "another"}]}
    made = pod(engine=engine)
    for container in made["initContainers"]:
        (uid,) = (one for one in container["env"] if one["name"] == "POD_UID")
        assert uid["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert {"name": "POD_UID", "value": "another"} in made["containers"][0]["env"]


def test_the_lease_has_no_credentials_and_no_variables_of_the_user() -> None:
    model = {**NODE, "secretRef": {"name": "hub"}}
    lease, fetcher = pod(model, engine={"env": [{"name": "HF_ENDPOINT", "value": "https://hub"}]})["initContainers"]
    assert [one["name"] for one in lease["env"]] == ["HOME", "POD_UID"]
    assert {"HF_TOKEN", "HF_ENDPOINT"} <= {one["name"] for one in fetcher["env"]}


def test_engines_of_any_user_share_the_cache() -> None:
    made = pod(engine=CUSTOM)
    assert made["securityContext"]["runAsUser"] == 1000
    for container in made["initContainers"]:
        assert container["securityContext"]["runAsUser"] == container["securityContext"]["runAsGroup"] == 65532
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "runAsUser" not in made["containers"][0]["securityContext"]


def test_without_a_cache_pods_are_as_before() -> None:
    plain = pod({"uri": "hf://org/m"})
    assert plain == pod({"uri": "hf://org/m", "cache": "none"})
    assert len(plain["initContainers"]) == 1 and "cache" not in {volume["name"] for volume in plain["volumes"]}


def test_the_cache_is_part_of_the_revision() -> None:
    plain, cached = (parse_inputs({"model": {"uri": "hf://org/m", **more}}, "chat") for more in ({}, {"cache": "node"}))
    assert "cache" not in inputs_to_dict(plain)["model"] and inputs_to_dict(cached)["model"]["cache"] == "node"
    claim = parse_inputs({"model": CLAIM}, "chat")
    assert parse_inputs(inputs_to_dict(claim), "chat") == claim


def prefetching(**fields: Any) -> dict[str, Any]:
    inputs = parse_inputs({"model": {**NODE, "secretRef": {"name": "hub"}}, **fields}, "chat")
    image, fetcher = ("a/b:1", "fetcher:1") if "engine" in fields else ("server:1", "")
    snapshot = dataclasses.replace(SNAPSHOT, inputs=inputs, template_version=2, image=image, fetcher_image=fetcher)
    return prefetch_job(OWNER, snapshot, "node-a")


def test_a_prefetch_runs_the_fetcher_of_the_revision_on_one_node_without_a_lease() -> None:
    job = prefetching(resources={"cpu": "8", "memory": "64Gi"})
    made = job["spec"]["template"]["spec"]
    [container] = made["containers"]
    [expected] = [one for one in pod()["initContainers"] if one["name"] == "fetch"]
    assert "--cache-pod" not in container["args"] and set(container["args"]) < set(expected["args"])
    assert container["args"][container["args"].index("--cache-scope") + 1].endswith(SNAPSHOT.revision)
    assert "HF_TOKEN" in {one["name"] for one in container["env"]}
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert (requests["cpu"], requests["memory"]) == ("100m", "256Mi"), "it fits beside a pod that has all of a node"
    assert (limits["cpu"], limits["memory"]) == ("8", "64Gi")
    assert {volume["name"] for volume in made["volumes"]} == {one["name"] for one in container["volumeMounts"]}
    assert made["restartPolicy"] == "Never" and made["automountServiceAccountToken"] is False


def test_a_prefetch_pulls_the_image_of_another_engine() -> None:
    made = prefetching(engine=CUSTOM)["spec"]
    pod = made["template"]["spec"]
    fetch, image = pod["containers"]
    assert (fetch["image"], image["image"]) == ("fetcher:1", "a/b:1")
    assert not {"args", "env", "ports"} & image.keys(), "it runs nothing of the engine"
    assert image["resources"]["limits"]["memory"] == "64Mi" and "nvidia.com/gpu" not in image["resources"]["limits"]
    [writer] = pod["initContainers"]
    assert writer["image"] == "fetcher:1" and writer["resources"]["limits"]["memory"] == "64Mi"
    [mount] = image["volumeMounts"]
    assert [one["name"] for one in writer["volumeMounts"]] == [mount["name"]], "what it runs is not in its image"
    assert image["command"] == [writer["command"][-1]] and image["command"][0].startswith(mount["mountPath"])
    assert {volume["name"] for volume in pod["volumes"]} > {mount["name"]}


def test_a_prefetch_needs_no_program_in_the_image_that_it_pulls(tmp_path: Path) -> None:
    """Not even a loader or a library, as an image from `scratch` has none: the file is run as the kernel loads it."""
    [writer] = prefetching(engine=CUSTOM)["spec"]["template"]["spec"]["initContainers"]
    _, *arguments, _ = writer["command"]
    program = tmp_path / "program"
    subprocess.run([sys.executable, *arguments, program], check=True)
    made = program.read_bytes()
    [(kind, offset, size)] = _segments(made)
    assert (kind, offset, size) == (PT_LOAD, 0, len(made)), "no segment names an interpreter"
    assert subprocess.run([program], env={}).returncode == 0


PT_LOAD = 1


def _segments(elf: bytes) -> list[tuple[int, int, int]]:
    """Type, offset and size of each segment of a 64-bit ELF file."""
    start, size, count = *struct.unpack_from("<Q", elf, 32), *struct.unpack_from("<HH", elf, 54)
    rows = (struct.unpack_from("<IIQQQQ", elf, start + size * number) for number in range(count))
    return [(kind, offset, held) for kind, _, offset, _, _, held in rows]


def test_a_prefetch_without_another_image_has_one_container() -> None:
    made = prefetching()["spec"]["template"]["spec"]
    assert len(made["containers"]) == 1 and "initContainers" not in made


def test_a_prefetch_is_selected_by_nothing_that_selects_model_pods() -> None:
    job = prefetching(placement={"tolerations": [{"key": "gpu", "operator": "Exists"}]})
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not {"slipway.dev/modeldeployment", "slipway.dev/revision"} & labels.keys()
    assert "slipway.dev/revision" not in job["metadata"]["labels"]
    assert job["spec"]["template"]["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert job["spec"]["activeDeadlineSeconds"] and job["spec"]["ttlSecondsAfterFinished"]


def test_a_prefetch_is_named_after_revision_and_node() -> None:
    inputs = parse_inputs({"model": NODE}, "chat")
    snapshot = dataclasses.replace(SNAPSHOT, inputs=inputs, template_version=2)
    other = dataclasses.replace(snapshot, revision="zzzzzzzzzz")
    names = [prefetch_job(OWNER, *of)["metadata"]["name"] for of in ((snapshot, "a"), (snapshot, "b"), (other, "a"))]
    assert len(set(names)) == 3 and names[0] == prefetch_job(OWNER, snapshot, "a")["metadata"]["name"]


def test_a_prefetch_opens_no_port() -> None:
    """The operator reads pods of the ModelDeployment alone, and the NetworkPolicy is around these."""
    inputs = parse_inputs({"model": NODE}, "chat")
    snapshot = dataclasses.replace(SNAPSHOT, inputs=inputs, template_version=3)
    fetchers = [
        *replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]["initContainers"],
        *prefetch_job(OWNER, snapshot, "a")["spec"]["template"]["spec"]["containers"],
    ]
    ports = [[one["value"] for one in item["env"] if one["name"] == PROGRESS_VARIABLE] for item in fetchers]
    assert dict(zip([item["name"] for item in fetchers[:2]], ports, strict=False)) == {"lease": [], "fetch": ["8000"]}
    assert ports[2:] == [[]]
