"""Every pod of a revision serves the same bytes: those that its first pod reported.

The weights of that pod are kept with the revision's record and given to later pods as a ConfigMap, so their fetchers
load exactly that commit and refuse other bytes. Only pods that started before the ConfigMap existed can have loaded
other bytes: such a pod counts as not ready, and is evicted so that a pod that reads the ConfigMap replaces it.
"""

from dataclasses import replace

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import WEIGHTS_DIFFER, Observed, Pod, PodTrouble, Snapshot, Workload
from slipway_operator.model.cluster.plan import Evict, Pin
from slipway_operator.model.cluster.weights import Weights

FIRST_TEMPLATE = 2  # pods of the former version read no ConfigMap


def of(snapshot: Snapshot | None, workload: Workload) -> Weights | None:
    """The weights that pods of a revision must have: the recorded ones, else those of the oldest reporting pod."""
    if snapshot is None or snapshot.template_version < FIRST_TEMPLATE:
        return None
    if snapshot.weights:
        return snapshot.weights
    reported = [(pod.created_at, pod.name, pod.weights) for pod in workload.pods if pod.weights]
    return min(reported)[2] if reported else None


def held(workload: Workload, snapshot: Snapshot | None) -> Workload:
    """The workload, where pods that loaded other bytes count as not ready, with the reason."""
    wanted = of(snapshot, workload)
    others = _others(workload, wanted)
    if not others or wanted is None:
        return workload
    troubles = tuple(PodTrouble(pod.name, WEIGHTS_DIFFER, _sentence(pod, wanted)) for pod in others)
    concerned = {_replica(pod) for pod in others}
    ready = max(0, workload.ready - sum(pod.ready for pod in workload.pods if _replica(pod) in concerned))
    return replace(workload, ready=ready, troubles=(*troubles, *workload.troubles))


def pins(name: str, observed: Observed) -> tuple[Pin, ...]:
    """The pins of all revisions; a baseline has the pin of the revision that it runs."""
    found: dict[str, Weights] = {}
    for revision, workload in sorted(observed.workloads.items()):
        runs = labels.what_runs(revision)
        snapshot = observed.snapshots.get(runs)
        weights = of(snapshot, workload) if snapshot and snapshot.name else None
        if weights and (runs == revision or runs not in found):
            found[runs] = weights
    return tuple(
        Pin(snapshot.name, labels.child_name(name, revision) if snapshot.inputs.has_pods else "", weights)
        for revision, weights in sorted(found.items())
        if (snapshot := observed.snapshots[revision])
    )


def evictions(observed: Observed) -> tuple[Evict, ...]:
    """The next pod with other bytes: one at a time, those that are not ready first, once the pin exists."""
    others: list[Pod] = []
    for revision, workload in sorted(observed.workloads.items()):
        snapshot = observed.snapshots.get(labels.what_runs(revision))
        if snapshot and snapshot.weights:
            others += _others(workload, of(snapshot, workload))
    return tuple(
        Evict(pod.name, with_group=bool(pod.group), uid=pod.uid)
        for pod in sorted(others, key=lambda pod: (pod.ready, pod.created_at, pod.name))[:1]
    )


def _others(workload: Workload, wanted: Weights | None) -> list[Pod]:
    if wanted is None:
        return []
    pods = (*workload.pods, *workload.workers)
    return [pod for pod in pods if pod.weights and pod.weights.digest != wanted.digest]


def is_other(pod: Pod, snapshot: Snapshot | None) -> bool:
    """Whether a pod loaded other bytes than those that are recorded with its revision."""
    wanted = snapshot.weights if snapshot and snapshot.template_version >= FIRST_TEMPLATE else None
    return bool(wanted and pod.weights and pod.weights.digest != wanted.digest)


def _replica(pod: Pod) -> str:
    """Name of the replica that a pod belongs to: its group, or the pod itself."""
    return pod.group or pod.name


def _sentence(pod: Pod, wanted: Weights) -> str:
    assert pod.weights, "only of pods that reported what they loaded"
    at = f" at commit {pod.weights.commit}" if pod.weights.commit else ""
    return f"it loaded {pod.weights.digest}{at}; the revision is pinned to {wanted.digest}"


def differ(one: Snapshot, other: Snapshot) -> bool:
    """Whether two revisions are known to have loaded other bytes."""
    return bool(one.weights and other.weights and one.weights.digest != other.weights.digest)
