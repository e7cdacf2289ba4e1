"""The condition ResolvedRefs, present while a reference cannot be resolved; and Events about records made again."""

from collections.abc import Iterable

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.conditions import RESOLVED_REFS, condition
from slipway_operator.planning.facts.situation import Situation


def conditions(at: Situation) -> list[Condition]:
    """ResolvedRefs, False, while a reference cannot be resolved; else nothing."""
    if at.missing is None:
        return []
    text = f"{at.missing.what}: {at.missing.remedy}"
    return [condition(RESOLVED_REFS, False, at.missing.reason, text, at.now)]


def of_conditions(before: Iterable[Condition], now: Iterable[Condition]) -> tuple[Event, ...]:
    """An Event for each message of the condition that the former conditions lack."""
    former = {item.message for item in before if item.type == RESOLVED_REFS}
    fresh = (item.message for item in now if item.type == RESOLVED_REFS and item.message not in former)
    return tuple(Event("Warning", "ReferenceNotFound", message) for message in fresh)


def restored(observed: Observed) -> tuple[Event, ...]:
    """An Event for each lost record, which is made again."""
    lost = sorted(name for name, snapshot in observed.snapshots.items() if not snapshot.name)
    text = "the ControllerRevision of revision {} was lost, and is made again from the copy at its workload"
    return tuple(Event("Warning", "RecordRestored", text.format(name)) for name in lost)


def sentence(at: Situation) -> str:
    """The beginning of the message while a reference holds everything; else empty."""
    return f"held: {at.missing.what}; " if at.missing and at.missing.holds else ""
