"""What the operator publishes of an Experiment, and the arm that a unit gets by it (pure).

Every choice is a function of names, weights and the unit alone: any gateway makes the same one, after any restart. Each
question has a hash of its own, so that an answer to one says nothing about the others.

The arm is the winner of a race. Each arm has a random time by the unit, whose mean is in inverse proportion to its
weight, and the earliest wins; its chance is exactly its weight (the exponential race, as in weighted rendezvous
hashing). With other weights a unit moves only to an arm whose weight grew by a larger factor than that of its former
arm did. So if one arm grows and the others keep their proportions, the units that it gains move, and no others do.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, NamedTuple

from pydantic import Field

from slipway_contracts.api.markers import AtMost
from slipway_contracts.api.types import Int32, Int64, Time, strict

from .spec import HOLDOUT, MOST_ARMS, MOST_OUTCOMES

_SPAN = 1 << 64

# Why a unit has no arm, or which one it has.
OUTSIDE, HELD_OUT, IN_ARM = "outside", "held out", "in an arm"


@strict
@dataclass(frozen=True, slots=True)
class AssignedArm:
    """Arm as gateways follow it."""

    name: str
    """Name of the arm."""
    weight: Int32
    """Percent of the units."""
    deployment: str
    """NAMESPACE/NAME of the ModelDeployment that serves it."""
    revision: str | None = None
    """Hash or version of the revision that serves it while that has endpoints."""


@strict
@dataclass(frozen=True, slots=True)
class Assignment:
    """What gateways follow: the last spec that could be accepted."""

    generation: Int64 = 0
    """metadata.generation of that spec."""
    version: Int64 = 1
    """Grows when units, arms or weights change. Counts are those of one version."""
    since: Time | None = None
    """Time from which this version is followed."""
    subject: str = ""
    """KIND/NAMESPACE/NAME of the ModelRoute or ModelDeployment whose requests take part."""
    rules: Annotated[tuple[Annotated[str, Field(description="Name of a rule.")], ...], AtMost(16)] = ()
    """Rules of the ModelRoute whose requests take part; none: all."""
    unit_type: str = ""
    """Header, User, Tenant or APIKey."""
    unit_header: str | None = None
    """Name of the header."""
    layer: str = ""
    """Layer with its namespace, which salts the places of units in it."""
    first: Int32 = 0
    """Percent at which the range of units begins."""
    end: Int32 = 100
    """Percent before which it ends."""
    holdout: Int32 = 0
    """Percent of the layer's units that are held out."""
    arms: Annotated[tuple[AssignedArm, ...], AtMost(MOST_ARMS)] = ()
    """Arms."""
    control: str = ""
    """Arm with which the others are compared."""
    outcomes: Annotated[
        tuple[Annotated[str, Field(description="Name of an outcome.")], ...], AtMost(MOST_OUTCOMES)
    ] = ()
    """Outcomes that are counted."""
    start_time: Time | None = None
    """Time from which units get arms."""
    end_time: Time | None = None
    """Time from which they get none any more."""
    paused: bool | None = None
    """Whether no unit gets an arm for now."""

    def runs(self, now: datetime) -> bool:
        """Whether units get arms now."""
        return (
            not self.paused
            and (self.start_time is None or self.start_time <= now)
            and (self.end_time is None or now < self.end_time)
        )


class Placed(NamedTuple):
    """Where a unit is. `arm`: None where it has none. `position`: in the layer, in percent."""

    result: str
    arm: AssignedArm | None
    position: float

    @property
    def name(self) -> str:
        """How exposures name it: the arm or the hold-out; empty for a unit outside of the range."""
        return self.arm.name if self.arm is not None else HOLDOUT if self.result == HELD_OUT else ""


def unit_key(tenant: str, value: str) -> str:
    """A unit by its value and the Tenant that sends it, which is empty without one."""
    return f"{tenant}\0{value}"


def place(experiment: str, assignment: Assignment, unit: str) -> Placed:
    """Where a unit is. `experiment`: `namespace/name`. `unit`: as `unit_key` has it."""
    position = _number("layer", assignment.layer, unit) * 100
    shown = position / _SPAN
    if _number("holdout", assignment.layer, unit) * 100 < assignment.holdout * _SPAN:
        return Placed(HELD_OUT, None, shown)
    if not assignment.first * _SPAN <= position < assignment.end * _SPAN:
        return Placed(OUTSIDE, None, shown)
    times = ((_time(experiment, arm, unit), arm) for arm in assignment.arms if arm.weight > 0)
    _, arm = min(times, key=lambda one: (one[0], one[1].name))
    return Placed(IN_ARM, arm, shown)


def _time(experiment: str, arm: AssignedArm, unit: str) -> float:
    """When an arm arrives in the race for a unit."""
    return -math.log((_number(f"arm {arm.name}", experiment, unit) + 0.5) / _SPAN) / arm.weight


def _number(question: str, salt: str, unit: str) -> int:
    text = f"{question}\0{salt}\0{unit}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())
