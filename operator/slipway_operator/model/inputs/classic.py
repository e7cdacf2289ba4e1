"""Inputs that only classic models have: batching, and the pool whose pods serve them."""

from dataclasses import dataclass
from math import floor
from typing import Any

from slipway_operator.api.inputs.pod_inputs import BatchingSpec
from slipway_operator.api.inputs.pool import PoolMembership
from slipway_operator.model import quantity


@dataclass(frozen=True, slots=True)
class Batching:
    """Batching of a classic model; None: the server's default."""

    max_batch_size: int | None = None
    max_queue_delay_microseconds: int | None = None
    max_queue_size: int | None = None
    timeout_milliseconds: int | None = None


@dataclass(frozen=True, slots=True)
class PoolMember:
    """The pool whose pods serve a classic model, and its limits there; None: the server's default."""

    name: str
    pinned: bool = False
    max_in_flight: int | None = None
    max_memory: str | None = None
    threads: int | None = None

    @property
    def max_memory_bytes(self) -> int:
        """`max_memory` in bytes; 0 without a limit."""
        return floor(quantity.parse(self.max_memory)) if self.max_memory else 0


def batching_of(written: BatchingSpec | None) -> Batching:
    """Return the batching that the spec describes; all defaults without one."""
    if written is None:
        return Batching()
    return Batching(
        written.max_batch_size,
        written.max_queue_delay_microseconds,
        written.max_queue_size,
        written.timeout_milliseconds,
    )


def pool_of(written: PoolMembership | None) -> PoolMember | None:
    """Return the pool membership that the spec describes; None without one.

    Raises:
        ValueError: when maxMemory is no quantity, or is negative.
    """
    if written is None:
        return None
    memory = None if written.max_memory is None else str(written.max_memory)
    member = PoolMember(written.name, written.pinned, written.max_in_flight, memory, written.threads)
    if member.max_memory_bytes < 0:
        raise ValueError("spec.pool.maxMemory must be positive: write for example 512Mi")
    return member


def pool_to_dict(member: PoolMember | None) -> dict[str, Any] | None:
    """Return the membership with the field names of the CRD; None: left out, as a default or without a pool."""
    if member is None:
        return None
    return {
        "name": member.name,
        "pinned": member.pinned or None,
        "maxInFlight": member.max_in_flight,
        "maxMemory": member.max_memory,
        "threads": member.threads,
    }
