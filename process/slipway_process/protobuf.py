"""Protobuf on the wire: the fields of a message, and messages of texts and numbers; bounded, and without a library."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
MAX_FIELDS = 4096
_MAX_NUMBER = (1 << 29) - 1
_FIXED = {FIXED64: 8, FIXED32: 4}


class WireError(ValueError):
    """What is wrong with a message, in one sentence."""


@dataclass(frozen=True, slots=True)
class WireField:
    """`value`: of a varint; `start` and `stop`: of the bytes of any other one."""

    number: int
    kind: int
    value: int
    start: int
    stop: int


def fields(data: bytes, limit: int = MAX_FIELDS) -> Iterator[WireField]:
    """The fields of a message in their order; what is inside of them is not read.

    Raises:
        WireError: it is no message, has a group, or has more fields than the limit.
    """
    at, count, end = 0, 0, len(data)
    while at < end:
        count += 1
        if count > limit:
            raise WireError(f"the message has more than {limit} fields")
        key, at = _varint(data, at, 5)
        number, kind = key >> 3, key & 7
        if not 0 < number <= _MAX_NUMBER:
            raise WireError(f"the message has a field with the number {number}")
        if kind == VARINT:
            value, at = _varint(data, at, 10)
            yield WireField(number, kind, value, at, at)
            continue
        if kind == BYTES:
            size, at = _varint(data, at, 10)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise WireError(f"field {number} of the message has the wire type {kind}")
        if size > end - at:
            raise WireError(f"field {number} of the message has {size} bytes, and {end - at} are left")
        yield WireField(number, kind, 0, at, at + size)
        at += size


def texts(data: bytes, *numbers: int) -> dict[int, str]:
    """Fields that are texts; of one that is there several times the last one counts, as protobuf has it.

    Raises:
        WireError: as `fields`, or one of them is no UTF-8.
    """
    found: dict[int, str] = {}
    for field in fields(data):
        if field.number in numbers and field.kind == BYTES:
            try:
                found[field.number] = data[field.start : field.stop].decode("utf-8")
            except UnicodeDecodeError:
                raise WireError(f"field {field.number} of the message is no UTF-8") from None
    return found


def _varint(data: bytes, at: int, longest: int) -> tuple[int, int]:
    """A number, and where the next one begins."""
    value = 0
    for index in range(longest):
        if at + index >= len(data):
            raise WireError("the message ends inside of a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise WireError(f"the message has a number with more than {longest} bytes")


# -- writing


def varint(value: int) -> bytes:
    """`value`: negative ones as protobuf's int64 has them."""
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def bytes_field(number: int, *parts: bytes) -> bytes:
    """A field of bytes, or of a message."""
    return b"".join([varint(number << 3 | BYTES), varint(sum(map(len, parts))), *parts])


def text_field(number: int, text: str) -> bytes:
    """An empty text is left out, which is what it means."""
    return bytes_field(number, text.encode("utf-8", "replace")) if text else b""


def number_field(number: int, value: int) -> bytes:
    """A whole number or a truth value; 0 is left out."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """Whole numbers."""
    data = b"".join(map(varint, values))
    return bytes_field(number, data) if data else b""
