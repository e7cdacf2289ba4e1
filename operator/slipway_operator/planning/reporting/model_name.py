"""The model name in the status: its condition, the name that clients send, and Events when its owner changes."""

from collections.abc import Iterable
from datetime import datetime

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.names import Standing
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.conditions import NAME_CONFLICT
from slipway_operator.planning.facts.situation import Situation


def condition(standing: Standing | None, before: Iterable[Condition], now: datetime) -> list[Condition]:
    """The condition NameConflict while there is a conflict; the former one while it is unknown who owns the name."""
    if standing is None:
        return [item for item in before if item.type == NAME_CONFLICT]
    if not standing.lost:
        return []
    return [Condition(NAME_CONFLICT, "True" if standing.known else "Unknown", standing.reason, standing.message, now)]


def model(at: Situation) -> str:
    """The "model" of requests that reach this deployment: its name, or namespace/name while another owns the name."""
    standing = at.observed.standing
    if standing is None:
        return at.status.model or at.spec.inputs.model.name
    return standing.owner if standing.lost and standing.known else standing.name


def is_elsewhere(at: Situation) -> bool:
    """Whether it is certain that requests for the deployment's model name do not reach it."""
    return any(item.status == "True" for item in _conflicts(at))


def sentence(at: Situation) -> str:
    """Why requests for the deployment's model name do not, or may not, reach it; empty when they do."""
    return "".join(f"; {item.message}" for item in _conflicts(at))


def _conflict(conditions: Iterable[Condition]) -> Condition | None:
    return next((item for item in conditions if item.type == NAME_CONFLICT), None)


def _conflicts(at: Situation) -> list[Condition]:
    return condition(at.observed.standing, at.status.conditions, at.now)


def of_conditions(before: Iterable[Condition], now: Iterable[Condition]) -> tuple[Event, ...]:
    """An Event when a conflict begins, changes its reason or winner, or ends.

    None while it is unknown who owns the name: that lasts for a moment whenever the API server does not answer.
    """
    former, present = _conflict(before), _conflict(now)
    if present and present.status == "Unknown":
        return ()
    if present and (former is None or former.message != present.message):
        return (Event("Warning", "NameConflict", f"{present.reason}: {present.message}"),)
    if former and former.status == "True" and present is None:
        return (Event("Normal", "NameClaimed", "clients reach this model by its own name"),)
    return ()
