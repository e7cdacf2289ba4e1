"""Dataclasses as the camelCase JSON of the API: one rule in place of a mapping per type."""

import dataclasses
from collections.abc import Hashable
from datetime import datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, cast

from slipway_contracts.api.times import format_time

_PLAIN = frozenset({str, int, float, bool, NoneType})


def to_json(value: Any) -> Any:
    """A dataclass as JSON; None, empty tuples and empty dicts are left out."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if members := _members(cast(Hashable, kind)):
        return _fields(value, members)
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [item if type(item) in _PLAIN else to_json(item) for item in items]
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def _fields(value: Any, members: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Most are plain, and need no call: a status holds thousands."""
    made = {}
    for name, key in members:
        item = getattr(value, name)
        if type(item) in _PLAIN:
            if item is not None:
                made[key] = item
        elif (found := to_json(item)) not in ([], {}):
            made[key] = found
    return made


@cache
def _members(kind: Hashable) -> tuple[tuple[str, str], ...]:
    """Names of a dataclass's fields, ours and the API's; nothing for other types."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple((field.name, camel(field.name)) for field in dataclasses.fields(kind))


@cache
def camel(name: str) -> str:
    """A field's name as the API has it."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
