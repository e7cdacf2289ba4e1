"""Scale to zero as the status remembers it."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from slipway_operator.api.markers import AtMost
from slipway_operator.api.types import Int32, Time

MAX_WAKES = 5


class SleepState(StrEnum):
    """Whether a deployment that may sleep has pods."""

    AWAKE = "Awake"
    FALLING_ASLEEP = "FallingAsleep"  # gateways are told to hold what comes; the pods are still there
    ASLEEP = "Asleep"  # every gateway holds, and none has a request; no pods
    WAKING = "Waking"  # pods come up for a request that waits


@dataclass(frozen=True, slots=True)
class Sleep:
    """Of a deployment that may go without pods.

    Where it is, since when, and how long the last wakes took.
    """

    state: SleepState
    """FallingAsleep: gateways are told to hold what comes, and the pods are still there. Asleep: no pods. Waking:
    pods come up."""
    since: Time
    """When that began."""
    wake_seconds: Annotated[tuple[Annotated[Int32, Field(description="Of one wake.")], ...], AtMost(5)] = ()
    """How long the last wakes took, from the request to the first ready pod, the newest last."""

    def to(self, state: SleepState, now: datetime) -> "Sleep":
        """The next state; a wake that ends is remembered."""
        took = (max(1, round((now - self.since).total_seconds())),) if self.state is SleepState.WAKING else ()
        return replace(self, state=state, since=now, wake_seconds=(*self.wake_seconds, *took)[-MAX_WAKES:])

    @property
    def expected_s(self) -> int | None:
        """How long a wake takes: the median of the last ones; None before the first."""
        return sorted(self.wake_seconds)[len(self.wake_seconds) // 2] if self.wake_seconds else None
