"""Protobuf's wire format: reads the fields of a message, writes texts and numbers; bounded, and without a library."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
MAX_FIELDS = 4096
_MAX_NUMBER = (1 << 29) - 1
_FIXED = {FIXED64: 8, FIXED32: 4}


class WireError(ValueError):
    """A message is invalid; the text is the reason, in one sentence."""


@dataclass(frozen=True, slots=True)
class WireField:
    """One field. `value`: of a varint. `start`, `stop`: where the bytes of another field begin and end."""

    number: int
    kind: int
    value: int
    start: int
    stop: int


def fields(data: bytes, limit: int = MAX_FIELDS) -> Iterator[WireField]:
    """The fields of a message in their order; messages inside of them are not read.

    Raises:
        WireError: `data` is no message, has a group, or has more fields than the limit.
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
    """The texts of the fields with these numbers; of a repeated one the last counts, as protobuf has it.

    Raises:
        WireError: as `fields`, or one of the texts is no UTF-8.
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
    """The bytes of a number; a negative one as protobuf's int64 has it."""
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
    """A field of a text. An empty text is left out, because a missing field means an empty text."""
    return bytes_field(number, text.encode("utf-8", "replace")) if text else b""


def number_field(number: int, value: int) -> bytes:
    """A field of an integer or boolean; 0 is left out."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """A packed repeated field of integers; left out without any."""
    data = b"".join(map(varint, values))
    return bytes_field(number, data) if data else b""
