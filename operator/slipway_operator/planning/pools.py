"""The status of a ModelPool, from its pods and entries (pure)."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter

from slipway_operator.api.pools.model_pool import ModelPoolSpec, ModelPoolStatus, PoolEntryStatus
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.manifests.pools.entries import PoolMemberRevision
from slipway_operator.model.pool_views import MAX_ENTRIES, POOL_NOT_READY, UNAVAILABLE, EntryState, PoolPod, PoolView
from slipway_operator.model.pool_views import READY as IN_MEMORY
from slipway_operator.planning.conditions.transitions import READ_BY_KSTATUS, awaited, carry_over, condition, failed

ACCEPTED, READY, REDUNDANT = "Accepted", "Ready", "Redundant"
MAX_PODS = 1000
NOT_THERE = "its entry is not in the pod yet"


def status(
    generation: int,
    spec: ModelPoolSpec,
    view: PoolView,
    members: tuple[Sequence[PoolMemberRevision], int],
    former: ModelPoolStatus,
    now: datetime,
    *,
    unwritten: str = "",
) -> ModelPoolStatus:
    """The status of a ModelPool.

    `members`: the entries, and how many more the file has no room for. `former`: the status so far, with the image in
    use. `unwritten`: why the pods do not get the entries; empty where they do.
    """
    listed, beyond = members
    ready = len(view.pods)
    accepted = (True, "Valid", "the spec is valid")
    full = f"{beyond} more revisions want to be entries, and a pool has {MAX_ENTRIES} at most: make another ModelPool"
    if unwritten:
        accepted = (False, "EntriesNotWritten", unwritten)
    elif beyond:
        accepted = (False, "PoolFull", full)
    fresh = (
        condition(ACCEPTED, *accepted, now),
        condition(READY, *_readiness(spec, view), now),
        condition(REDUNDANT, *_redundancy(spec, len(listed)), now),
        *_for_tools(accepted, spec, view, now),
    )
    return ModelPoolStatus(
        observed_generation=generation,
        replicas=view.present,
        ready=f"{ready}/{spec.replicas}",
        models=len(listed),
        loaded=max((pod.loaded for pod in view.pods), default=0),
        memory_bytes=max((pod.memory_bytes for pod in view.pods), default=0),
        memory_limit_bytes=max((pod.memory_limit_bytes for pod in view.pods), default=0),
        image=former.image,
        entries=tuple(_entries(listed, view)),
        conditions=carry_over(fresh, former.conditions),
    )


def refused(generation: int, why: str, former: ModelPoolStatus, now: datetime) -> ModelPoolStatus:
    """The status of a ModelPool whose spec cannot be read: Accepted is false, and its pods stay as they are."""
    fresh = [condition(ACCEPTED, False, "InvalidSpec", why, now), failed("InvalidSpec", why, now)]
    fresh += [one for one in former.conditions if one.type not in {ACCEPTED} | READ_BY_KSTATUS]
    kept = {name: getattr(former, name) for name in ("replicas", "ready", "models", "loaded", "image", "entries")}
    return ModelPoolStatus(observed_generation=generation, **kept, conditions=carry_over(fresh, former.conditions))


def view_of(status: ModelPoolStatus, uid: str) -> PoolView:
    """The view that a status was written from, as far as members need it, for callers that cannot look at the pods.

    The status does not have the pods' names, nor which of them has what; no decision depends on either.
    """
    ready, _, _ = status.ready.partition("/")
    count = min(int(ready), MAX_PODS) if ready.isdecimal() and len(ready) <= 4 else 0
    problem = next((one.message for one in status.conditions if one.type == READY and one.status != "True"), "")
    pods = (
        {one.revision: state for one in status.entries if (state := _state_in(one, index))} for index in range(count)
    )
    return PoolView(
        uid, status.replicas, tuple(PoolPod(f"{index}", found) for index, found in enumerate(pods)), problem
    )


def _state_in(entry: PoolEntryStatus, index: int) -> EntryState | None:
    """The entry's state in the pod of this index: the first pods serve it, the others have the reason of the status.

    None for the others where the status has no reason, or the entry is not there yet.
    """
    if index < entry.serving:
        return EntryState(IN_MEMORY if index < entry.loaded else UNAVAILABLE, "", index < entry.proved)
    why = entry.reason.partition(": ")[2]
    return EntryState(UNAVAILABLE, why, index < entry.proved) if why not in ("", NOT_THERE) else None


def _readiness(spec: ModelPoolSpec, view: PoolView) -> tuple[bool, str, str]:
    ready = len(view.pods)
    if ready:
        return True, "PodsReady", f"{ready} of {spec.replicas} pods are ready"
    return False, POOL_NOT_READY, view.problem or f"0 of {spec.replicas} pods are ready"


def _for_tools(
    accepted: tuple[bool, str, str], spec: ModelPoolSpec, view: PoolView, now: datetime
) -> tuple[Condition, ...]:
    """Stalled or Reconciling, for tools that wait for an apply; nothing once all pods are ready."""
    holds, reason, message = accepted
    if not holds:
        return (failed(reason, message, now),)
    if (ready := len(view.pods)) >= spec.replicas:
        return ()
    return (awaited("PodsNotReady", f"{ready} of {spec.replicas} pods are ready", now),)


def _redundancy(spec: ModelPoolSpec, entries: int) -> tuple[bool, str, str]:
    """The condition Redundant. A StatefulSet has no surge: it ends a pod before it starts the next, as a drain does."""
    if not spec.replicas:
        return True, "NoReplicas", "the pool has no pods"
    if spec.replicas > 1:
        return True, "SeveralReplicas", f"{spec.replicas} replicas"
    if not entries:
        return True, "NoModels", "the pool has no models yet"
    what = "a change of the template or a drain of the node"
    return False, "SingleReplica", f"{entries} models are in one pod: {what} is downtime; write spec.replicas: 2"


def _entries(listed: Iterable[PoolMemberRevision], view: PoolView) -> Iterable[PoolEntryStatus]:
    for one in listed:
        revision = one.snapshot.revision
        states = [(pod.name, pod.entries.get(revision)) for pod in view.pods if pod.entries is not None]
        reasons = sorted(((_rank(state), f"pod {name}: {_why(state)}") for name, state in states), key=itemgetter(0))
        yield PoolEntryStatus(
            model=one.snapshot.inputs.model.name,
            revision=revision,
            model_deployment=one.deployment,
            stable=one.stable,
            loaded=sum(state is not None and state.in_memory for _, state in states),
            proved=sum(state is not None and state.was_loaded for _, state in states),
            serving=sum(_rank(state) > _ABSENT for _, state in states),
            reason=reasons[0][1] if reasons and reasons[0][0] < _WELL else "",
        )


_ILL, _ABSENT, _LATE, _WELL = range(4)


def _rank(state: EntryState | None) -> int:
    """Rank of an entry's state in a pod, the worst first; None is an entry that the pod does not report."""
    if state is None:
        return _ABSENT
    return _ILL if state.trouble else _LATE if state.hindrance else _WELL


def _why(state: EntryState | None) -> str:
    return NOT_THERE if state is None else state.hindrance
