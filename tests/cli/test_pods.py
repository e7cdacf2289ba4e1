"""Why a pod is not ready, from its status."""

from typing import Any

import pytest

from slipway_cli.objects import pods
from tests.cli.objects import STABLE, failing_fetch, pod

NOT_READY = {"conditions": [{"type": "Ready", "status": "False"}]}


def container(**state: Any) -> dict[str, Any]:
    return {"name": "server", "ready": False, "restartCount": 1, **state}


OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
CASES = [
    ({"phase": "Pending"}, "Pending", None),
    (failing_fetch(), "CrashLoopBackOff", "container fetch: shard 2 is missing (exit code 1)"),
    (
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}],
        },
        "Unschedulable",
        "no GPU",
    ),
    (
        {
            "phase": "Running",
            "containerStatuses": [container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=OOM)],
        },
        "OOMKilled",
        "container server ended with exit code 137",
    ),
    (
        {"phase": "Pending", "containerStatuses": [container(state={"waiting": {"reason": "ErrImagePull"}})]},
        "ErrImagePull",
        "container server: ErrImagePull",
    ),
    (
        {"phase": "Running", "containerStatuses": [container(state={"terminated": {"exitCode": 1, "signal": 9}})]},
        "Error",
        "container server ended with signal 9",
    ),
    (
        {"phase": "Running", "containerStatuses": [container(state={"running": {}})]},
        "NotReady",
        "container server runs, and its readiness probe does not pass yet",
    ),
    ({"phase": "Failed", "reason": "Evicted", "message": "disk is full"}, "Evicted", "disk is full"),
]


@pytest.mark.parametrize(("status", "phase", "why"), CASES)
def test_phase_and_reason(status: dict[str, Any], phase: str, why: str | None) -> None:
    row = pods.read_row(pod(STABLE, "x", **{**NOT_READY, **status}))
    assert (row.phase, row.why, row.is_ready) == (phase, why, False)


def test_a_pod_that_leaves_has_no_trouble() -> None:
    leaving = pod(STABLE, "x", **failing_fetch())
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    assert (pods.read_row(leaving).phase, pods.read_row(leaving).why) == ("Terminating", None)


def test_pods_of_other_revisions_are_left_out() -> None:
    mixed = [pod(STABLE, "b"), pod("zzzzzzzzzz", "a"), pod(STABLE, "a")]
    assert [row.name for row in pods.list_rows(mixed, "chat", STABLE)] == [f"chat-{STABLE}-a", f"chat-{STABLE}-b"]


def test_pods_are_those_of_the_replica_set_that_the_status_names() -> None:
    """It has another name when the usual one is taken."""
    named = {"kind": "ReplicaSet", "name": f"chat-{STABLE[:8]}-1", "uid": "rs-2"}
    ours, theirs = pod(STABLE, "a"), pod(STABLE, "b")
    ours["metadata"]["ownerReferences"] = [named]
    theirs["metadata"]["ownerReferences"][0]["uid"] = "rs-1"
    assert [row.name for row in pods.list_rows([ours, theirs], "chat", STABLE, "rs-2")] == [f"chat-{STABLE}-a"]
