"""One pod, read from its object; pure."""

from collections.abc import Container

from slipway_operator.api.objects import Object
from slipway_operator.kube.reading import pod_trouble
from slipway_operator.model import wire
from slipway_operator.model.cluster.observed import Pod
from slipway_operator.model.cluster.weights import Weights, reported


def parse_pod(pod: Object, leaving: Container[str]) -> Pod:
    """Parse a pod; `leaving` are nodes that are drained."""
    metadata = pod["metadata"]
    made = wire.parse_time(metadata["creationTimestamp"])
    address = (pod.get("status") or {}).get("podIP") or ""
    ready, restarts = pod_trouble.is_ready(pod), pod_trouble.restarts(pod)
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    return Pod(
        name=metadata["name"],
        created_at=made,
        ready=ready,
        restarts=restarts,
        address=address,
        weights=_loaded(pod),
        leaving=node in leaving,
        node=node,
        fetching="running" in _fetcher_state(pod),
    )


def _loaded(pod: Object) -> Weights | None:
    """Return the weights that the fetcher of a pod reported when it succeeded; else None."""
    ended = _fetcher_state(pod).get("terminated") or {}
    return reported(str(ended.get("message") or "")) if ended.get("exitCode") == 0 else None


def _fetcher_state(pod: Object) -> Object:
    containers = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return next((item.get("state") or {} for item in containers if item.get("name") == "fetch"), {})
