"""A ModelDeployment's status: the complete memory of the operator."""

from typing import Any

from slipway_operator.api.fitting import fitted
from slipway_operator.api.reading import Unreadable, encoded, read, read_parts
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model import wire


def parse(value: dict[str, Any] | None) -> Status:
    """Read `.status`; an absent one is that of a new object.

    A field that makes no sense counts as lost: others than the operator may write it, and no write may stop us.
    """
    given = value if isinstance(value, dict) else {}
    try:
        return read(Status, encoded(given))
    except Unreadable:
        return read(Status, encoded({key: item for key, item in given.items() if _is_read(key, item)}))


def _is_read(key: str, item: Any) -> bool:
    try:
        read(Status, encoded({key: item}))
    except Unreadable:
        return False
    return True


def render(status: Status) -> dict[str, Any]:
    """`.status` as the API takes it: too long words of others are cut. All of it: it replaces what was there."""
    rendered: dict[str, Any] = fitted(Status, wire.to_json(status))
    return rendered
