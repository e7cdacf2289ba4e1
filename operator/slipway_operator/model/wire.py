"""Dataclasses to and from the camelCase JSON of the API: one rule in place of a mapping per type."""

import dataclasses
import types
import typing
from collections.abc import Hashable
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A dataclass as JSON; None, empty tuples and empty dicts are left out."""
    kind = type(value)
    if kind in (str, int, bool, types.NoneType):
        return value
    if members := _members(cast(Hashable, kind)):
        found = ((key, getattr(value, name)) for name, key in members)
        items = ((key, to_json(item)) for key, item in found if item is not None)
        return {key: item for key, item in items if item not in (None, [], {})}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | frozenset):
        return [to_json(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, datetime):
        return format_time(value)
    return value


def from_json(kind: type[T], value: Any) -> T:
    """Read a dataclass back; unknown fields are ignored, missing ones take their defaults.

    Raises:
        TypeError: when a field without a default is missing.
        ValueError: when a time is malformed.
    """
    hints = _hints(cast(Hashable, kind))
    known = {name: value[_camel(name)] for name in hints if _camel(name) in value}
    return kind(**{name: _read(hints[name], item) for name, item in known.items()})


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"


def parse_time(text: str) -> datetime:
    """A datetime in UTC from RFC 3339."""
    return datetime.fromisoformat(text).astimezone(UTC)


@cache
def _members(kind: Hashable) -> tuple[tuple[str, str], ...]:
    """Names of a dataclass's fields, ours and the API's; nothing for other types."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple((field.name, _camel(field.name)) for field in dataclasses.fields(kind))


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(cast(type, kind))


def _read(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return tuple(_read(typing.get_args(hint)[0], item) for item in value)
    if typing.get_origin(hint) is frozenset:
        return frozenset(value)
    if typing.get_origin(hint) is dict:
        return {key: _read(typing.get_args(hint)[1], item) for key, item in value.items()}
    if hint is datetime:
        return parse_time(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return from_json(hint, value) if dataclasses.is_dataclass(hint) and isinstance(hint, type) else value


@cache
def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
