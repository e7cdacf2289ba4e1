"""A ModelDeployment's status: the operator's complete persistent state."""

from typing import Any

from slipway_operator.api.fitting import fitted
from slipway_operator.api.reading import UnreadableObject, encoded, read, read_parts
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model import wire


def parse(value: dict[str, Any] | None) -> Status:
    """Read `.status`; an absent one gives that of a new object."""
    return parse_parts(value)[0]


def parse_parts(value: dict[str, Any] | None) -> tuple[Status, tuple[str, ...]]:
    """Read `.status`, and the paths of its invalid parts.

    Only these parts count as lost: others than the operator may write the status, and no write may stop the operator.
    """
    given = value if isinstance(value, dict) else {}
    try:
        return read(Status, encoded(given)), ()
    except UnreadableObject:
        return _rest(given)


def _rest(given: dict[str, Any]) -> tuple[Status, tuple[str, ...]]:
    """The readable parts of a status that cannot be read as a whole."""
    try:
        return read_parts(Status, given)
    except UnreadableObject:  # no JSON at all, which no API server sends
        return Status(), ("status",)


def render(status: Status) -> dict[str, Any]:
    """The complete `.status`, which replaces the former one; texts beyond the API's limits are cut."""
    rendered: dict[str, Any] = fitted(Status, wire.to_json(status))
    return rendered
