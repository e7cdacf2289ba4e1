"""A ModelDeployment's status: the operator's complete persistent state."""

from slipway_contracts.api.reading import UnreadableObject, encoded, read, read_parts
from slipway_contracts.api.writing import to_json
from slipway_operator.api.fitting import fitted
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.deployment.compact import Json, compact, expanded


def parse(value: Json | None) -> Status:
    """Parse `.status`; None gives the status of a new object. Invalid parts count as lost."""
    return parse_parts(value)[0]


def parse_parts(value: Json | None) -> tuple[Status, tuple[str, ...]]:
    """Parse `.status`; also return the paths of its invalid parts.

    Only these parts are lost. Other clients may write the status too, and no such write may stop the operator.
    """
    given, lost = expanded(value if isinstance(value, dict) else {})
    try:
        return read(Status, encoded(given)), lost
    except UnreadableObject:
        status, others = _rest(given)
        return status, (*lost, *others)


def _rest(given: Json) -> tuple[Status, tuple[str, ...]]:
    """Return the readable parts of a status that is invalid as a whole, and the paths of the others."""
    try:
        return read_parts(Status, given)
    except UnreadableObject:  # no JSON at all, which no API server sends
        return Status(), ("status",)


def render(status: Status) -> Json:
    """Return the complete `.status` as JSON, which replaces the former one; texts beyond the API's limits are cut."""
    rendered: Json = fitted(Status, compact(to_json(status)))
    return rendered
