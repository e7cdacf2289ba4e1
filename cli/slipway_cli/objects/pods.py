"""One row for a pod, and why it is not ready, read from its status; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from slipway_cli.api import COMPONENT_LABEL, REVISION_LABEL, STANDBY_SUFFIX, Json
from slipway_cli.objects.times import parse_time

# Ordinary reasons for which a container waits; they add nothing to the phase.
_ORDINARY = ("", "PodInitializing", "ContainerCreating")


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod as `kubectl get pods` shows it, with the reason as a sentence."""

    name: str
    phase: str
    containers: str  # READY/ALL
    is_ready: bool
    restarts: int
    created_at: datetime | None
    why: str | None
    standby: str | None = None  # of a standby pod: what it does


def list_rows(pods: Sequence[Json], name: str, revision: str, replica_set_uid: str | None = None) -> list[PodRow]:
    """Rows of the pods of one revision's ReplicaSet, with the workers of groups, sorted by name.

    Without `replica_set_uid` the ReplicaSet is known by its usual name.
    """
    key, owner = ("uid", replica_set_uid) if replica_set_uid else ("name", f"{name}-{revision}")
    own = (
        pod
        for pod in pods
        if _is_worker(pod, revision)
        or any(ref.get(key) == owner for ref in pod["metadata"].get("ownerReferences") or ())
    )
    return sorted((read_row(pod) for pod in own), key=lambda item: item.name)


def list_standby_rows(pods: Sequence[Json], replica_set_uid: str) -> list[PodRow]:
    """Rows of the pods of a ReplicaSet of standby pods, sorted by name: those that serve, and those that wait."""
    own = (
        pod
        for pod in pods
        if any(ref.get("uid") == replica_set_uid for ref in pod["metadata"].get("ownerReferences") or ())
    )
    return sorted(map(_read_standby, own), key=lambda item: item.name)


def _read_standby(pod: Json) -> PodRow:
    row, status = read_row(pod), pod.get("status") or {}
    if not str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL, "")).endswith(STANDBY_SUFFIX):
        return replace(row, standby="standby pod that serves")
    if row.phase != "Terminating" and _condition(status, "ContainersReady").get("status") == "True":
        # Its gate is closed, so that no request comes: nothing is wrong with it.
        return replace(row, phase=status.get("phase", "Unknown"), why=None, standby="standby: has loaded, and waits")
    return replace(row, standby="standby")


def _is_worker(pod: Json, revision: str) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(COMPONENT_LABEL) == "worker" and labels.get(REVISION_LABEL) == revision


def read_row(pod: Json) -> PodRow:
    """Read one pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    is_ready = _condition(status, "Ready").get("status") == "True"
    phase, why = status.get("phase", "Unknown"), None
    if metadata.get("deletionTimestamp"):
        phase = "Terminating"
    elif not is_ready:
        phase, why = next(_troubles(status), (phase, None))
    return PodRow(
        name=metadata["name"],
        phase=phase,
        containers=f"{sum(bool(item.get('ready')) for item in containers)}/{len(pod['spec']['containers'])}",
        is_ready=is_ready,
        restarts=sum(item.get("restartCount", 0) for item in _all_containers(status)),
        created_at=parse_time(metadata.get("creationTimestamp")),
        why=why,
    )


def _troubles(status: Json) -> Iterator[tuple[str, str | None]]:
    """Failures as (reason, message), the most specific first."""
    if status.get("phase") == "Failed" and status.get("reason"):
        yield status["reason"], status.get("message")
    yield from filter(None, map(_of_container, _all_containers(status)))
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        yield scheduled.get("reason") or "Unschedulable", scheduled.get("message")
    running = [item["name"] for item in status.get("containerStatuses") or () if "running" in (item.get("state") or {})]
    if running:
        yield "NotReady", f"container {', '.join(running)} runs, and its readiness probe does not pass yet"


def _of_container(container: Json) -> tuple[str, str | None] | None:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    last = (container.get("lastState") or {}).get("terminated") or {}
    name = container["name"]
    if waiting.get("reason", "") not in _ORDINARY:
        # `back-off 5m0s restarting failed container` has no cause; the last exit does.
        ending = _ending(name, last) if last else f"container {name}: {waiting.get('message') or waiting['reason']}"
        return ("OOMKilled" if last.get("reason") == "OOMKilled" else waiting["reason"]), ending
    failed = next((end for end in (ended, last) if end and end.get("exitCode") != 0), None)
    if failed is None or container.get("ready"):
        return None
    return failed.get("reason") or "Error", _ending(name, failed)


def _ending(name: str, ended: Json) -> str:
    ending = (ended.get("message") or "").strip().rstrip(".")
    how = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('exitCode')}"
    return f"container {name}: {ending} ({how})" if ending else f"container {name} ended with {how}"


def _all_containers(status: Json) -> list[Json]:
    # Init containers first: while one fails, the others only wait for it.
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(status: Json, kind: str) -> Json:
    return next((item for item in status.get("conditions") or () if item.get("type") == kind), {})
