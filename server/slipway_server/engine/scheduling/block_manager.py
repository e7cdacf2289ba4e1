"""The block manager of the KV cache: allocation, reference counts, prefix cache and eviction. Pure bookkeeping.

A block is free, referenced by one or more sequences, or cached: without references, but with content that a later
sequence can reuse. Cached blocks are evicted when no free block is left, the least recently used one first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

import numpy

from ..request import Request, Sequence
from .block_hash import BlockHasher


class BlockManager:
    """Every method that needs blocks has a `can_` method that the caller calls first."""

    def __init__(self, num_blocks: int, hasher: BlockHasher, *, block_tokens: int, prefix_cache: bool = True) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self._hasher, self._prefix_cache = hasher, prefix_cache
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks
        self.takes = numpy.zeros(num_blocks, numpy.int64)  # how often each block got a new content
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        self.evictions = 0  # cached blocks that others got
        self._evictable: OrderedDict[int, None] = OrderedDict()  # cached, without references; least recently used first
        self._invalid: set[int] = set()  # referenced; their content may be non-finite
        self._to_clear: list[int] = []  # were invalid, are free now
        self._allocations = 0

    @property
    def num_free_blocks(self) -> int:
        """Free blocks and those that can be evicted."""
        return len(self._free) + len(self._evictable)

    @property
    def usage(self) -> float:
        """The share of blocks that sequences reference."""
        return (self.num_blocks - self.num_free_blocks) / self.num_blocks if self.num_blocks else 0.0

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    # --- allocation ---------------------------------------------------------------------------------------------------

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """The cached blocks that hold the beginning of the sequence. It does not reference them yet.

        They never hold its last token, which must be computed: the next token is sampled from its logits.
        """
        if not self._prefix_cache or sequence.request.sampling is None or sequence.needs_prompt_logprobs:
            return []
        prefix = []
        for block_hash in self._block_hashes(sequence, (sequence.length - 1) // self.block_tokens):
            block = self._block_of_hash.get(block_hash)
            if block is None:
                break
            prefix.append(block)
        return prefix

    def can_allocate(
        self, sequence: Sequence, prefix: list[int], *, reserved: int = 0, preempted: Iterable[Sequence] = ()
    ) -> bool:
        """Whether all its tokens get blocks while `reserved` blocks stay free and `preempted` sequences free theirs."""
        missing = self.blocks_for(sequence.length) - len(prefix) if sequence.request.sampling else 0
        freed = self._freed_by(preempted)
        reused = sum(block in self._evictable or block in freed for block in prefix)
        return missing <= self.num_free_blocks + len(freed) - reused - reserved

    def allocate(self, sequence: Sequence, prefix: list[int]) -> None:
        """Gives the sequence a block table of the cached `prefix`. `append` adds the other blocks as tokens come."""
        assert not sequence.block_table, "the sequence has blocks already"
        for block in prefix:
            self._evictable.pop(block, None)
            self._ref_counts[block] += 1
        self._allocations += 1
        sequence.allocation = self._allocations
        sequence.block_table, sequence.num_cached_blocks = prefix, len(prefix)
        sequence.num_computed_tokens = len(prefix) * self.block_tokens

    def can_append(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether the sequence's block table can grow to hold `num_tokens` tokens in all."""
        return self.num_missing_blocks(sequence, num_tokens) <= self.num_free_blocks

    def append(self, sequence: Sequence, num_tokens: int) -> None:
        """Grows the sequence's block table to hold `num_tokens` tokens in all.

        Raises:
            IndexError: when no block is left. Callers ask `can_append` first.
        """
        for _ in range(self.num_missing_blocks(sequence, num_tokens)):
            sequence.block_table.append(self._take_block())

    def num_missing_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """How many blocks the sequence's block table lacks to hold `num_tokens` tokens in all."""
        return max(0, self.blocks_for(num_tokens) - len(sequence.block_table))

    def num_appendable_tokens(self, sequence: Sequence) -> int:
        """Tokens after the computed ones that its blocks and the free blocks can hold."""
        num_blocks = len(sequence.block_table) + self.num_free_blocks
        return num_blocks * self.block_tokens - sequence.num_computed_tokens

    def free(self, sequence: Sequence) -> None:
        """Drops the sequence's references to its blocks. The last blocks of a prefix become evictable first."""
        for block in reversed(sequence.block_table):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._drop(block)
        sequence.block_table, sequence.num_cached_blocks = [], 0

    def trim(self, sequence: Sequence, num_tokens: int) -> None:
        """Takes back the blocks of the sequence that come after those of its first `num_tokens` tokens.

        They held drafts that were rejected: no other sequence references them, and no hash names them.
        """
        count = self.blocks_for(num_tokens)
        if len(sequence.block_table) <= count:
            return
        for block in reversed(sequence.block_table[count:]):
            self._ref_counts[block] -= 1
            self._drop(block)
        del sequence.block_table[count:]
        # Runners keep copies of block tables, and only append to a copy while the allocation is the same.
        self._allocations += 1
        sequence.allocation = self._allocations

    def _take_block(self) -> int:
        if self._free:
            block = self._free.pop()
        elif self._evictable:
            block, _ = self._evictable.popitem(last=False)
            self._uncache(block)
            self.evictions += 1
        else:
            raise IndexError("no KV cache block is free")
        self._ref_counts[block] = 1
        self.takes[block] += 1
        return block

    def _drop(self, block: int) -> None:
        """Makes a block without references evictable if it has a hash, else free. An invalid one is to be cleared."""
        if block in self._invalid:
            self._invalid.remove(block)
            self._to_clear.append(block)
        if self._hashes[block] is None:
            self._free.append(block)
        else:
            self._evictable[block] = None

    def _freed_by(self, sequences: Iterable[Sequence]) -> set[int]:
        """The blocks that only these sequences reference."""
        counts = Counter(block for sequence in sequences for block in sequence.block_table)
        return {block for block, count in counts.items() if count == self._ref_counts[block]}

    # --- prefix cache -------------------------------------------------------------------------------------------------

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Adds the sequence's full computed blocks to the prefix cache: later sequences can reuse them."""
        full = sequence.num_computed_tokens // self.block_tokens
        if not self._prefix_cache or sequence.request.sampling is None or full <= sequence.num_cached_blocks:
            return
        hashes = self._block_hashes(sequence, full)
        for index in range(sequence.num_cached_blocks, full):
            self._cache(sequence.block_table[index], hashes[index])
        sequence.num_cached_blocks = full

    def _cache(self, block: int, block_hash: bytes) -> None:
        """Caches a valid block, unless another block is already cached for the hash."""
        if block_hash not in self._block_of_hash and self._hashes[block] is None and block not in self._invalid:
            self._block_of_hash[block_hash] = block
            self._hashes[block] = block_hash

    def _uncache(self, block: int) -> None:
        block_hash, self._hashes[block] = self._hashes[block], None
        if block_hash is not None:
            del self._block_of_hash[block_hash]

    def _block_hashes(self, sequence: Sequence, count: int) -> list[bytes]:
        """The hashes of the sequence's first `count` blocks. Each is computed once in the life of a request."""
        hashes, size = sequence.block_hashes, self.block_tokens
        if len(hashes) < count:
            parent = hashes[-1] if hashes else self._root_hash(sequence.request)
            hashes += self._hasher.hash_blocks(parent, sequence.tokens(len(hashes) * size, count * size))
        return hashes[:count]

    def _root_hash(self, request: Request) -> bytes:
        return self._hasher.root_hash(request.tenant, request.adapter)

    # --- content that may be non-finite -------------------------------------------------------------------------------

    def invalidate(self, sequence: Sequence, *, from_token: int = 0) -> None:
        """Marks the sequence's blocks, from `from_token` on, as non-finite: no later sequence reuses their content.

        They are cleared when their last reference is gone. Until then they stay as they are: others may read them.
        """
        for block in sequence.block_table[from_token // self.block_tokens :]:
            self._uncache(block)
            self._invalid.add(block)

    def take_blocks_to_clear(self) -> list[int]:
        """Invalid blocks without references, each once. The caller clears them before the next step writes to any."""
        blocks, self._to_clear = self._to_clear, []
        return blocks

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError when the bookkeeping is inconsistent. `sequences`: all that may have blocks."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            for block in sequence.block_table:
                counts[block] += 1
        assert counts == self._ref_counts, "a reference count is wrong"
        free, evictable, hashes = set(self._free), set(self._evictable), self._hashes
        assert len(free) == len(self._free) and not free & evictable, "a block is free twice"
        assert free | evictable == {block for block, count in enumerate(counts) if count == 0}, "a block is lost"
        assert all(counts[block] and hashes[block] is None for block in self._invalid), "an invalid block is cached"
        assert all(hashes[block] is not None for block in evictable), "an evictable block has no hash"
        assert all(hashes[block] == each for each, block in self._block_of_hash.items()), "a hash names another block"
