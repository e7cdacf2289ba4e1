"""The condition about objects with this ModelDeployment's labels that another controller controls."""

from collections.abc import Sequence
from datetime import datetime

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.observed import Child
from slipway_operator.planning.facts.conditions import FOREIGN_OBJECTS

CONDITION = FOREIGN_OBJECTS
CONTROLLED_BY_OTHER = "ControlledByOther"
_SHOWN = 3


def condition(found: Sequence[Child], now: datetime) -> list[Condition]:
    """The condition, while there are such objects. The operator leaves them unchanged and creates its own instead."""
    if not found:
        return []
    named = "; ".join(f"{one.kind} {one.name} is controlled by {one.controller}" for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    text = f"{named}{more}: it is no longer used, and a replacement exists; delete it, or remove its slipway.dev labels"
    return [Condition(CONDITION, "True", CONTROLLED_BY_OTHER, text, now)]
