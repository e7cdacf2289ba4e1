"""Which nodes are drained or unreachable, from a watch: pods there are replaced, before they are evicted."""

from collections.abc import Iterable

from slipway_operator.api.objects import Object

# Programs that remove a node set one of these taints before they evict its pods: cluster autoscalers, cloud providers,
# handlers of spot interruptions. `kubectl drain` and most of them also make the node unschedulable.
LEAVING_TAINTS = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "cloud.google.com/impending-node-termination",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
UNREACHABLE = "node.kubernetes.io/unreachable"  # the node has not reported for longer than its grace period
LEAVING_PREFIXES = ("aws-node-termination-handler/",)


def is_drained(node: Object) -> bool:
    """Whether pods should leave a node: it is unschedulable, or has a taint that announces its removal."""
    spec = node.get("spec") or {}
    keys = [str(taint.get("key")) for taint in spec.get("taints") or ()]
    return bool(spec.get("unschedulable")) or any(
        key in LEAVING_TAINTS or key.startswith(LEAVING_PREFIXES) for key in keys
    )


def is_unreachable(node: Object) -> bool:
    """Whether Kubernetes has lost contact with a node; it evicts the node's pods only minutes later."""
    return any(taint.get("key") == UNREACHABLE for taint in (node.get("spec") or {}).get("taints") or ())


class Nodes:
    """The nodes that are drained or unreachable; bounded by the number of nodes."""

    def __init__(self) -> None:
        self.watched = False  # whether the operator may watch nodes, and does
        self._all: set[str] = set()
        self._drained: frozenset[str] = frozenset()
        self._unreachable: frozenset[str] = frozenset()

    @property
    def leaving(self) -> frozenset[str]:
        """Names of the nodes whose pods are replaced.

        When most nodes are unreachable, the control plane is cut off and pods still run: only drained nodes count.
        """
        most = 2 * len(self._unreachable) > len(self._all)
        return self._drained if most else self._drained | self._unreachable

    def on_event(self, event: str | None, node: Object) -> frozenset[str]:
        """Apply an event of the watch; returns the names that joined or left `leaving`.

        These can be several: nodes that become unreachable together leave it when they are the most, and join it again.
        """
        name = str(node["metadata"]["name"])
        before, there = self.leaving, event != "DELETED"
        self._all = self._all | {name} if there else self._all - {name}
        self._drained = _with(self._drained, name, there and is_drained(node))
        self._unreachable = _with(self._unreachable, name, there and is_unreachable(node))
        return before ^ self.leaving

    def keep(self, names: Iterable[str]) -> None:
        """Forget all nodes but these: the watch may have missed that others were deleted."""
        self._all &= set(names)
        self._drained &= self._all
        self._unreachable &= self._all


def _with(names: frozenset[str], name: str, holds: bool) -> frozenset[str]:
    return names | {name} if holds else names - {name}
