"""Which models leave when another one needs room: the least recently used first (pure).

A model leaves only when no request holds it, it is not pinned and it has been in memory for the minimum residency.
Without the last rule a working set that is larger than the memory would load models all the time and serve nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipway_process.model_folder.catalog import ModelKey


@dataclass(frozen=True, slots=True)
class PoolLimits:
    memory_bytes: int
    max_loaded: int
    min_residency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelInMemory:
    """One model in memory. `busy`: a request holds it or waits for it."""

    key: ModelKey
    size_bytes: int
    loaded_s: float
    last_used_s: float
    busy: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Others:
    """Processes that cannot be evicted: those that load, and those that end already."""

    starting_bytes: int = 0
    starting: int = 0
    leaving_bytes: int = 0
    leaving: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """Whether there is room. `fits`: there is now. `impossible`: why there never will be.

    Else evict the models of `evict` and look again; without any, look again at `wait_until_s` (None: after a change).
    """

    fits: bool = False
    evict: tuple[ModelKey, ...] = ()
    wait_until_s: float | None = None
    impossible: str = ""


def make_room(
    limits: PoolLimits, loaded: Sequence[ModelInMemory], others: Others, need_bytes: int, now_s: float
) -> Room:
    """How to make room for one more model of `need_bytes` bytes."""
    pinned_bytes = sum(one.size_bytes for one in loaded if one.pinned)
    if need_bytes + pinned_bytes > limits.memory_bytes:
        free = max(0, limits.memory_bytes - pinned_bytes)
        return Room(impossible=f"it needs {need_bytes} bytes, and {free} are left beside pinned models")
    if sum(one.pinned for one in loaded) >= limits.max_loaded:
        return Room(impossible=f"{limits.max_loaded} models are pinned, and no more than that may be loaded")
    over_bytes = (
        sum(one.size_bytes for one in loaded)
        + others.starting_bytes
        + others.leaving_bytes
        + need_bytes
        - limits.memory_bytes
    )
    over = len(loaded) + others.starting + others.leaving + 1 - limits.max_loaded
    if over_bytes <= 0 and over <= 0:
        return Room(fits=True)
    over_bytes, over = over_bytes - others.leaving_bytes, over - others.leaving
    if over_bytes <= 0 and over <= 0:
        return Room()  # what ends already makes the room
    ripe = [one for one in _evictable(loaded) if now_s - one.loaded_s >= limits.min_residency_s]
    if sum(one.size_bytes for one in ripe) >= over_bytes and len(ripe) >= over:
        return Room(evict=_enough(ripe, over_bytes, over))
    ripens = [one.loaded_s + limits.min_residency_s for one in _evictable(loaded) if one not in ripe]
    return Room(wait_until_s=min(ripens, default=None))


def shed(limits: PoolLimits, loaded: Sequence[ModelInMemory], others: Others) -> tuple[ModelKey, ...]:
    """Which models leave because all have grown beyond the memory: also models within their minimum residency."""
    over_bytes = sum(one.size_bytes for one in loaded) + others.starting_bytes - limits.memory_bytes
    return _enough(_evictable(loaded), over_bytes, 0) if over_bytes > 0 else ()


def _evictable(loaded: Sequence[ModelInMemory]) -> list[ModelInMemory]:
    """Models that are neither busy nor pinned, the least recently used one first."""
    return sorted((one for one in loaded if not one.busy and not one.pinned), key=lambda one: one.last_used_s)


def _enough(candidates: Sequence[ModelInMemory], over_bytes: int, over: int) -> tuple[ModelKey, ...]:
    """The first candidates that free enough, without those that the other chosen ones make needless."""
    chosen: list[ModelInMemory] = []
    for one in candidates:
        if sum(other.size_bytes for other in chosen) >= over_bytes and len(chosen) >= over:
            break
        chosen.append(one)
    for one in list(reversed(chosen)):
        rest = [other for other in chosen if other is not one]
        if sum(other.size_bytes for other in rest) >= over_bytes and len(rest) >= over:
            chosen = rest
    return tuple(one.key for one in chosen)
