"""A step's tokens as arrays of the host: packed into one row, padded to a captured size, laid out in one buffer. Pure.

One buffer, because the fixed cost of each copy to a device is that of thousands of these numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy
from numpy.typing import NDArray

Ints = NDArray[numpy.integer[Any]]

ALIGNED = 4  # int32 numbers in 16 bytes: each field begins at such a boundary, for aligned reads of kernels


@dataclass(frozen=True, slots=True)
class Packed:
    """The fields of `kernels.api.Batch`, with the same shapes, as arrays of the host."""

    ids: Ints
    positions: Ints
    slot_mapping: Ints
    first: Ints
    counts: Ints
    starts: Ints
    block_tables: Ints
    rows: Ints
    adapters: Ints | None = None

    @property
    def num_decodes(self) -> int:
        """Spans at the front that have one token each."""
        longer = numpy.flatnonzero(self.counts != 1)
        return int(longer[0]) if len(longer) else len(self.counts)

    @property
    def decodes_only(self) -> bool:
        """Whether each sequence has one token, and the next one is sampled after it: such steps can be captured."""
        return len(self.ids) == len(self.counts) == len(self.rows)

    def fields(self) -> Iterator[tuple[str, Ints]]:
        """Those that the step has: without adapters there are none."""
        return ((name, values) for name in self.__slots__ if (values := getattr(self, name)) is not None)


def padded(packed: Packed, size: int, width: int, scratch: int, block_tokens: int) -> Packed:
    """Pads a step of decodes to `size` decodes, with block tables of `width` blocks.

    The padding rows write to and read from the block `scratch`, which no sequence has.
    """
    count = len(packed.ids)
    block_tables = numpy.full((size, width), scratch, numpy.int32)
    block_tables[:count, : packed.block_tables.shape[1]] = packed.block_tables
    return Packed(
        ids=_lengthened(packed.ids, size),
        positions=_lengthened(packed.positions, size),
        slot_mapping=_lengthened(packed.slot_mapping, size, scratch * block_tokens),
        first=numpy.arange(size, dtype=numpy.int32),
        counts=numpy.ones(size, numpy.int32),
        starts=_lengthened(packed.starts, size),
        block_tables=block_tables,
        rows=numpy.arange(size, dtype=numpy.int32),
        adapters=None if packed.adapters is None else _lengthened(packed.adapters, size, -1),
    )


def _lengthened(values: Ints, size: int, value: int = 0) -> Ints:
    """Pads at the end as numpy.pad does, in a tenth of its time: a step of decodes may take only a millisecond."""
    longer = numpy.full(size, value, values.dtype)
    longer[: len(values)] = values
    return longer


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each field of a step lies in one buffer of int32, by the step's shapes."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, packed: Packed) -> "Layout":
        return cls(tuple((name, values.shape) for name, values in packed.fields()))

    @property
    def ints(self) -> int:
        return sum(_aligned(prod(shape)) for _, shape in self.shapes)

    def slices(self) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
        """Each field's name, its part of the buffer, and the shape to see it in."""
        begin = 0
        for name, shape in self.shapes:
            yield name, slice(begin, begin + prod(shape)), shape
            begin += _aligned(prod(shape))

    def fill(self, buffer: Ints, packed: Packed) -> None:
        for name, part, _ in self.slices():
            buffer[part] = getattr(packed, name).reshape(-1)


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


# --- captured sizes ---------------------------------------------------------------------------------------------------


def sizes(most: int) -> tuple[int, ...]:
    """Numbers of decodes that are captured, up to `most`: 1, 8, 16, 24, 32, then ever longer strides.

    2 to 7 decodes take as long as 8 or longer. From 32 on, at most a quarter of a step's rows are padding, and there
    are few enough sizes to keep all graphs.
    """
    found, size = [1, 8], 16
    while size < most:
        found.append(size)
        size += max(8, (1 << (size.bit_length() - 1)) // 4)
    return (*(each for each in found if each < most), most)


def size_for(count: int, captured: tuple[int, ...]) -> int:
    """The smallest captured size that has room for `count` decodes."""
    return next(size for size in captured if size >= count)
