"""Who changed which part of an object, and when, from metadata.managedFields; pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from slipway_cli.api import Json
from slipway_cli.objects.times import parse_time

MOST_CHANGES = 20
MOST_FIELDS = 8
_DEPTH = 2  # spec.rollout.promote has one more name than spec


@dataclass(frozen=True, slots=True)
class Change:
    """The last write of one client, and the fields that it manages since."""

    manager: str
    operation: str
    at: datetime | None
    fields: tuple[str, ...]
    more: int  # fields that are left out


def read_changes(obj: Json) -> tuple[Change, ...]:
    """The latest first. A manager is the name that a client gives itself, and no authenticated user."""
    entries = [item for item in obj["metadata"].get("managedFields") or () if isinstance(item, dict)]
    found = [_change(item) for item in entries]
    return tuple(sorted(found, key=lambda item: str(item.at), reverse=True)[:MOST_CHANGES])


def _change(entry: Json) -> Change:
    fields = sorted(set(_fields(entry.get("fieldsV1") or {}, "", 0)))
    return Change(
        manager=str(entry.get("manager") or "unknown"),
        operation=str(entry.get("subresource") or entry.get("operation") or ""),
        at=parse_time(entry.get("time")),
        fields=tuple(fields[:MOST_FIELDS]),
        more=max(0, len(fields) - MOST_FIELDS),
    )


def _fields(node: Json, path: str, depth: int) -> Iterator[str]:
    inner = {name[2:]: value for name, value in node.items() if name.startswith("f:") and isinstance(value, dict)}
    if (depth > _DEPTH or not inner) and path:
        yield path
        return
    for name, value in inner.items():
        # The operator writes all of the status: its parts say nothing about who wrote what.
        if not path and name in ("status", "metadata"):
            yield name
        else:
            yield from _fields(value, f"{path}.{name}" if path else name, depth + 1)
