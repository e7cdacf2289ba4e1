"""Output tensors of the Open Inference Protocol: their elements from JSON, binary tensors and protobuf (pure).

Protobuf is read by hand: the gateway has no library of messages. What cannot be read gives None, whatever its bytes.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from slipway_contracts import protobuf

from .json_values import ABSENT, integer_of, is_null

MAX_OUTPUTS, MAX_DIMENSIONS = 64, 32  # of a response, and of a tensor; what has more is not read
MAX_NUMBERS = 4096  # typed integers of one tensor that are read: each takes a microsecond
_FORMATS = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I",
    "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
# The field of `contents` that has the elements of a datatype; FP16 and BF16 have none.
_CONTENTS = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
    "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip
_FIXED = {6: protobuf.FIXED32, 7: protobuf.FIXED64}  # these two are floating-point numbers, and 1 to 5 are varints
_TEXTS = 8
_OUTPUTS, _RAW = 5, 6  # fields of ModelInferResponse
_DATATYPE, _SHAPE, _TYPED = 2, 3, 5  # fields of an output
_LATER = bytes(range(0x80, 0x100))  # bytes of a varint that another one follows

Elements = list[Any]


class TensorParameters(msgspec.Struct):
    """Where a tensor is binary, its size."""

    binary_data_size: Raw = ABSENT


class OutputTensor(msgspec.Struct):
    """`data`: of JSON."""

    datatype: str = ""
    shape: list[int] = []
    data: Any = None
    parameters: TensorParameters | None = None


@dataclass(frozen=True, slots=True)
class TypedElements:
    """The first elements of a tensor, and how many it has."""

    first: Elements
    count: int


@dataclass(frozen=True, slots=True)
class TensorMessage:
    """The outputs of a ModelInferResponse. `elements` reads those of the output at a place."""

    outputs: list[OutputTensor]
    elements: Callable[[int], TypedElements | None]


# -- the binary extension: tensors behind the JSON, in the order of the outputs that have a size, little-endian


def binary_elements(place: int, outputs: Sequence[OutputTensor], binary: bytes) -> Elements | None:
    """The elements of a binary tensor; None where there is none, or where its size does not fit the data."""
    begin = 0
    for index, one in enumerate(outputs):
        if one.parameters is None or is_null(one.parameters.binary_data_size):
            continue
        size = integer_of(one.parameters.binary_data_size)
        if size is None or not 0 <= size <= len(binary) - begin:
            return None
        if index == place:
            return _elements(one.datatype, binary[begin : begin + size])
        begin += size
    return None


def _elements(datatype: str, data: bytes) -> Elements | None:
    if datatype == "BYTES":
        return _texts(data)
    if datatype == "BF16":  # the upper half of an FP32
        halves = struct.iter_unpack("<2s", data) if len(data) % 2 == 0 else ()
        return [struct.unpack("<f", b"\0\0" + half)[0] for (half,) in halves]
    code = _FORMATS.get(datatype)
    if code is None or len(data) % struct.calcsize(f"<{code}"):
        return None
    return [one for (one,) in struct.iter_unpack(f"<{code}", data)]


def _texts(data: bytes) -> Elements | None:
    """The elements of a BYTES tensor, each its length in four bytes and its bytes; None where one is cut off."""
    found: Elements = []
    begin = 0
    while begin < len(data):
        if begin + 4 > len(data):
            return None
        end = begin + 4 + int.from_bytes(data[begin : begin + 4], "little")
        if end > len(data):
            return None
        found.append(_text(data[begin + 4 : end]))
        begin = end
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# -- protobuf: raw contents as in the binary extension, or typed contents


def read_message(body: bytes) -> TensorMessage | None:
    """The outputs of a ModelInferResponse; None for bytes that are none."""
    try:
        found = [(field.number, body[field.start : field.stop]) for field in protobuf.fields(body) if _holds(field)]
        described = [_output(data) for number, data in found if number == _OUTPUTS]
    except protobuf.WireError:
        return None
    raw = [data for number, data in found if number == _RAW]
    outputs = [output for output, _ in described]

    def elements(place: int) -> TypedElements | None:
        if not raw:
            return _typed(outputs[place].datatype, described[place][1])
        read = _elements(outputs[place].datatype, raw[place]) if len(raw) == len(outputs) else None
        return None if read is None else TypedElements(read, len(read))

    return TensorMessage(outputs, elements)


def _holds(field: protobuf.WireField) -> bool:
    return field.kind == protobuf.BYTES and field.number in (_OUTPUTS, _RAW)


def _output(data: bytes) -> tuple[OutputTensor, list[bytes]]:
    """The description of an output, and its typed contents, which protobuf allows in several parts."""
    datatype, shape, contents = "", list[int](), list[bytes]()
    for field in protobuf.fields(data):
        part = data[field.start : field.stop]
        if field.number == _SHAPE and field.kind == protobuf.VARINT:
            shape.append(_signed(field.value))
        elif field.kind != protobuf.BYTES:
            continue
        elif field.number == _SHAPE:
            shape += map(_signed, _varints(part))
        elif field.number == _DATATYPE:
            datatype = part.decode("ascii", "replace")
        elif field.number == _TYPED:
            contents.append(part)
    return OutputTensor(datatype, shape), contents


def _typed(datatype: str, contents: Sequence[bytes]) -> TypedElements | None:
    """The elements in the field of a datatype; None where another one has them, or where they cannot be read."""
    wanted, parts, numbers = _CONTENTS.get(datatype), list[bytes](), list[int]()
    try:
        for message in contents:
            for field in protobuf.fields(message):
                if field.number != wanted:
                    continue
                if field.kind == protobuf.VARINT and wanted < _TEXTS and wanted not in _FIXED:
                    numbers.append(field.value)
                elif field.kind == protobuf.BYTES or field.kind == _FIXED.get(wanted):
                    parts.append(message[field.start : field.stop])
                else:
                    return None
        return _of_parts(datatype, wanted, parts, numbers)
    except protobuf.WireError:
        return None


def _of_parts(datatype: str, field: int | None, parts: list[bytes], numbers: list[int]) -> TypedElements | None:
    if field is None or (parts and numbers):  # both encodings of one list: no library writes that
        return None
    if field == _TEXTS:
        return TypedElements(list(map(_text, parts)), len(parts))
    data = b"".join(parts)
    if field in _FIXED:
        read = _elements(datatype, data)
        return None if read is None else TypedElements(read, len(read))
    count = len(numbers) + len(data.translate(None, _LATER))
    found = numbers or _varints(data)
    if datatype == "BOOL":
        return TypedElements([one != 0 for one in found], count)
    return TypedElements(found if datatype.startswith("UINT") else list(map(_signed, found)), count)


def _varints(data: bytes) -> list[int]:
    """The first `MAX_NUMBERS` numbers of a packed list. Raises WireError: one is cut off, or too long."""
    found, value, shift = list[int](), 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value & (1 << 64) - 1)
            value = shift = 0
            if len(found) == MAX_NUMBERS:
                return found
        elif shift >= 70:
            raise protobuf.WireError("a number has more than 10 bytes")
    if shift:
        raise protobuf.WireError("a number is cut off")
    return found


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
