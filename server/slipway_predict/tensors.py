"""Tensors and the datatypes of the Open Inference Protocol v2: checked, cut into rows, and as little-endian bytes."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy
from msgspec import Struct

Array: TypeAlias = "numpy.ndarray[Any, Any]"

BYTES, BOOL, BF16, FP16 = "BYTES", "BOOL", "BF16", "FP16"
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 1 << 28
LENGTH = struct.Struct("<I")  # before each element of BYTES

# BF16 has no type in numpy: its bits are carried as whole numbers. BYTES are objects: one `bytes` for each element.
NUMPY: dict[str, Any] = {
    BOOL: numpy.dtype("?"),
    "UINT8": numpy.dtype("<u1"),
    "UINT16": numpy.dtype("<u2"),
    "UINT32": numpy.dtype("<u4"),
    "UINT64": numpy.dtype("<u8"),
    "INT8": numpy.dtype("<i1"),
    "INT16": numpy.dtype("<i2"),
    "INT32": numpy.dtype("<i4"),
    "INT64": numpy.dtype("<i8"),
    FP16: numpy.dtype("<f2"),
    "FP32": numpy.dtype("<f4"),
    "FP64": numpy.dtype("<f8"),
    BF16: numpy.dtype("<u2"),
    BYTES: numpy.dtype(object),
}
INTEGERS = frozenset(name for name in NUMPY if "INT" in name)
FLOATS = frozenset({FP16, "FP32", "FP64", BF16})
BINARY_ONLY = frozenset({FP16, BF16})  # JSON has no spelling of them


class TensorError(ValueError):
    """What is wrong with a tensor, in one sentence that names it."""


class Tensor(Struct, frozen=True, eq=False):
    """A named array. `array` has the tensor's shape, and for BF16 its bits as unsigned 16-bit numbers."""

    name: str
    datatype: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rows(self) -> int:
        """The size of the first dimension; 0 for a scalar."""
        return int(self.array.shape[0]) if self.array.ndim else 0

    @property
    def size_bytes(self) -> int:
        """Its size in memory; of BYTES the lengths of their contents are a part."""
        contents = sum(map(len, self.array.flat)) if self.datatype == BYTES else 0
        return int(self.array.nbytes) + contents

    def part(self, start: int, stop: int) -> "Tensor":
        if start == 0 and stop == len(self.array):
            return self
        return Tensor(self.name, self.datatype, self.array[start:stop])


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output of a model. -1 is any size. `features`: names of the columns, where the model has them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    features: tuple[str, ...] = ()

    def check(self, tensor: Tensor) -> None:
        """Raise TensorError for a tensor that is not of this type and shape."""
        if tensor.datatype != self.datatype:
            raise TensorError(
                f"input {self.name!r} is {tensor.datatype}; the model takes {self.datatype}: send that datatype"
            )
        given = tensor.shape
        fits = len(given) == len(self.shape) and all(
            wanted in (-1, size) for wanted, size in zip(self.shape, given, strict=True)
        )
        if not fits:
            raise TensorError(
                f"input {self.name!r} has the shape {list(given)}; the model takes {list(self.shape)} (-1: any size)"
            )
        if tensor.datatype == BYTES and not _are_texts(tensor.array):
            raise TensorError(f"input {self.name!r} has bytes that are no UTF-8: models of these formats take texts")


def _are_texts(array: Array) -> bool:
    try:
        for item in array.reshape(-1).tolist():
            item.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts, which have one name, one datatype and one shape of a row."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return Tensor(first.name, first.datatype, numpy.concatenate([part.array for part in parts]))


def elements_of(shape: Sequence[int], name: str) -> int:
    """The number of elements; raises TensorError for a shape that no tensor can have."""
    # A longer shape, which a stranger may send, is not kept.
    known = _elements(tuple(shape)) if len(shape) <= MAX_DIMENSIONS else 0
    return known or _checked_elements(shape, name)


