"""ModelDeployments and pods as the API server gives them, for the pure rooms."""

from typing import Any

STABLE, CANARY = "aaaaaaaaaa", "bbbbbbbbbb"


def deployment(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A ModelDeployment whose status answers its spec."""
    metadata = {"name": "chat", "namespace": "demo", "uid": "u1", "generation": 3}
    return {"metadata": metadata, "spec": spec, "status": {"observedGeneration": 3, **(status or {})}}


def rollout(state: str = "Paused", **more: Any) -> dict[str, Any]:
    """The rollout of CANARY at the second of four steps."""
    return {
        "state": state,
        "revision": CANARY,
        "attempt": 1,
        "stepIndex": 1,
        "steps": 4,
        "token": f"{CANARY}/1/1",
        "startedAt": "2026-01-01T11:55:00Z",
        "stepStartedAt": "2026-01-01T11:56:48Z",
        "progressAt": "2026-01-01T11:56:40Z",
        **more,
    }


def in_flight(state: str = "Paused", phase: str = "Paused", **spec: Any) -> dict[str, Any]:
    """A canary beside a stable revision."""
    abort = {"abort": {"reason": "UserAbort", "message": "it was too slow"}} if state.startswith("Abort") else {}
    status = {
        "phase": phase,
        "message": f"step 2 of 4: revision {CANARY} has weight 10",
        "step": "2/4",
        "weight": 10,
        "ready": "2/3",
        "model": "chat",
        "currentRevision": CANARY,
        "stableRevision": STABLE,
        "rollout": rollout(state, **abort),
        "revisions": [
            {"revision": STABLE, "role": "stable", "version": "v1", "weight": 90, "ready": 2, "replicas": 2},
            {"revision": CANARY, "role": "canary", "version": "v2", "weight": 10, "ready": 0, "replicas": 1},
            {
                "revision": "cccccccccc",
                "role": "old",
                "weight": 0,
                "ready": 1,
                "replicas": 1,
                "inflight": 4,
                "scaleDownAt": "2026-01-01T12:00:30Z",
            },
        ],
        "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Valid", "message": "the spec is valid"},
            {
                "type": "Available",
                "status": "False",
                "reason": "PodsNotReady",
                "message": "2 of 3 pods are ready",
                "lastTransitionTime": "2026-01-01T11:59:10Z",
            },
        ],
    }
    steps = [{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}, {"pause": {"duration": "10m"}}]
    return deployment(status, **{"strategy": {"canary": {"steps": steps}}, **spec})


def idle(**more: Any) -> dict[str, Any]:
    """A stable revision and no rollout in flight."""
    settled = {"phase": "Healthy", "message": "serving", "currentRevision": STABLE, "stableRevision": STABLE}
    return deployment(settled | more)


def pod(revision: str, suffix: str, **status: Any) -> dict[str, Any]:
    """A pod of a revision; ready without a status."""
    ready = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "server", "ready": True, "restartCount": 0, "state": {"running": {}}}],
    }
    metadata = {
        "name": f"chat-{revision}-{suffix}",
        "creationTimestamp": "2026-01-01T11:50:00Z",
        "ownerReferences": [{"kind": "ReplicaSet", "name": f"chat-{revision}"}],
    }
    return {"metadata": metadata, "spec": {"containers": [{"name": "server"}]}, "status": status or ready}


def failing_fetch() -> dict[str, Any]:
    """The status of a pod whose init container ends with a sentence again and again."""
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "shard 2 is missing.\n"}}
    return {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False"}],
        "initContainerStatuses": [
            {
                "name": "fetch",
                "ready": False,
                "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": ended,
            }
        ],
        "containerStatuses": [
            {"name": "server", "ready": False, "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }


def event(reason: str, message: str, at: str, **more: Any) -> dict[str, Any]:
    """A v1 Event."""
    return {"metadata": {"creationTimestamp": at}, "reason": reason, "message": message, "lastTimestamp": at, **more}
