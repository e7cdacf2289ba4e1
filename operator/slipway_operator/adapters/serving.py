"""Adapters as reconciles see them (pure): a revision is one replica, which pods of the ModelDeployment serve.

Its record is a ReplicaSet without pods, as that of a member of a pool; see `pools/serving.py`.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace

from slipway_operator.model.adapter_views import (
    ADAPTER_NOT_LOADED,
    ADAPTERS_FAILED,
    ADAPTERS_LIMIT,
    BASE_ROLLING_OUT,
    DEPLOYMENT_NOT_READY,
    FAILED,
    LOADED,
    MAX_ROLLOUTS,
    MAX_SERVED,
    ROLLOUTS_LIMIT,
    AdapterPod,
    BaseView,
    LoadedState,
)
from slipway_operator.model.cluster import weights
from slipway_operator.model.cluster.observed import Hold, Observed, PodTrouble, Snapshot, Workload
from slipway_operator.model.cluster.weights import Weights

SHOWN = 5  # adapters that a message names


def served(observed: Observed, adapter: str, base: str, view: BaseView | None, stable: str | None) -> Observed:
    """The observed state of an adapter, whose revisions have the readiness and troubles that pods report.

    `stable`: one pod that has loaded it is enough. Any other revision is ready once all ready pods that serve have it.
    A digest that a pod reports is that of the revision, until it is recorded.
    """
    view = view or BaseView()
    workloads = {
        revision: _served(item, observed.snapshots.get(revision), base, view, stable)
        for revision, item in observed.workloads.items()
    }
    snapshots = {revision: _pinned(item, view) for revision, item in observed.snapshots.items()}
    hold = _hold(adapter, base, view)
    return replace(observed, workloads=workloads, snapshots=snapshots, hold=hold)


def hold_of_base(view: BaseView) -> Hold | None:
    """Why a ModelDeployment's new revision gets no further: its pods cannot load adapters that serve; None: nothing."""
    serving = {key for pod in view.serving for key, found in (pod.states or {}).items() if found.state == LOADED}
    failed = {
        key: found.reason
        for pod in view.coming
        for key, found in (pod.states or {}).items()
        if found.state == FAILED and key in serving
    }
    if not failed:
        return None
    names = sorted({name for name, _ in failed})
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    why = next((reason for _, reason in sorted(failed.items()) if reason), "they give no reason")
    text = f"pods of revision {view.target} cannot load the adapters {', '.join(names[:SHOWN])}{more}: {why}"
    return Hold(ADAPTERS_FAILED, text)


def facts(view: BaseView | None, adapter: str, revisions: Iterable[Snapshot]) -> Hashable:
    """What `served` reads about one adapter: when it changes, the adapter is reconciled."""
    if view is None:
        return None
    states = tuple(
        (item.revision, tuple((pod.name, _short(_state(pod, item))) for pod in view.serving)) for item in revisions
    )
    held = (bool(view.target), bool(view.serving), adapter in view.beyond, adapter in view.waiting)
    return view.generation, bool(view.problem), held, states


def texts(view: BaseView | None, revisions: Iterable[Snapshot]) -> Hashable:
    """The reasons in it: they decide nothing, and the status shows them."""
    if view is None:
        return None
    reasons = tuple(found.reason if (found := _state(pod, item)) else "" for item in revisions for pod in view.serving)
    return view.problem, view.target, reasons


def _short(found: LoadedState | None) -> tuple[bool, bool, str] | None:
    return (found.state == LOADED, found.state == FAILED, found.digest) if found else None


def _served(item: Workload, snapshot: Snapshot | None, base: str, view: BaseView, stable: str | None) -> Workload:
    is_ready = item.desired and snapshot and _serves(view, snapshot, all_pods=item.revision != stable)
    trouble = _trouble(view, base, snapshot) if item.desired and snapshot and not is_ready else None
    return replace(item, ready=int(bool(is_ready)), troubles=(trouble,) if trouble else ())


def _state(pod: AdapterPod, snapshot: Snapshot) -> LoadedState | None:
    return pod.state(snapshot.inputs.model.name, snapshot.revision)


def _serves(view: BaseView, snapshot: Snapshot, *, all_pods: bool) -> bool:
    states = [_state(pod, snapshot) for pod in view.serving]
    loaded = [found is not None and found.state == LOADED for found in states]
    return bool(loaded) and all(loaded) if all_pods else any(loaded)


def _trouble(view: BaseView, base: str, snapshot: Snapshot) -> PodTrouble | None:
    if not view.serving:
        return PodTrouble(base, DEPLOYMENT_NOT_READY, view.problem or f"no pod of the ModelDeployment {base} is ready")
    for pod in view.serving:
        found = _state(pod, snapshot)
        if found and (found.state == FAILED or found.reason):  # the latter one tries again
            return PodTrouble(pod.name, ADAPTER_NOT_LOADED, found.reason or "it gives no reason")
    return PodTrouble(base, DEPLOYMENT_NOT_READY, view.problem) if view.problem else None


def _pinned(snapshot: Snapshot, view: BaseView) -> Snapshot:
    """The record with the digest that the first pod reports, where it has none: it is recorded with this plan."""
    if snapshot.weights:
        return snapshot
    found = (_state(pod, snapshot) for pod in sorted(view.serving, key=lambda pod: pod.name))
    digests = (state.digest for state in found if state and state.state == LOADED)
    digest = next((text for text in digests if weights.is_digest(text)), "")
    return replace(snapshot, weights=Weights(digest)) if digest else snapshot


def _hold(adapter: str, base: str, view: BaseView) -> Hold | None:
    if adapter in view.beyond:
        text = f"the ModelDeployment {base} has {MAX_SERVED} ModelAdapters already: delete one, or name another one"
        return Hold(ADAPTERS_LIMIT, text)
    if adapter in view.waiting:
        text = f"{MAX_ROLLOUTS} ModelAdapters of the ModelDeployment {base} roll out already: it goes on after one"
        return Hold(ROLLOUTS_LIMIT, text)
    if view.target and view.stable:
        return Hold(
            BASE_ROLLING_OUT, f"the ModelDeployment {base} rolls out revision {view.target}: it waits for the end"
        )
    if not view.serving:
        return Hold(DEPLOYMENT_NOT_READY, f"no pod of the ModelDeployment {base} is ready: it waits for one")
    return None