@lru_cache(maxsize=256)
def _elements(shape: tuple[int, ...]) -> int:
    """As `elements_of`, which is computed for each request; 0 for a shape that no tensor can have."""
    try:
        return _checked_elements(shape, "")
    except TensorError:
        return 0


def _checked_elements(shape: Sequence[int], name: str) -> int:
    if len(shape) > MAX_DIMENSIONS:
        raise TensorError(f"tensor {name!r} has {len(shape)} dimensions; {MAX_DIMENSIONS} is the limit")
    if any(size < 0 for size in shape):
        raise TensorError(f"tensor {name!r} has the shape {list(shape)}: sizes must not be negative")
    # Without zeros: numpy refuses an empty array whose other sizes are too large together.
    if (largest := math.prod(size for size in shape if size)) > MAX_ELEMENTS:
        raise TensorError(f"tensor {name!r} has sizes for {largest} elements; {MAX_ELEMENTS} is the limit")
    return math.prod(shape)


def datatype_of(array: Array) -> str:
    """The datatype of an array that a model returned. Raises TensorError for one that the protocol does not have."""
    return _datatype(array.dtype)


@lru_cache(maxsize=64)
def _datatype(kind: "numpy.dtype[Any]") -> str:
    if kind.kind in "OUS":
        return BYTES
    for name, known in NUMPY.items():
        if name != BF16 and known == kind.newbyteorder("<"):
            return name
    raise TensorError(f"the model returned numbers of the type {kind}, which the protocol does not have")


def to_bytes(tensor: Tensor) -> bytes:
    """Little-endian, row after row; each element of BYTES behind its length."""
    if tensor.datatype != BYTES:
        return numpy.ascontiguousarray(tensor.array, NUMPY[tensor.datatype]).tobytes()
    return b"".join(LENGTH.pack(len(item)) + item for item in tensor.array.reshape(-1).tolist())


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
    """The tensor of little-endian bytes. Raises TensorError before it allocates, where size and shape contradict."""
    count = elements_of(shape, name)
    if datatype == BYTES:
        return Tensor(name, datatype, _texts(name, bytes(data), count).reshape(shape))
    if datatype not in NUMPY:
        raise TensorError(f"tensor {name!r} has the datatype {datatype[:32]!r}, which the protocol does not have")
    expected = count * NUMPY[datatype].itemsize
    if len(data) != expected:
        raise TensorError(
            f"tensor {name!r} has {len(data)} bytes of data; the shape {list(shape)} of {datatype} needs {expected}"
        )
    array = numpy.frombuffer(data, NUMPY[datatype], count)
    if datatype == BOOL and count and int(array.view(numpy.uint8).max()) > 1:
        raise TensorError(f"tensor {name!r} is BOOL: each byte must be 0 or 1")
    return Tensor(name, datatype, array.reshape(shape))


def _texts(name: str, data: bytes, count: int) -> Array:
    if count * LENGTH.size > len(data):
        raise TensorError(f"tensor {name!r} has {len(data)} bytes of data, too few for {count} elements of BYTES")
    found, at = numpy.empty(count, object), 0
    for index in range(count):
        if at + LENGTH.size > len(data):
            raise TensorError(f"tensor {name!r}: its data ends inside of element {index} of {count}")
        (size,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if at + size > len(data):
            raise TensorError(f"tensor {name!r}: element {index} says {size} bytes, which the data does not have")
        found[index] = data[at : at + size]
        at += size
    if at != len(data):
        raise TensorError(f"tensor {name!r}: {len(data) - at} bytes are left after its {count} elements")
    return found


def finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite; true for datatypes that are not floating-point."""
    if tensor.datatype not in FLOATS:
        return True
    if tensor.datatype == BF16:
        return bool(((tensor.array & 0x7F80) != 0x7F80).all())
    return bool(numpy.isfinite(tensor.array).all())
