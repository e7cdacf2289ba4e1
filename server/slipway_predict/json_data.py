"""`data` of a tensor in JSON: flat or nested lists, read with the types of the datatype, and written again."""

import base64
import json
import math
from functools import lru_cache
from typing import Any

import msgspec
import numpy

from slipway_process.json_lists import joined

from .tensors import BINARY_ONLY, BOOL, BYTES, FLOATS, INTEGERS, MAX_DIMENSIONS, NUMPY, Tensor, TensorError, elements_of

_WHITE = b" \t\r\n"
_PIECE = 1 << 16  # elements that are written at once


@lru_cache(maxsize=256)
def _decoder(kind: str, depth: int) -> "msgspec.json.Decoder[Any]":
    element: Any = {BOOL: bool, BYTES: str}.get(kind, int if kind in INTEGERS else float | None)
    for _ in range(depth):
        element = list[element]
    return msgspec.json.Decoder(element)


def read(name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    """`data` as it was written: a list, flat or nested as the shape. `null` is NaN in floating-point datatypes.

    Raises:
        TensorError: of another type, another size, or out of the datatype's range.
    """
    if datatype in BINARY_ONLY:
        raise TensorError(f"input {name!r} is {datatype}, which JSON cannot hold: send it as binary data")
    count, depth = elements_of(shape, name), _depth(data)
    if depth not in (1, max(1, len(shape))):
        raise TensorError(f"input {name!r}: data is nested {depth} deep; write a flat list, or one as its shape")
    try:
        values = _decoder(datatype, depth).decode(data)
    except msgspec.MsgspecError as error:
        raise TensorError(f"input {name!r} is {datatype}, and its data is not: {error}") from None
    array = _array(name, datatype, values)
    if array.size != count:
        raise TensorError(f"input {name!r} has {array.size} elements; the shape {list(shape)} needs {count}")
    if depth > 1 and count and array.shape != shape:
        raise TensorError(f"input {name!r}: data is nested as {list(array.shape)}; its shape is {list(shape)}")
    return Tensor(name, datatype, array.reshape(shape))


def from_values(name: str, datatype: str, shape: tuple[int, ...], values: Any) -> Tensor:
    """The tensor of values that were decoded from JSON before. Raises TensorError as `read`."""
    if datatype in BINARY_ONLY:
        raise TensorError(f"input {name!r} is {datatype}, which JSON cannot hold: send it to /v2 as binary data")
    array = _array(name, datatype, values)
    if array.size != elements_of(shape, name):
        raise TensorError(f"input {name!r} has {array.size} values where {list(shape)} are needed")
    return Tensor(name, datatype, array.reshape(shape))


def _depth(data: bytes) -> int:
    """How many lists begin before the first element."""
    depth = 0
    for byte in data:
        if byte == ord("["):
            depth += 1
            if depth > MAX_DIMENSIONS:
                break
        elif byte not in _WHITE:
            break
    return depth


def _array(name: str, datatype: str, values: Any) -> Any:
    if datatype == BYTES:
        return _texts(name, values)
    try:
        with numpy.errstate(over="ignore", invalid="ignore"):  # infinity less infinity
            array = numpy.array(values, NUMPY[datatype])
            infinite = datatype in FLOATS and _has_infinity(array)
    except OverflowError:
        raise TensorError(f"input {name!r}: a number is out of the range of {datatype}") from None
    except (ValueError, TypeError):
        raise TensorError(f"input {name!r}: its lists have different lengths") from None
    if infinite:  # JSON has no infinity
        raise TensorError(f"input {name!r}: a number is out of the range of {datatype}")
    return array


def _has_infinity(array: Any) -> bool:
    # A sum is not finite where a number is not. It may overflow too: then each number is looked at.
    return not math.isfinite(array.sum()) and bool(numpy.isinf(array).any())


def _texts(name: str, values: Any) -> Any:
    try:
        texts = numpy.array(values, object)
        flat = texts.reshape(-1)
        encoded = numpy.empty(flat.size, object)
        encoded[:] = [text.encode("utf-8") for text in flat.tolist()]
    except (ValueError, AttributeError):
        raise TensorError(f"input {name!r}: its lists have different lengths, or a text is not Unicode") from None
    return encoded.reshape(texts.shape)


def write(tensor: Tensor) -> list[Any] | msgspec.Raw:
    """A flat list, whose NaN and infinities become null; JSON of a long one, written piece by piece.

    Raises:
        TensorError: JSON cannot hold the tensor.
    """
    if tensor.datatype in BINARY_ONLY:
        raise TensorError(f"output {tensor.name!r} is {tensor.datatype}, which JSON cannot hold: request binary_data")
    flat = tensor.array.reshape(-1)
    if flat.size <= _PIECE:
        return _plain_list(tensor, flat)
    return joined(_plain_list(tensor, flat[at : at + _PIECE]) for at in range(0, flat.size, _PIECE))


def _plain_list(tensor: Tensor, elements: Any) -> list[Any]:
    values = elements.tolist()
    if tensor.datatype != BYTES:
        return list(values)
    try:
        return [item.decode("utf-8") for item in values]
    except UnicodeDecodeError:
        raise TensorError(f"output {tensor.name!r} has bytes that are no UTF-8: request binary_data") from None


def plain(value: Any) -> Any:
    """One element for JSON: bytes as text, or as base64 where they are not UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value


def dumps(value: Any) -> str:
    """A value as JSON for error messages, cut to 64 characters."""
    return json.dumps(value, default=str)[:64]
