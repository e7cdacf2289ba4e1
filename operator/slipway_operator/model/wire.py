"""Dataclasses to and from the camelCase JSON of the API: one rule in place of a mapping per type."""

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable
from datetime import datetime
from enum import Enum
from functools import cache, partial
from types import NoneType
from typing import Any, TypeVar, cast

from slipway_operator.api.times import format_time as format_time
from slipway_operator.api.times import parse_time as parse_time

T = TypeVar("T")
Reader = Callable[[Any], Any]
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


def from_json(kind: type[T], value: Any) -> T:
    """Read a dataclass back; unknown fields are ignored, missing ones take their defaults.

    Raises:
        TypeError: when a field without a default is missing, or one has another type than it is annotated with.
        ValueError: when a time is malformed or beyond any calendar.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{kind.__name__} is written as {type(value).__name__}")
    readers = _readers(cast(Hashable, kind))
    return kind(**{name: read(value[key]) for name, key, read in readers if key in value})


@cache
def _members(kind: Hashable) -> tuple[tuple[str, str], ...]:
    """Names of a dataclass's fields, ours and the API's; nothing for other types."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple((field.name, camel(field.name)) for field in dataclasses.fields(kind))


@cache
def _readers(kind: Hashable) -> tuple[tuple[str, str, Reader], ...]:
    """Names of a dataclass's fields, ours and the API's, and how each is read."""
    hints = typing.get_type_hints(cast(type, kind))
    return tuple((name, camel(name), _reader(hint)) for name, hint in hints.items())


@cache
def _reader(hint: Any) -> Reader:
    """How a value of this type is read: found out once, because a status holds thousands."""
    if isinstance(hint, types.UnionType):
        return partial(_optional, _reader(next(option for option in typing.get_args(hint) if option is not NoneType)))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        same = arguments[-1] is Ellipsis
        return partial(_tuple_of, _reader(arguments[0])) if same else partial(_each_of, [*map(_reader, arguments)])
    if origin is frozenset:
        return partial(_frozenset_of, _reader(arguments[0]))
    if origin is dict:
        return partial(_dict_of, _reader(arguments[1]))
    if hint is datetime:
        return parse_time
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return partial(from_json, hint)
    return partial(_plain, _ACCEPTED[hint]) if hint in _ACCEPTED else _as_it_is


# JSON knows no difference between 1 and 1.0; a bool is no number.
_ACCEPTED: dict[Any, frozenset[type]] = {
    str: frozenset({str}),
    int: frozenset({int}),
    float: frozenset({int, float}),
    bool: frozenset({bool}),
}


def _plain(kinds: frozenset[type], value: Any) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{str(value)[:80]!r} is a {type(value).__name__}")
    return value


def _optional(read: Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _tuple_of(read: Reader, value: Any) -> tuple[Any, ...]:
    return tuple(map(read, _list(value)))


def _each_of(readers: list[Reader], value: Any) -> tuple[Any, ...]:
    """Of a tuple whose places have types of their own."""
    return tuple(read(item) for read, item in zip(readers, _list(value), strict=True))


def _frozenset_of(read: Reader, value: Any) -> frozenset[Any]:
    return frozenset(map(read, _list(value)))


def _dict_of(read: Reader, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a map is written as {type(value).__name__}")
    return {key: read(item) for key, item in value.items()}


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"a list is written as {type(value).__name__}")
    return value


def _as_it_is(value: Any) -> Any:
    return value


@cache
def camel(name: str) -> str:
    """A field's name as the API has it."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
