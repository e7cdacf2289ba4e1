"""A ModelDeployment's status: the operator's complete persistent state."""

from collections.abc import Callable
from typing import Any

from slipway_contracts.api.reading import UnreadableObject, encoded, read, read_parts
from slipway_contracts.api.writing import to_json
from slipway_operator.api.fitting import fitted
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.deployment.status_lines import Json, decision_fields, decision_line


def parse(value: Json | None) -> Status:
    """Parse `.status`; None gives the status of a new object. Invalid parts count as lost."""
    return parse_parts(value)[0]


def parse_parts(value: Json | None) -> tuple[Status, tuple[str, ...]]:
    """Parse `.status`; also return the paths of its invalid parts.

    Only these parts are lost. Other clients may write the status too, and no such write may stop the operator.
    """
    given = _with_decisions(value if isinstance(value, dict) else {}, decision_fields)
    try:
        return read(Status, encoded(given)), ()
    except UnreadableObject:
        return _rest(given)


def _rest(given: Json) -> tuple[Status, tuple[str, ...]]:
    """Return the readable parts of a status that is invalid as a whole, and the paths of the others."""
    try:
        return read_parts(Status, given)
    except UnreadableObject:  # no JSON at all, which no API server sends
        return Status(), ("status",)


def render(status: Status) -> Json:
    """Return the complete `.status` as JSON, which replaces the former one; texts beyond the API's limits are cut."""
    rendered: Json = fitted(Status, _with_decisions(to_json(status), decision_line))
    if rollout := rendered.get("rollout"):
        # `kubectl describe` prints a line for each: in the usual case it is the default.
        rendered["rollout"] = {name: part for name, part in rollout.items() if (name, part) not in _DEFAULTS}
    return rendered


_DEFAULTS = (("skipSteps", False), ("capacityMode", "Surge"))


def _with_decisions(status: Json, change: Callable[[Any], object]) -> Json:
    lines = status.get("decisions")
    return status | {"decisions": [change(item) for item in lines]} if isinstance(lines, list) else status
