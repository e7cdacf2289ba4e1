"""Whether dataclasses hold what their annotations say: what a user wrote is copied into them as it is."""

import dataclasses
import types
import typing
from collections.abc import Hashable
from functools import cache
from typing import Any, cast

WIDEST = 2**31  # of a whole number: wider ones overflow times and replicas, and the CRDs know none
_SHOWN = 80  # characters of a value in a sentence


def check(value: Any, name: str = "it") -> None:
    """Look at a dataclass and everything below it.

    Raises:
        TypeError: when a field holds another type; the message names the field.
        ValueError: when a whole number is wider than 32 bits.
    """
    for field, hint in _hints(cast(Hashable, type(value))):
        _check(getattr(value, field), hint, field if name == "it" else f"{name}.{field}")


@cache
def _hints(kind: Hashable) -> tuple[tuple[str, Any], ...]:
    return tuple(typing.get_type_hints(cast(type, kind)).items())


def _check(value: Any, hint: Any, name: str) -> None:
    if hint is Any:
        return
    if isinstance(hint, types.UnionType):
        if not any(_is_a(value, option) for option in typing.get_args(hint)):
            raise TypeError(f"{name} is {_shown(value)}")
        hint = next(option for option in typing.get_args(hint) if _is_a(value, option))
    if not _is_a(value, hint):
        raise TypeError(f"{name} is {_shown(value)}")
    if isinstance(value, int) and not -WIDEST <= value < WIDEST:
        raise ValueError(f"{name} is {_shown(value)}, which is more than 32 bits hold")
    if dataclasses.is_dataclass(value):
        check(value, name)
    elif isinstance(value, tuple):
        _check_items(value, typing.get_args(hint), name)


def _check_items(value: tuple[Any, ...], hints: tuple[Any, ...], name: str) -> None:
    every = hints[0] if len(hints) == 2 and hints[1] is Ellipsis else None
    for place, item in enumerate(value):
        _check(item, every or hints[place], name)


def _is_a(value: Any, hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    if kind in (int, float):
        return not isinstance(value, bool) and isinstance(value, int | float if kind is float else int)
    return isinstance(value, cast(type, kind))


def _shown(value: Any) -> str:
    return f"{str(value)[:_SHOWN]!r}, a {type(value).__name__}"
