"""One pod, read from its object; pure."""

import re
from collections.abc import Container

from slipway_contracts.api.times import parse_time
from slipway_operator.api.objects import Object
from slipway_operator.kube.reading import pod_trouble
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Pod
from slipway_operator.model.cluster.weights import reported, reported_bytes

_COST = re.compile(r"-?[1-9][0-9]{0,9}")


def parse_pod(pod: Object, leaving: Container[str]) -> Pod:
    """Parse a pod; `leaving`: names of nodes that are drained or unreachable."""
    metadata = pod["metadata"]
    marks = metadata.get("labels") or {}
    made = parse_time(metadata["creationTimestamp"])
    address = (pod.get("status") or {}).get("podIP") or ""
    ready, restarts = pod_trouble.is_ready(pod), pod_trouble.restarts(pod)
    report = _report(pod)
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    return Pod(
        name=metadata["name"],
        created_at=made,
        ready=ready,
        restarts=restarts,
        address=address,
        weights=reported(report),
        leaving=node in leaving,
        node=node,
        fetching="running" in _fetcher_state(pod),
        model_bytes=reported_bytes(report),
        deletion_cost=_deletion_cost(metadata.get("annotations") or {}),
        uid=str(metadata.get("uid") or ""),
        loaded=pod_trouble.holds(pod, "ContainersReady"),
        gate_open=pod_trouble.holds(pod, labels.SERVING),
        serves=not labels.is_standby(str(marks.get(labels.REVISION) or "")),
    )


def _deletion_cost(annotations: Object) -> int:
    """Return the pod deletion cost as Kubernetes reads it: 0 when the annotation is no number."""
    found = str(annotations.get(labels.DELETION_COST) or "")
    return int(found) if _COST.fullmatch(found) else 0


def _report(pod: Object) -> str:
    """Return the termination message of a pod's fetcher if it succeeded; else an empty text."""
    ended = _fetcher_state(pod).get("terminated") or {}
    return str(ended.get("message") or "") if ended.get("exitCode") == 0 else ""


def _fetcher_state(pod: Object) -> Object:
    containers = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return next((item.get("state") or {} for item in containers if item.get("name") == "fetch"), {})
