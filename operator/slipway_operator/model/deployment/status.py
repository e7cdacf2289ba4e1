"""A ModelDeployment's status: the operator's complete persistent state."""

from slipway_operator.api.fitting import fitted
from slipway_operator.api.reading import UnreadableObject, encoded, read, read_parts
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model import wire
from slipway_operator.model.deployment.compact import Json, compact, expanded


def parse(value: Json | None) -> Status:
    """Read `.status`; an absent one gives that of a new object."""
    return parse_parts(value)[0]


def parse_parts(value: Json | None) -> tuple[Status, tuple[str, ...]]:
    """Read `.status`, and the paths of its invalid parts.

    Only these parts count as lost: others than the operator may write the status, and no write may stop the operator.
    """
    given, lost = expanded(value if isinstance(value, dict) else {})
    try:
        return read(Status, encoded(given)), lost
    except UnreadableObject:
        status, others = _rest(given)
        return status, (*lost, *others)


def _rest(given: Json) -> tuple[Status, tuple[str, ...]]:
    """The readable parts of a status that cannot be read as a whole."""
    try:
        return read_parts(Status, given)
    except UnreadableObject:  # no JSON at all, which no API server sends
        return Status(), ("status",)


def render(status: Status) -> Json:
    """The complete `.status`, which replaces the former one; texts beyond the API's limits are cut."""
    rendered: Json = fitted(Status, compact(wire.to_json(status)))
    return rendered
