"""What is said of objects that have the labels of ours and are controlled by somebody else."""

from collections.abc import Sequence
from datetime import datetime

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.observed import Child
from slipway_operator.planning.conditions import FOREIGN_OBJECTS

CONDITION = FOREIGN_OBJECTS
CONTROLLED_BY_OTHER = "ControlledByOther"
_SHOWN = 3


def condition(found: Sequence[Child], now: datetime) -> list[Condition]:
    """There only while there are some. They are left alone, as every controller does; what is missing was made anew."""
    if not found:
        return []
    named = "; ".join(f"{one.kind} {one.name} is controlled by {one.controller}" for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    text = f"{named}{more}: not used any more, and another one has its place; delete it, or take our labels off it"
    return [Condition(CONDITION, "True", CONTROLLED_BY_OTHER, text, now)]
