"""Standby pods: they have the model in memory and take no requests, until the label and the gate of some are changed.

A pod that serves stays in the ReplicaSet of the standby pods, and counts as one of its revision from then on: every
decision reads such counts, and `sizing/standby.py` alone knows which ReplicaSet a pod is of.
"""

from collections.abc import Iterable
from dataclasses import replace

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed, Pod, Snapshot, Workload


def joined(workloads: Iterable[Workload]) -> tuple[list[Workload], dict[str, Workload]]:
    """The workloads of revisions, with the standby pods that serve; and those of standby pods, by revision."""
    found = list(workloads)
    standby = {labels.what_runs(item.revision): item for item in found if labels.is_standby(item.revision)}
    others = (item for item in found if not labels.is_standby(item.revision))
    return [_with_serving(item, standby.get(item.revision)) for item in others], standby


def serving(observed: Observed, revision: str) -> tuple[Pod, ...]:
    """The standby pods of a revision that take requests."""
    return _serving(observed.standby.get(revision))


def waiting(observed: Observed, revision: str) -> tuple[Pod, ...]:
    """The standby pods of a revision that take none, loaded or not."""
    workload = observed.standby.get(revision)
    return tuple(pod for pod in workload.pods if not pod.serves) if workload else ()


def may_have(snapshot: Snapshot | None) -> bool:
    """Whether a revision may have standby pods: one with pods of its own, one for each replica."""
    return snapshot is not None and snapshot.inputs.has_pods and not snapshot.is_grouped


def _serving(workload: Workload | None) -> tuple[Pod, ...]:
    return tuple(pod for pod in workload.pods if pod.serves) if workload else ()


def _with_serving(workload: Workload, standby: Workload | None) -> Workload:
    pods = _serving(standby)
    if standby is None or not pods:
        return workload
    names = {pod.name for pod in pods}
    scheduled = tuple(name for name in standby.scheduled if name in names)
    troubles = tuple(trouble for trouble in standby.troubles if trouble.pod in names)
    return replace(
        workload,
        desired=workload.desired + len(pods),
        replicas=workload.replicas + len(pods),
        ready=workload.ready + sum(pod.ready for pod in pods),
        pods=tuple(sorted((*workload.pods, *pods), key=lambda pod: pod.name)),
        scheduled=(*workload.scheduled, *scheduled),
        troubles=(*workload.troubles, *troubles),
    )
