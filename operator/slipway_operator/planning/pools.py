"""The status of a ModelPool, from its pods and entries (pure)."""

from datetime import datetime

from slipway_operator.api.pools.model_pool import ModelPoolSpec, ModelPoolStatus
from slipway_operator.model.pool_views import MAX_ENTRIES, POOL_NOT_READY, PoolView
from slipway_operator.planning.facts.conditions import carry_over, condition

ACCEPTED, READY = "Accepted", "Ready"


def status(
    generation: int,
    spec: ModelPoolSpec,
    view: PoolView,
    counts: tuple[int, int],
    former: ModelPoolStatus,
    now: datetime,
    *,
    unwritten: str = "",
) -> ModelPoolStatus:
    """`counts`: entries, and members that the file has no room for. `former` has the image in use. `unwritten`: why the
    pods do not get the entries."""
    models, beyond = counts
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
    )
    return ModelPoolStatus(
        observed_generation=generation,
        replicas=view.present,
        ready=f"{ready}/{spec.replicas}",
        models=models,
        loaded=max((pod.loaded for pod in view.pods), default=0),
        memory_bytes=max((pod.memory_bytes for pod in view.pods), default=0),
        memory_limit_bytes=max((pod.memory_limit_bytes for pod in view.pods), default=0),
        image=former.image,
        conditions=carry_over(fresh, former.conditions),
    )


def refused(generation: int, why: str, former: ModelPoolStatus, now: datetime) -> ModelPoolStatus:
    """Of a spec that cannot be read: its pods stay as they are."""
    fresh = [condition(ACCEPTED, False, "InvalidSpec", why, now)]
    fresh += [one for one in former.conditions if one.type != ACCEPTED]
    kept = {name: getattr(former, name) for name in ("replicas", "ready", "models", "loaded", "image")}
    return ModelPoolStatus(observed_generation=generation, **kept, conditions=carry_over(fresh, former.conditions))


def _readiness(spec: ModelPoolSpec, view: PoolView) -> tuple[bool, str, str]:
    ready = len(view.pods)
    if ready:
        return True, "PodsReady", f"{ready} of {spec.replicas} pods are ready"
    return False, POOL_NOT_READY, view.problem or f"0 of {spec.replicas} pods are ready"
