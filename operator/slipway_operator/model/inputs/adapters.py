"""Inputs that concern LoRA adapters: room for them in the pods of a model; pure."""

from dataclasses import dataclass
from math import floor
from typing import Any

from slipway_operator.api.inputs.adapters import AdaptersSpec
from slipway_operator.model import quantity

MAX_LOADED, MAX_RANK = 16, 16  # defaults


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """Room for adapters in each pod. `secret`: name of the Secret with the credentials of their sources."""

    max_loaded: int = MAX_LOADED
    max_rank: int = MAX_RANK
    memory: str | None = None
    secret: str | None = None

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes; None: the engine's default."""
        return floor(quantity.parse(self.memory)) if self.memory else None


def room_of(written: AdaptersSpec | None) -> AdapterRoom | None:
    """Return the room that the spec describes; None without one.

    Raises:
        ValueError: when memory is no quantity, or is not positive.
    """
    if written is None:
        return None
    memory = None if written.memory is None else str(written.memory)
    secret = written.secret_ref.name if written.secret_ref else None
    room = AdapterRoom(written.max_loaded, written.max_rank, memory, secret)
    if room.memory_bytes is not None and room.memory_bytes <= 0:
        raise ValueError("spec.adapters.memory must be positive: write for example 2Gi")
    return room


def room_to_dict(room: AdapterRoom | None) -> dict[str, Any] | None:
    """Return the room with the field names of the CRD. The first field is always there: no room differs from it."""
    if room is None:
        return None
    return {
        "maxLoaded": room.max_loaded,
        "maxRank": None if room.max_rank == MAX_RANK else room.max_rank,
        "memory": room.memory,
        "secretRef": {"name": room.secret},
    }
