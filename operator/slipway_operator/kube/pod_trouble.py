"""Why a pod is not ready, read from its status; pure."""

from typing import Any

from slipway_operator.model.observed import PodTrouble

Json = dict[str, Any]

# Waiting for these is ordinary; they say nothing that the phase does not.
_ORDINARY = ("PodInitializing", "ContainerCreating", "")
_NOT_READY = "NotReady"


def of_pods(pods: list[Json]) -> list[PodTrouble]:
    """The troubles of pods, those that say more than `not ready` first."""
    found = [trouble for trouble in map(of_pod, pods) if trouble]
    return sorted(found, key=lambda trouble: trouble.reason == _NOT_READY)


def has_ended(pod: Json) -> bool:
    """Whether a pod will never run again: its ReplicaSet counts it no more, though nobody removes it."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_ready(pod: Json) -> bool:
    """Whether a pod takes requests."""
    return _is_ready(pod.get("status") or {})


def restarts(pod: Json) -> int:
    """How often containers of a pod were started again."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(int(container.get("restartCount") or 0) for container in statuses)


def is_unschedulable(pod: Json) -> bool:
    """Whether the scheduler found no node for a pod."""
    scheduled = _condition(pod.get("status") or {}, "PodScheduled") or {}
    gone = bool(pod["metadata"].get("deletionTimestamp"))
    return not gone and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"


def of_pod(pod: Json) -> PodTrouble | None:
    """The trouble of one pod; None when it is ready, leaving, or merely on its way."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata.get("deletionTimestamp") or _is_ready(status):
        return None
    found = _evicted(status) or _containers(status) or _unschedulable(status) or _not_ready(status)
    return PodTrouble(metadata["name"], *found) if found else None


def of_replica_set(replica_set: Json) -> PodTrouble | None:
    """Why a ReplicaSet cannot make its pods: quota or admission speaks here and nowhere else."""
    for condition in (replica_set.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return PodTrouble(
                replica_set["metadata"]["name"],
                condition.get("reason") or "FailedCreate",
                condition.get("message") or "",
            )
    return None


def _is_ready(status: Json) -> bool:
    return (_condition(status, "Ready") or {}).get("status") == "True"


def _condition(status: Json, kind: str) -> Json | None:
    return next((item for item in status.get("conditions") or () if item.get("type") == kind), None)


def _evicted(status: Json) -> tuple[str, str] | None:
    if status.get("phase") != "Failed" or status.get("reason") is None:
        return None
    return status["reason"], status.get("message") or "the pod was stopped by its node"


def _unschedulable(status: Json) -> tuple[str, str] | None:
    scheduled = _condition(status, "PodScheduled") or {}
    if scheduled.get("status") != "False":
        return None
    return scheduled.get("reason") or "Unschedulable", scheduled.get("message") or "no node takes the pod"


def _containers(status: Json) -> tuple[str, str] | None:
    # Init containers first: while one fails, the others only wait for it.
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((found for found in map(_container, containers) if found), None)


def _container(container: Json) -> tuple[str, str] | None:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    last = (container.get("lastState") or {}).get("terminated") or {}
    if waiting.get("reason", "") not in _ORDINARY:
        return _waiting(container["name"], waiting, last)
    if ended and ended.get("exitCode") != 0:
        return _reason_of(ended, "Error"), _ending(container["name"], ended)
    if last and last.get("exitCode") != 0 and not container.get("ready"):
        return _reason_of(last, "Restarted"), _ending(container["name"], last)
    return None


def _waiting(name: str, waiting: Json, last: Json) -> tuple[str, str]:
    if not last:
        return waiting["reason"], f"container {name}: {waiting.get('message') or waiting['reason']}"
    # `back-off 5m0s restarting failed container` helps nobody: how it ended does. OOMKilled beats CrashLoopBackOff.
    reason = last["reason"] if last.get("reason") == "OOMKilled" else waiting["reason"]
    return reason, _ending(name, last)


def _reason_of(ended: Json, otherwise: str) -> str:
    return ended["reason"] if ended.get("reason") not in (None, "Error", "Completed") else otherwise


def _ending(name: str, ended: Json) -> str:
    said = (ended.get("message") or "").strip().rstrip(".")
    how = f"out of memory (exit code {ended.get('exitCode')})" if ended.get("reason") == "OOMKilled" else _exit(ended)
    return f"container {name}: {said} ({how})" if said else f"container {name} ended: {how}"


def _exit(ended: Json) -> str:
    return f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('exitCode')}"


def _not_ready(status: Json) -> tuple[str, str] | None:
    ready = _condition(status, "Ready")
    running = [item["name"] for item in status.get("containerStatuses") or () if "running" in (item.get("state") or {})]
    if not ready or not running or ready.get("reason") != "ContainersNotReady":
        return None
    return _NOT_READY, f"container {', '.join(running)} is running and not ready yet: its readiness probe does not pass"
