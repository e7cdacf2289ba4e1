"""Pods in trouble, as a kubelet reports them."""

import pytest

from slipway_operator.kube.reading.observe import workload
from slipway_operator.kube.reading.pod_trouble import of_pod, of_pods, of_replica_set
from slipway_operator.model.labels import REVISION

READY = {"type": "Ready", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}


def pod(name="chat-1", deleted=False, conditions=(NOT_READY,), containers=(), init=(), **status):
    metadata = {"name": name} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})
    conditions = list(conditions)
    return {
        "metadata": metadata,
        "status": {
            "phase": "Pending",
            "conditions": conditions,
            "containerStatuses": list(containers),
            "initContainerStatuses": list(init),
            **status,
        },
    }


def container(name="server", state=None, last=None, ready=False):
    return {"name": name, "state": state or {}, "lastState": {"terminated": last} if last else {}, "ready": ready}


def waiting(reason, message=None, **rest):
    return container(state={"waiting": {"reason": reason, "message": message}}, **rest)


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
}
FETCH_FAILED = {"exitCode": 1, "reason": "Error", "message": "hf://a/b: shard model-00002 is missing\n"}

CASES = {
    "unschedulable": (
        pod(conditions=[UNSCHEDULABLE]),
        "Unschedulable",
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    ),
    "image": (
        pod(init=[waiting("ImagePullBackOff", 'Back-off pulling image "nope"', name="fetch")]),
        "ImagePullBackOff",
        'container fetch: Back-off pulling image "nope"',
    ),
    "image without a word": (
        pod(containers=[waiting("ErrImagePull")]),
        "ErrImagePull",
        "container server: ErrImagePull",
    ),
    "config": (
        pod(containers=[waiting("CreateContainerConfigError", 'secret "token" not found')]),
        "CreateContainerConfigError",
        'container server: secret "token" not found',
    ),
    "fetcher crash loop shows its termination message": (
        pod(
            init=[waiting("CrashLoopBackOff", "back-off 5m0s restarting", last=FETCH_FAILED, name="fetch")],
            containers=[waiting("PodInitializing")],
        ),
        "CrashLoopBackOff",
        "container fetch: hf://a/b: shard model-00002 is missing (exit code 1)",
    ),
    "fetcher just ended": (
        pod(init=[container("fetch", {"terminated": FETCH_FAILED})], containers=[waiting("PodInitializing")]),
        "Error",
        "container fetch: hf://a/b: shard model-00002 is missing (exit code 1)",
    ),
    "fetcher runs again after a failure": (
        pod(init=[container("fetch", {"running": {}}, FETCH_FAILED)], containers=[waiting("PodInitializing")]),
        "Restarted",
        "container fetch: hf://a/b: shard model-00002 is missing (exit code 1)",
    ),
    "out of memory in a loop": (
        pod(containers=[waiting("CrashLoopBackOff", "back-off", last={"exitCode": 137, "reason": "OOMKilled"})]),
        "OOMKilled",
        "container server ended: out of memory, exit code 137",
    ),
    "out of memory, running again": (
        pod(containers=[container(state={"running": {}}, last={"exitCode": 137, "reason": "OOMKilled"})]),
        "OOMKilled",
        "container server ended: out of memory, exit code 137",
    ),
    "signal": (
        pod(containers=[waiting("CrashLoopBackOff", last={"signal": 11, "exitCode": 139, "reason": "Error"})]),
        "CrashLoopBackOff",
        "container server ended: signal 11",
    ),
    "evicted": (
        pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
        "Evicted",
        "The node was low on resource: memory.",
    ),
    "not ready": (
        pod(containers=[container(state={"running": {}})]),
        "NotReady",
        "container server is running and not ready yet: its readiness probe does not pass",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_trouble(case):
    given, reason, message = CASES[case]
    trouble = of_pod(given)
    assert (trouble.pod, trouble.reason, trouble.message) == ("chat-1", reason, message)


@pytest.mark.parametrize(
    "given",
    [
        pod(conditions=[READY], containers=[container(state={"running": {}}, last={"exitCode": 1}, ready=True)]),
        pod(deleted=True, containers=[waiting("CrashLoopBackOff", "back-off")]),
        pod(conditions=[], containers=[]),
        pod(containers=[waiting("ContainerCreating")]),
        pod(init=[container("fetch", {"running": {}})], containers=[waiting("PodInitializing")]),
        pod(init=[container("fetch", {"terminated": {"exitCode": 0, "reason": "Completed"}})]),
        {"metadata": {"name": "new"}},
    ],
    ids=["ready", "leaving", "new", "creating", "fetching", "fetched", "empty"],
)
def test_no_trouble(given):
    assert of_pod(given) is None


def test_a_pod_that_only_is_not_ready_comes_last():
    slow = pod("a", containers=[container(state={"running": {}})])
    broken = pod("b", containers=[waiting("ImagePullBackOff", "no")])
    assert [trouble.pod for trouble in of_pods([slow, broken])] == ["b", "a"]


def test_a_replica_set_that_cannot_make_pods():
    message = 'pods "chat-x" is forbidden: exceeded quota: gpus'
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    given = {"metadata": {"name": "chat-x"}, "status": {"conditions": [failure]}}
    assert of_replica_set(given).message == message
    failure["status"] = "False"
    assert of_replica_set(given) is None
    assert of_replica_set({"metadata": {"name": "chat-x"}}) is None


@pytest.mark.parametrize("message", ["y" * 700_000])
def test_messages_of_others_are_cut_to_the_limits_of_a_status(message: str) -> None:
    """A message of 700 kB stood uncut in three fields of a status, which the API server then refused."""
    failed = {"type": "ReplicaFailure", "status": "True", "reason": message, "message": message}
    found = [
        of_replica_set({"metadata": {"name": "a"}, "status": {"conditions": [failed]}}),
        of_pod({"metadata": {"name": "a"}, "status": {"phase": "Failed", "reason": message, "message": message}}),
        of_pod(
            {
                "metadata": {"name": "a"},
                "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]},
            }
        ),
    ]
    for trouble in found:
        assert trouble and len(trouble.message) <= 1024 and len(trouble.reason) <= 64


def test_messages_of_pods_contain_no_terminal_escapes() -> None:
    """`kubectl get` and `slipway` print messages of a status: an escape sequence of a log's last line came through."""
    ended = {"exitCode": 1, "message": "\x1b]0;owned\x07\x1b[2J\u202eall is well"}
    found = of_pod(
        {
            "metadata": {"name": "a"},
            "status": {"containerStatuses": [{"name": "server", "state": {"terminated": ended}}]},
        }
    )
    assert found and found.message.isprintable() and "all is well" in found.message


def test_a_pod_holds_resources_from_its_node_on_until_it_ends():
    """Also while it terminates: its GPU is free only when it is gone."""
    scheduled = {"type": "PodScheduled", "status": "True"}
    pods = [
        pod("waits", conditions=[UNSCHEDULABLE]),
        pod("new", conditions=[]),
        pod("starts", conditions=[scheduled, NOT_READY]),
        pod("leaves", conditions=[scheduled, READY], deleted=True),
        pod("over", conditions=[scheduled], phase="Succeeded"),
    ]
    for item in pods:
        item["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
        item["metadata"]["ownerReferences"] = [{"uid": "u1", "controller": True}]
    labels = {REVISION: "r1"}
    replica_set = {"metadata": {"name": "chat-r1", "uid": "u1", "labels": labels}, "spec": {"replicas": 3}}
    assert workload(replica_set, pods).scheduled == ("leaves", "starts")
