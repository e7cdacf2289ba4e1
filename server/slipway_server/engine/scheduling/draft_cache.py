"""Which keys and values the draft model's cache has. Pure.

Its blocks are the model's own: what a block table says of the one cache holds for the other, cached prefixes and
preemption included. Only what was written differs: the draft model reads a sequence when it drafts for it, and not
before. So what is known here is how much of each block it has written, and for which of the block's owners.
"""

from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from ..request import Sequence
from .block_manager import BlockManager


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Drafts whose keys and values were written. They count once the sequence has these tokens."""

    start: int
    drafts: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]  # that they were written to, each with its number of takes


class DraftCache:
    def __init__(self, blocks: BlockManager) -> None:
        self._takes, self._size = blocks.takes, blocks.block_tokens
        self._written = numpy.full(len(self._takes), -1, numpy.int64)  # `takes` of each block when it was written to
        self._filled = numpy.zeros(len(self._takes), numpy.int32)  # tokens at the beginning of each block that are in
        self._ahead: dict[str, _Ahead] = {}

    def computed(self, sequence: Sequence) -> int:
        """How many tokens at its beginning are in the cache. Its last token is not counted: its logits are needed."""
        count = self._prefix(sequence)
        ahead = self._ahead.get(sequence.request.id)
        if ahead and count == ahead.start:
            kept = sequence.tokens(ahead.start, ahead.start + len(ahead.drafts))
            same = 0
            while same < len(kept) and kept[same] == ahead.drafts[same]:
                same += 1
            end = ahead.start + same
            if same and self._blocks_of(sequence, ahead.start, end) == ahead.blocks[: self._count(ahead.start, end)]:
                self.add(sequence, ahead.start, end)
                count = self._prefix(sequence)
        return min(count, sequence.length - 1)

    def add(self, sequence: Sequence, start: int, end: int) -> None:
        """Counts the tokens [start, end) as written. Those before them were."""
        self._ahead.pop(sequence.request.id, None)
        first = start // self._size
        table = sequence.block_table[first : first + self._count(start, end)]
        self._written[table] = self._takes[table]
        self._filled[table[:-1]] = self._size
        self._filled[table[-1]] = end - (first + len(table) - 1) * self._size

    def add_ahead(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        """Notes that drafts were written after the sequence's last token."""
        start, end = sequence.length, sequence.length + len(drafts)
        if drafts:
            self._ahead[sequence.request.id] = _Ahead(start, drafts, self._blocks_of(sequence, start, end))

    def drop(self, sequence: Sequence) -> None:
        """Counts the sequence's blocks as empty."""
        self._filled[sequence.block_table] = 0
        self.forget(sequence.request.id)

    def forget(self, request_id: str) -> None:
        """Drops what is noted of a sequence."""
        self._ahead.pop(request_id, None)

    def _prefix(self, sequence: Sequence) -> int:
        table: NDArray[numpy.int64] = numpy.array(sequence.block_table, numpy.int64)
        filled = numpy.where(self._written[table] == self._takes[table], self._filled[table], 0)
        partial = numpy.flatnonzero(filled < self._size)
        if not len(partial):
            return len(table) * self._size
        return int(partial[0]) * self._size + int(filled[partial[0]])

    def _count(self, start: int, end: int) -> int:
        return (end - 1) // self._size - start // self._size + 1

    def _blocks_of(self, sequence: Sequence, start: int, end: int) -> tuple[tuple[int, int], ...]:
        first = start // self._size
        table = sequence.block_table[first : first + self._count(start, end)]
        return tuple(zip(table, self._takes[table].tolist(), strict=True))
