"""Custom resources as typed values; what cannot be read is a sentence that names its path."""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

T = TypeVar("T")
Path = tuple[int | str, ...]  # names of fields and numbers of items, from the top

MOST_ERRORS = 5  # errors in one message
LONGEST = 1024  # characters of a message: it goes into a status, and keys of maps are a part of paths
NOT_ALLOWED = "is not allowed here: remove it"
_SHOWN = 80  # characters of a value
# What encoding ends in that is no JSON: of texts and numbers that no API server sends, and of nesting without an end.
_NO_JSON = (TypeError, ValueError, OverflowError, RecursionError)


class UnreadableObject(ValueError):
    """The value is not an object of this type; the message names each path and what is valid there."""


def encoded(value: Any) -> bytes:
    """As JSON.

    Raises:
        UnreadableObject: when it is none.
    """
    try:
        return msgspec.json.encode(value)
    except _NO_JSON as error:
        raise UnreadableObject(f"it is no JSON: {error}") from None


def read(kind: type[T], written: bytes, at: str = "") -> T:
    """Read JSON. `at`: the path of the value in its object.

    Raises:
        UnreadableObject: naming the path of all that is wrong.
    """
    return _read(kind, written, at)


def read_text(kind: type[T], value: Any) -> T:
    """Read what a person wrote in a file: numbers may be texts, and a field that the type lacks is an error.

    Raises:
        UnreadableObject: when it is no JSON, or naming the path of all that is wrong.
    """
    return _read(kind, encoded(value), strict=False, extra="forbid")


def _read(kind: type[T], written: bytes, at: str = "", **options: Any) -> T:
    try:
        made: T = _adapter(cast(Hashable, kind)).validate_json(written, **options)
    except ValidationError as error:
        found = [one for one in error.errors(include_url=False) if not _follows(one)]
        sentences = [_sentence(one, at) for one in found[:MOST_ERRORS]]
        rest = [f"and {len(found) - MOST_ERRORS} more"] if len(found) > MOST_ERRORS else []
        raise UnreadableObject("; ".join([*sentences, *rest])[:LONGEST]) from None
    return made


def read_parts(kind: type[T], value: dict[str, Any]) -> tuple[T, tuple[str, ...]]:
    """Read what can be read of an object, and the paths of the parts that cannot and count as absent.

    Raises:
        UnreadableObject: when it is no JSON, or no part of it can be read.
    """
    dropped: list[str] = []
    left, adapter = msgspec.json.decode(encoded(value)), _adapter(cast(Hashable, kind))
    while True:
        try:
            made: T = adapter.validate_json(encoded(left))
            return made, tuple(dropped)
        except ValidationError as error:
            wrong = {_part(one) for one in error.errors(include_url=False)}
        # Later items of a list first: those before them keep their places.
        gone = [path for path in sorted(wrong, key=_place, reverse=True) if _drop(left, path)]
        if not gone:
            raise UnreadableObject("it makes no sense in any part")
        dropped += map(_path, gone)


def _place(path: Path) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (0, part) for part in path]


def _part(error: ErrorDetails) -> Path:
    """What is to be dropped for an error: the value itself, or what lacks one that it needs."""
    return error["loc"][:-1] if error["type"].startswith("missing") else error["loc"]


def _drop(whole: Any, path: Path) -> bool:
    """Remove a part, unless it went with another one."""
    try:
        *above, last = path
        for name in above:
            whole = whole[name]
        del whole[last]
    except (LookupError, TypeError, ValueError):
        return False
    return True


def _path(parts: Path, at: str = "") -> str:
    for part in parts:
        at += f"[{part}]" if isinstance(part, int) else f".{part}"
    return at.lstrip(".")


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(type, kind))


def _follows(error: ErrorDetails) -> bool:
    """Whether a list is only called short for items of it that cannot be read, which are named themselves."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _sentence(error: ErrorDetails, at: str) -> str:
    return f"{_path(error['loc'], at) or 'it'}: {_wrong(error)}"


def _wrong(error: ErrorDetails) -> str:
    context: dict[str, Any] = error.get("ctx") or {}
    if error["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return "is missing"
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] == "literal_error":
        return f"must be {context['expected']}, and is {_shown(error)}"
    words = _WORDS.get(error["type"])
    return words(context, _shown(error)) if words else f"{error['msg'][:1].lower()}{error['msg'][1:]}"


def _shown(error: ErrorDetails) -> str:
    return repr(str(error["input"])[:_SHOWN])


def _kind(what: str) -> Callable[[dict[str, Any], str], str]:
    return lambda _, given: f"must be {what}, and is {given}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_WORDS: dict[str, Callable[[dict[str, Any], str], str]] = {
    "extra_forbidden": lambda *_: NOT_ALLOWED,
    "enum": lambda context, given: f"must be {context['expected']}, and is {given}",
    "greater_than": lambda context, given: f"must be above {context['gt']:.15g}, and is {given}",
    "greater_than_equal": lambda context, given: f"must be at least {context['ge']:.15g}, and is {given}",
    "less_than_equal": lambda context, given: f"must be at most {context['le']:.15g}, and is {given}",
    "string_too_short": lambda context, _: f"must have at least {_count(context['min_length'], 'character')}",
    "string_too_long": lambda context, _: f"must have at most {_count(context['max_length'], 'character')}",
    "too_short": lambda context, _: f"must have at least {_count(context['min_length'], 'item')}",
    "too_long": lambda context, _: f"must have at most {_count(context['max_length'], 'item')}",
    "string_pattern_mismatch": lambda context, given: f"must match {context['pattern']}, and is {given}",
    "int_type": _kind("a whole number"),
    "int_from_float": _kind("a whole number"),
    "int_parsing_size": _kind("a whole number of at most 64 bits"),
    "float_type": _kind("a number"),
    "finite_number": _kind("a number"),
    "string_type": _kind("a text"),
    "bool_type": _kind("true or false"),
    "tuple_type": _kind("a list"),
    "dict_type": _kind("an object"),
    "model_type": _kind("an object"),
    "dataclass_type": _kind("an object"),
    "unexpected_keyword_argument": lambda context, given: "is no field",
}
