"""Which ModelDeployments there are, when one is as it should be, and how it is changed (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any

from slipway_operator.model import labels

Json = dict[str, Any]
Key = tuple[str, str]

NAMESPACES = 10
HOME = "slipway-system"  # where the operator and its gateway are
NODES = 10
NODE_PODS, NODE_CPUS, NODE_MEMORY, NODE_STORAGE = 4000, "8000", "32Ti", "1Pi"


def namespaces() -> list[str]:
    return [HOME, *(f"team-{number}" for number in range(NAMESPACES))]


def keys(size: int) -> list[Key]:
    return [(f"team-{number % NAMESPACES}", f"model-{number:05}") for number in range(size)]


def manifest(key: Key) -> Json:
    """The smallest ModelDeployment, as examples/quickstart.yaml has it."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "metadata": {"namespace": key[0], "name": key[1]},
        "spec": {"model": {"uri": uri(0), "version": "v1"}, "resources": {"cpu": 1, "memory": "1Gi"}},
    }


def uri(change: int) -> str:
    """Of another model for each change: a new revision."""
    return f"file:///opt/slipway/models/model-{change}"


def change(number: int) -> Json:
    """A patch that begins a new revision; `number` from 1 on."""
    return {"spec": {"model": {"uri": uri(number)}}}


def node(number: int) -> Json:
    room = {"pods": str(NODE_PODS), "cpu": NODE_CPUS, "memory": NODE_MEMORY, "ephemeral-storage": NODE_STORAGE}
    metadata = {"name": f"node-{number}", "labels": {"type": "kwok"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"capacity": room, "allocatable": room}}


def is_settled(obj: Json, pods: bool) -> bool:
    """Whether the operator is done with it: with pods it serves, without them all is there that they would need."""
    status = obj.get("status") or {}
    if status.get("observedGeneration") != obj["metadata"]["generation"] or not status.get("currentRevision"):
        return False
    if pods:
        return bool(status.get("phase") == "Healthy" and status.get("stableRevision") == status["currentRevision"])
    return bool((status.get("rollout") or {}).get("revision") == status["currentRevision"])


def missing_children(objects: Iterable[Json], children: Mapping[str, Iterable[Json]]) -> list[str]:
    """Children that should be there and are not: of each kind one for the revision that each object describes."""
    there = {
        (kind, item["metadata"]["namespace"], item["metadata"]["name"], _owner(item))
        for kind, items in children.items()
        for item in items
    }
    wanted = [
        (
            kind,
            obj["metadata"]["namespace"],
            labels.child_name(obj["metadata"]["name"], revision),
            obj["metadata"]["uid"],
        )
        for obj in objects
        for revision in [(obj.get("status") or {}).get("currentRevision", "")]
        for kind in children
    ]
    return [
        f"{kind} {namespace}/{name}"
        for kind, namespace, name, uid in wanted
        if (kind, namespace, name, uid) not in there
    ]


def _owner(item: Json) -> str:
    owners = item["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))
