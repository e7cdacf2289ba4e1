"""Why a pod is not ready, read from its status; pure. `planning/facts/causes.py` has the meaning of each reason."""

import contextlib
import json
from collections.abc import Mapping
from types import MappingProxyType

from slipway_operator.api.objects import Object
from slipway_operator.model.cluster.observed import CREATE_FAILED, NOT_READY, UNSCHEDULABLE, PodTrouble
from slipway_operator.model.text import printable

Found = tuple[str, str, int | None]  # reason, message, exit code
NO_FAILURES: Mapping[str, Found] = MappingProxyType({})

# Every starting container waits for these; they add nothing to the phase.
_ORDINARY = ("PodInitializing", "ContainerCreating", "")
# Generic reasons of a terminated container.
_ANY_END = ("Error", "Completed", None)
MESSAGE_LIMIT = 1024  # characters; the kubelet passes on 2 KiB of a crash's log, and a webhook sends any length
WORD_LIMIT = 64


def of_pods(pods: list[Object], failures: Mapping[str, Found] = NO_FAILURES) -> list[PodTrouble]:
    """Return the troubles of pods, those with more detail than `not ready` first.

    `failures`: by pod uid, what only Events of the kubelet report.
    """
    found = [trouble for trouble in (of_pod(pod, failures) for pod in pods) if trouble]
    return sorted(found, key=lambda trouble: trouble.reason == NOT_READY)


def has_ended(pod: Object) -> bool:
    """Whether a pod has Failed or Succeeded: its ReplicaSet no longer counts it, but the object stays."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_ready(pod: Object) -> bool:
    """Whether a pod's condition Ready is True."""
    return _is_ready(pod.get("status") or {})


def holds(pod: Object, condition: str) -> bool:
    """Whether a condition of a pod is True."""
    return (_condition(pod.get("status") or {}, condition) or {}).get("status") == "True"


def restarts(pod: Object) -> int:
    """Return the number of restarts of a pod's containers."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(int(container.get("restartCount") or 0) for container in statuses)


def is_scheduled(pod: Object) -> bool:
    """Whether a pod has a node, whose resources it then holds."""
    return (_condition(pod.get("status") or {}, "PodScheduled") or {}).get("status") == "True"


def is_unschedulable(pod: Object) -> bool:
    """Whether the scheduler found no node for a pod."""
    scheduled = _condition(pod.get("status") or {}, "PodScheduled") or {}
    gone = bool(pod["metadata"].get("deletionTimestamp"))
    return not gone and scheduled.get("status") == "False" and scheduled.get("reason") == UNSCHEDULABLE


def is_creating(pod: Object) -> bool:
    """Whether none of a pod's containers has been created yet, though the scheduler has not rejected the pod."""
    status = pod.get("status") or {}
    unscheduled = (_condition(status, "PodScheduled") or {}).get("status") == "False"
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waiting = all("waiting" in (item.get("state") or {}) and not item.get("lastState") for item in containers)
    return status.get("phase") == "Pending" and not unscheduled and waiting


def of_pod(pod: Object, failures: Mapping[str, Found] = NO_FAILURES) -> PodTrouble | None:
    """Return the trouble of one pod; None when it is ready, being deleted, or just starting."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata.get("deletionTimestamp") or _is_ready(status):
        return None
    found = _evicted(status) or _containers(status) or _unscheduled(status) or _not_ready(status)
    found = found or failures.get(str(metadata.get("uid")))
    return _trouble(metadata["name"], *found) if found else None


def of_leaving_pod(pod: Object) -> PodTrouble | None:
    """Return how a container ended in a pod that is being deleted after a restart; None for any other pod."""
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp") or not restarts(pod):
        return None
    found = _containers(pod.get("status") or {})
    return _trouble(metadata["name"], *found) if found else None


def of_replica_set(replica_set: Object) -> PodTrouble | None:
    """Return why a ReplicaSet cannot create its pods; errors of quota and admission appear only here."""
    for condition in (replica_set.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            word, message = condition.get("reason") or CREATE_FAILED, condition.get("message") or ""
            return _trouble(replica_set["metadata"]["name"], word, message, None)
    return None


def of_group_set(group_set: Object, refusal: Found) -> PodTrouble:
    """Return why a LeaderWorkerSet lacks pods, as an Event of a controller has it."""
    return _trouble(group_set["metadata"]["name"], *refusal)


def _trouble(name: str, word: str, message: str, exit_code: int | None) -> PodTrouble:
    """Return a PodTrouble with reason and message cut to what a status has room for."""
    return PodTrouble(name, printable(word[:WORD_LIMIT]), printable(message[:MESSAGE_LIMIT]), exit_code)


def _is_ready(status: Object) -> bool:
    return (_condition(status, "Ready") or {}).get("status") == "True"


def _condition(status: Object, kind: str) -> Object | None:
    return next((item for item in status.get("conditions") or () if item.get("type") == kind), None)


def _evicted(status: Object) -> Found | None:
    if status.get("phase") != "Failed" or status.get("reason") is None:
        return None
    return status["reason"], status.get("message") or "the pod was stopped by its node", None


def _unscheduled(status: Object) -> Found | None:
    scheduled = _condition(status, "PodScheduled") or {}
    if scheduled.get("status") != "False":
        return None
    return scheduled.get("reason") or UNSCHEDULABLE, scheduled.get("message") or "no node takes the pod", None


def _containers(status: Object) -> Found | None:
    # Init containers first: while one fails, the others only wait for it.
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((found for found in map(_container, containers) if found), None)


def _container(container: Object) -> Found | None:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    last = (container.get("lastState") or {}).get("terminated") or {}
    if waiting.get("reason", "") not in _ORDINARY:
        return _waiting(container["name"], waiting, last)
    if ended and ended.get("exitCode") != 0:
        return _ended(container["name"], ended, "Error")
    if last and last.get("exitCode") != 0 and not container.get("ready"):
        return _ended(container["name"], last, "Restarted")
    return None


def _waiting(name: str, waiting: Object, last: Object) -> Found:
    # `back-off 5m0s restarting failed container` does not help: the reason of the last termination does.
    if last and waiting["reason"] == "CrashLoopBackOff":
        return _ended(name, last, waiting["reason"])
    return waiting["reason"], f"container {name}: {waiting.get('message') or waiting['reason']}", None


def _ended(name: str, ended: Object, word: str) -> Found:
    """Describe a terminated container; Kubernetes' reason (OOMKilled) comes before ours (CrashLoopBackOff)."""
    message, code = _last_words(ended.get("message") or ""), ended.get("exitCode")
    how = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {code}"
    if ended.get("reason") == "OOMKilled":
        how = f"out of memory, {how}"
    reason = word if ended.get("reason") in _ANY_END else ended["reason"]
    return reason, f"container {name}: {message} ({how})" if message else f"container {name} ended: {how}", code


def _last_words(message: str) -> str:
    """Return the last line of a termination message, which may be the end of the log; of JSON its message field."""
    line = (message.strip().splitlines() or [""])[-1]
    if line.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            line = str(entry.get("msg") or entry.get("message") or line)
    return line.strip().rstrip(".")[:MESSAGE_LIMIT]


def _not_ready(status: Object) -> Found | None:
    ready = _condition(status, "Ready")
    running = [item["name"] for item in status.get("containerStatuses") or () if "running" in (item.get("state") or {})]
    if not ready or not running or ready.get("reason") != "ContainersNotReady":
        return None
    message = f"container {', '.join(running)} is running and not ready yet: its readiness probe does not pass"
    return NOT_READY, message, None
