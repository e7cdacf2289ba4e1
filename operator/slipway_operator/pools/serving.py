"""Members of pools as reconciles see them (pure): a revision without pods is one replica, which the pool serves.

Its record is a ReplicaSet without pods, whose annotation says whether it is an entry of the pool. It is created, found,
adopted and deleted as any other, and gateways find its endpoints by the uid of the pool's StatefulSet.
"""

from collections.abc import Hashable
from dataclasses import replace

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed, PodTrouble, Snapshot, Workload
from slipway_operator.model.pool_views import (
    DATA_ERROR,
    MODEL_FAILED,
    POOL_NOT_FOUND,
    POOL_NOT_READY,
    EntryState,
    PoolView,
    PoolViews,
)


def served(observed: Observed, namespace: str, pools: PoolViews, stable: str | None) -> Observed:
    """The observed state, in which workloads of members have the readiness, troubles and uid that their pools give.

    `stable`: one pod that serves it is enough. Any other revision is ready once all ready pods have loaded it.
    """
    found = {
        revision: _served(item, observed.snapshots.get(revision), namespace, pools, stable)
        if item.kind == labels.POOL_KIND
        else item
        for revision, item in observed.workloads.items()
    }
    return replace(observed, workloads=found)


def has_members(observed: Observed) -> bool:
    """Whether any revision is served by a pool, or will be."""
    return any(item.kind == labels.POOL_KIND for item in observed.workloads.values())


def facts(view: PoolView | None, revision: str) -> Hashable:
    """What `served` reads of a pool about one revision: when it changes, its ModelDeployment is reconciled."""
    if view is None:
        return None
    states = [one and (one.was_loaded, bool(one.trouble)) for one in _states(view, revision)]
    return view.uid, bool(view.problem), tuple(zip((pod.name for pod in view.pods), states, strict=True))


def texts(view: PoolView | None, revision: str) -> Hashable:
    """The reasons in it, which may differ in each look: they decide nothing, and the status of a member shows them."""
    return view and (view.problem, tuple(one and one.trouble for one in _states(view, revision)))


def _served(
    item: Workload, snapshot: Snapshot | None, namespace: str, pools: PoolViews, stable: str | None
) -> Workload:
    name = _pool_of(snapshot)
    view = pools.get((namespace, name))
    ready = bool(item.desired and view and _serves(view, item.revision, all_pods=item.revision != stable))
    trouble = _trouble(view, name, item.revision) if item.desired and not ready else None
    return replace(item, ready=int(ready), troubles=(trouble,) if trouble else (), uid=view.uid if view else "")


def _pool_of(snapshot: Snapshot | None) -> str:
    return snapshot.inputs.pool.name if snapshot and snapshot.inputs.pool else ""


def _states(view: PoolView, revision: str) -> list[EntryState | None]:
    """The state of the revision's entry in each ready pod; None where the pod does not report one."""
    return [pod.entries.get(revision) if pod.entries is not None else None for pod in view.pods]


def _serves(view: PoolView, revision: str, *, all_pods: bool) -> bool:
    states = _states(view, revision)
    if all_pods:
        return bool(states) and all(one is not None and one.was_loaded and not one.trouble for one in states)
    return any(one is not None and not one.trouble for one in states)


def _trouble(view: PoolView | None, name: str, revision: str) -> PodTrouble | None:
    if view is None:
        return PodTrouble(name, POOL_NOT_FOUND, f"there is no ModelPool {name} in the namespace")
    if not view.pods:
        return PodTrouble(name, POOL_NOT_READY, view.problem or f"no pod of the ModelPool {name} is ready")
    for pod, state in zip(view.pods, _states(view, revision), strict=True):
        if state and state.trouble:
            return PodTrouble(pod.name, MODEL_FAILED, state.trouble, DATA_ERROR)
    return PodTrouble(name, POOL_NOT_READY, view.problem) if view.problem else None
