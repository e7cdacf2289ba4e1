"""Values of a body's fields, kept as they were written and read only where that is wanted (pure).

A field that a stranger may fill with anything is decoded as `msgspec.Raw`: a view of the body, for which no object is
made. These functions read a value of one type, within a bound, and take no value of another type for it.
"""

import re
from itertools import takewhile
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

ABSENT = Raw()
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
MAX_TEXT_BYTES = 4096  # of the JSON of a text, unless a caller knows better
MAX_ITEMS = 2048  # of a list that is counted: OpenAI's own limit of prompts and inputs
MAX_FIRST = 256  # of a list whose items are read
_LONGEST_NUMBER = 40
_LONGEST_NOTHING = 16
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]{0,18})")
_NOTHING = re.compile(rb'null|false|0|""|\[\s*\]|\{\s*\}')
_TEXT = msgspec.json.Decoder(str)
_TOKENS = re.compile(rb"\[\s*[-0-9]")
_Value = TypeVar("_Value")


def list_decoder(item: Any, absent: object, most: int, *, refuses_more: bool = True) -> "msgspec.json.Decoder[Any]":
    """A decoder of lists with up to `most` items of a type; `items_of` has those of what it returns.

    `absent`: what stands for no item. `refuses_more`: it fails at the first item that is too many; else it skips these.
    A list type would make an object for each item, of however many, before it counts them.
    """
    fields = [(f"item_{n}", item, absent) for n in range(most)]
    return msgspec.json.Decoder(msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields=refuses_more))


def items_of(listed: Any, absent: object) -> list[Any]:
    """The items of what a `list_decoder` returned."""
    found = (getattr(listed, name) for name in listed.__struct_fields__)
    return list(takewhile(lambda item: item is not absent, found))


_ITEMS = list_decoder(Raw, ABSENT, MAX_ITEMS)
_FIRST = list_decoder(Raw, ABSENT, MAX_FIRST, refuses_more=False)


def is_null(value: Raw) -> bool:
    """Whether a field has no value: it is absent or null."""
    return len(value) == 0 or (len(value) == 4 and bytes(value) == b"null")


def is_text(value: Raw) -> bool:
    return value is not ABSENT and memoryview(value)[0] == ord('"')


def is_list(value: Raw) -> bool:
    return value is not ABSENT and memoryview(value)[0] == ord("[")


def is_object(value: Raw) -> bool:
    return value is not ABSENT and memoryview(value)[0] == ord("{")


def is_true(value: Raw) -> bool:
    return len(value) == 4 and bytes(value) == b"true"


def does_nothing(value: Raw) -> bool:
    """Whether a field is absent, null, false, zero or empty."""
    return len(value) == 0 or (len(value) <= _LONGEST_NOTHING and _NOTHING.fullmatch(value) is not None)


def text_of(value: Raw, most_bytes: int = MAX_TEXT_BYTES) -> str | None:
    """A text; None for a value of another type, and for one that is longer, as it is written, than `most_bytes`."""
    if not 2 <= len(value) <= most_bytes:
        return None
    try:
        return _TEXT.decode(value)
    except UNREADABLE:
        return None


def integer_of(value: Raw) -> int | None:
    """A whole number of at most 19 digits, written as one; None for any other value."""
    return int(bytes(value)) if len(value) <= 20 and _INTEGER.fullmatch(value) else None


def lenient_integer_of(value: Raw) -> int | None:
    """A whole number as servers take it that convert other types: also 3.0, "3" and true. None for any other value."""
    if len(value) > _LONGEST_NUMBER or is_null(value):
        return None
    written = bytes(value).strip(b'" \t\r\n')
    try:
        number = 1.0 if written == b"true" else float(written)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def count_items(value: Raw) -> int:
    """Of a list how many items it has, up to `MAX_ITEMS`; beyond them at least as many as it has. 1 for other values.

    A list that begins with a number is one item: the token ids of a text.
    """
    if not is_list(value) or len(value) == 2 or _TOKENS.match(value):
        return 1
    try:
        return len(items_of(_ITEMS.decode(value), ABSENT))
    except UNREADABLE:
        return bytes(value).count(b",") + 1


def first_items(value: Raw) -> list[Raw]:
    """The first items of a list, at most `MAX_FIRST`; none of a value of another type."""
    return items_of(_FIRST.decode(value), ABSENT) if is_list(value) else []


def read_value(decoder: "msgspec.json.Decoder[_Value]", value: Raw, most_bytes: int = MAX_TEXT_BYTES) -> _Value | None:
    """A value of a decoder's type; None for a value of another type, and for one with more bytes."""
    if not 2 <= len(value) <= most_bytes:
        return None
    try:
        return decoder.decode(value)
    except UNREADABLE:
        return None
