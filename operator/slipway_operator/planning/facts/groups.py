"""Replicas that are groups of pods: whether there are any, and whether the cluster has LeaderWorkerSet to make them."""

from slipway_operator.model.cluster.observed import FORBIDDEN, NOT_INSTALLED, Observed, Pod
from slipway_operator.model.deployment.spec import Invalid, Spec

REASONS = (NOT_INSTALLED, FORBIDDEN)
_SENTENCES = {
    NOT_INSTALLED: (
        "spec.engine.parallelism.nodes is {nodes}, and the cluster has no LeaderWorkerSet: install it with `helm "
        "install lws oci://registry.k8s.io/lws/charts/lws --namespace lws-system --create-namespace`, or write nodes: 1"
    ),
    FORBIDDEN: (
        "spec.engine.parallelism.nodes is {nodes}, and the operator may not use LeaderWorkerSets: upgrade Slipway's "
        "chart, which has the permission"
    ),
}


def problem(spec: Spec, observed: Observed) -> Invalid | None:
    """Why the spec cannot be followed in this cluster; None when it can."""
    nodes = spec.inputs.engine.parallelism.nodes
    if nodes == 1 or not observed.no_groups:
        return None
    return Invalid(_SENTENCES[observed.no_groups].format(nodes=nodes), observed.no_groups)


def used(spec: Spec, observed: Observed) -> bool:
    """Whether the replicas of any revision are groups of pods, or those of the spec's revision will be."""
    wanted = spec.inputs.engine.parallelism.nodes > 1
    return wanted or any(snapshot.is_grouped for snapshot in observed.snapshots.values())


def index_of(pod: Pod) -> int:
    """The index of a group, by the label of its leader pod; 0 where that was edited and is no number."""
    return int(pod.group) if pod.group.isdecimal() else 0


def kept_pods(groups: int, desired: int, size: int) -> int:
    """The number of pods that must stay so that `groups` of the `desired` groups stay, each of `size` pods.

    Pods are evicted one by one, and each takes its whole group along: so one pod may leave while all others are there.
    """
    if size == 1 or groups == 0:
        return groups
    return groups * size if groups >= desired else (groups + 1) * size - 1
