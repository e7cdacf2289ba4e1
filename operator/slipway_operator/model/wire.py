"""Dataclasses from the camelCase JSON that `to_json` makes of them."""

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable
from datetime import datetime
from enum import Enum
from functools import cache, partial
from types import NoneType
from typing import Any, TypeVar, cast

from slipway_contracts.api.times import format_time, parse_time
from slipway_contracts.api.writing import camel, to_json

__all__ = ["camel", "format_time", "from_json", "parse_time", "to_json"]

T = TypeVar("T")
Reader = Callable[[Any], Any]


def from_json(kind: type[T], value: Any) -> T:
    """Read a dataclass back; unknown fields are ignored, missing ones take their defaults.

    Raises:
        TypeError: when a field without a default is missing, or a value has not the annotated type.
        ValueError: when a time is malformed or outside the range of datetime.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{kind.__name__} is written as {type(value).__name__}")
    readers = _readers(cast(Hashable, kind))
    return kind(**{name: read(value[key]) for name, key, read in readers if key in value})


@cache
def _readers(kind: Hashable) -> tuple[tuple[str, str, Reader], ...]:
    """Return Python name, JSON name and reader of each field of a dataclass."""
    hints = typing.get_type_hints(cast(type, kind))
    return tuple((name, camel(name), _reader(hint)) for name, hint in hints.items())


@cache
def _reader(hint: Any) -> Reader:
    """Return the reader of values of this type, cached because a status has thousands of values."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
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


# JSON does not distinguish 1 from 1.0; a bool is no number.
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
    """Read a tuple with one reader for each element; raises ValueError for another length."""
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
