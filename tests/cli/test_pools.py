"""ModelPools on the command line: the list, the models of one, and the pool of a member."""

import json
from typing import Any

import pytest

from slipway_cli.objects.pool import format_bytes, pool_of, read_pool
from slipway_cli.views.status import build_view, to_data
from testkit.cluster.api import Api
from tests.cli import objects
from tests.cli.conftest import Run
from tests.cli.objects import CANARY, STABLE
from tests.cli.test_view import NOW, drawn
from tests.crds.objects import path

ENTRIES = [
    {"model": "iris", "modelDeployment": "chat", "revision": STABLE, "stable": True, "loaded": 2, "serving": 2},
    {"model": "iris", "modelDeployment": "chat", "revision": CANARY, "reason": "pod shared-pool-1: no ONNX file"},
    {"model": "churn", "modelDeployment": "churn", "revision": "dddddddddd", "stable": True, "serving": 2},
]
STATUS = {
    "ready": "2/2",
    "replicas": 2,
    "models": 3,
    "loaded": 1,
    "memoryBytes": 300 << 20,
    "memoryLimitBytes": 3 << 30,
    "entries": ENTRIES,
    "conditions": [
        {
            "type": "Redundant",
            "status": "False",
            "reason": "SingleReplica",
            "message": "3 models are in one pod",
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        }
    ],
}
POD = {
    "metadata": {"name": "shared-pool-0", "creationTimestamp": "2026-01-01T11:00:00Z"},
    "spec": {"containers": [{"name": "server"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def made(status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": "shared", "namespace": "demo"}, "spec": {}, "status": status or {}}


def tree_of(**pool: Any) -> str:
    member = objects.in_flight(pool={"name": "shared"})
    return "\n".join(drawn(build_view(member, [], [], NOW, pool=read_pool(made({**STATUS, **pool}), [POD]))))


def test_the_status_of_a_member_shows_its_pool_and_whether_each_entry_is_in_memory() -> None:
    text = tree_of()
    assert "pool shared  ready 2/2  1 of 3 models in memory  300 MiB of 3.0 GiB" in text
    assert "shared-pool-0  Running" in text and "Redundant is False (SingleReplica)" in text
    stable, canary = (
        next(line for line in text.splitlines() if name in line) for name in (f"{STABLE}  v1", f"{CANARY}  v2")
    )
    assert "in memory in 2 of 2 pods" in stable
    assert "not in memory: pod shared-pool-1: no ONNX file" in canary
    assert "churn" not in text, "models of others"


def test_a_pool_of_an_older_operator_has_no_entries() -> None:
    text = tree_of(entries=None)
    assert "not an entry of the pool" in text and "ready 2/2" in text
    assert read_pool(made()).describe() == "ready ?  0 of 0 models in memory  0 B of 0 B"


def test_as_data_a_member_has_its_pool_and_no_models_of_others() -> None:
    member = objects.in_flight(pool={"name": "shared"})
    data = to_data(build_view(member, [], [], NOW, pool=read_pool(made(STATUS))))
    assert data["pool"]["name"] == "shared" and data["pool"]["entries"] == []
    entries = {one["revision"]: one.get("entry") for one in data["revisions"]}
    assert entries[STABLE] == "in memory in 2 of 2 pods" and entries[CANARY].startswith("not in memory: ")
    assert "pool" not in to_data(build_view(objects.in_flight(), [], [], NOW))


@pytest.mark.parametrize(("spec", "name"), [({}, None), ({"pool": None}, None), ({"pool": {"name": "a"}}, "a")])
def test_a_member_names_its_pool(spec: dict[str, Any], name: str | None) -> None:
    assert pool_of({"spec": spec}) == name


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (10 << 20, "10 MiB"),
        (3 << 40, "3.0 TiB"),
        (9 << 50, "9216 TiB"),
    ],
)
def test_sizes_are_shown_with_a_unit(size: int, shown: str) -> None:
    assert format_bytes(size) == shown


@pytest.mark.integration
def test_pools_are_listed_shown_and_completed(slipway: Run, api: Api, namespace: str) -> None:
    where = path(namespace, plural="modelpools")
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelPool", "metadata": {"name": "shared"}, "spec": {}}
    assert slipway("pools").stderr.startswith("No resources found")
    answer = api.post(where, body)
    assert answer.ok, answer.message
    answer = api.put(f"{where}/shared/status", {**answer.body, "status": STATUS})
    assert answer.ok, answer.message

    listed = slipway("pools").stdout.splitlines()
    assert listed[0].split()[:5] == ["NAME", "READY", "MODELS", "LOADED", "BYTES"]
    assert listed[1].split()[:4] == ["shared", "2/2", "3", "1"]
    assert namespace in slipway("pools", "-A").stdout
    shown = slipway("pools", "shared").stdout.splitlines()
    assert shown[0] == "shared  ready 2/2  1 of 3 models in memory  300 MiB of 3.0 GiB"
    assert shown[1] == "Redundant is False (SingleReplica): 3 models are in one pod"
    assert shown[2].split() == ["MODEL", "MODELDEPLOYMENT", "REVISION", "ROLE", "LOADED", "REASON"]
    assert shown[4].split() == ["iris", "chat", CANARY, "0", "pod", "shared-pool-1:", "no", "ONNX", "file"]
    assert json.loads(slipway("pools", "shared", "-o", "json").stdout)["status"]["entries"][0]["loaded"] == 2
    missing = slipway("pools", "other")
    assert missing.returncode == 1 and "there is no ModelPool other" in missing.stderr
    assert slipway("pools", "shared", "-A").returncode == 2
    words = {"_SLIPWAY_COMPLETE": "bash_complete", "COMP_WORDS": f"slipway -n {namespace} pools s", "COMP_CWORD": "4"}
    assert slipway(**words).stdout == "plain,shared\n"
