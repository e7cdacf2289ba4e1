"""Conditions about what others own: the model name of the ModelDeployment, and objects with its labels."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import (
    AS_BEFORE,
    ConditionFacts,
    ConditionState,
    condition_type,
)
from slipway_operator.planning.facts.model_name import NAME_CONFLICT

CONTROLLED_BY_OTHER = "ControlledByOther"
_SHOWN = 3


def _owner_changed(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event when a conflict begins, changes its reason or winner, or ends.

    None while it is unknown who owns the name: that lasts for a moment whenever the API server does not answer.
    """
    if now and now.status == "Unknown":
        return None
    if now and (before is None or before.message != now.message):
        return Event("Warning", "NameConflict", f"{now.reason}: {now.message}")
    if before and before.status == "True" and now is None:
        return Event("Normal", "NameClaimed", "clients reach this model by its own name")
    return None


@condition_type(NAME_CONFLICT, rank=60, event=_owner_changed, bad_when="True")
def name_conflict(facts: ConditionFacts) -> ConditionState | None:
    """While there is a conflict about the model name; the former condition while it is unknown who owns the name."""
    standing = facts.at.observed.standing
    if standing is None:
        return AS_BEFORE
    if not standing.lost:
        return None
    return ConditionState(True if standing.known else None, standing.reason, standing.message)


@condition_type("ForeignObjects", rank=120, event=None, bad_when="True")
def foreign_objects(facts: ConditionFacts) -> ConditionState | None:
    """While another controller controls objects with our labels: the operator leaves them and creates its own."""
    foreign = facts.at.observed.foreign
    if not foreign:
        return None
    named = "; ".join(f"{child.kind} {child.name} is controlled by {child.controller}" for child in foreign[:_SHOWN])
    more = f"; and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
    text = f"{named}{more}: it is no longer used, and a replacement exists; delete it, or remove its slipway.dev labels"
    return ConditionState(True, CONTROLLED_BY_OTHER, text)


TYPES = (name_conflict, foreign_objects)
