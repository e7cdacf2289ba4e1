"""What this process wrote as the status of each ModelDeployment, to notice what others write there."""

from dataclasses import fields

from slipway_contracts.api.writing import camel
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.status import render

MOST_PARTS = 5  # in one Event


class WrittenStatuses:
    """The last two statuses of each ModelDeployment: of the last one it may be unknown whether it was written."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, tuple[str, tuple[Status, ...]]] = {}

    def writes(self, key: ObjectKey, obj: Object, read: Status, status: Status) -> None:
        """Note, before it is written, the status that takes the place of the one that was read."""
        self._known[key] = (obj["metadata"]["uid"], (read, status))

    def forget(self, key: ObjectKey) -> None:
        self._known.pop(key, None)

    def edited(self, key: ObjectKey, obj: Object, read: Status) -> tuple[Event, ...]:
        """Return an Event when another writer changed the status since this process wrote it; else nothing."""
        uid, known = self._known.get(key, ("", ()))
        if uid != obj["metadata"]["uid"] or read in known:
            return ()
        # A status that is too long for the API is cut as it is written, so that what is read differs.
        if any(render(item) == (obj.get("status") or {}) for item in known):
            return ()
        # A write that the API server refused as stale is not what the other writer changed.
        parts = min((_differing(read, item) for item in known), key=len)
        more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
        named = ", ".join(f"status.{part}" for part in parts[:MOST_PARTS])
        text = f"another writer changed {named}{more}: what follows from the spec and from what runs is computed again"
        return (Event("Warning", "StatusEdited", text),)


def _differing(read: Status, status: Status) -> list[str]:
    """Return the names of the fields that differ, as they are written in the object."""
    return [camel(item.name) for item in fields(Status) if getattr(read, item.name) != getattr(status, item.name)]
