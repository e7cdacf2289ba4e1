"""Blocks of prompts that each endpoint has seen lately: a bounded guess of what its engine's cache has (pure)."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

# Of all endpoints together, and bytes of memory that one takes: measured, see tests/gateway/test_prefix_index.py.
MAX_BLOCKS, BLOCK_BYTES = 131_072, 320
# Of one endpoint: as llm-d's default, some two million tokens.
MAX_BLOCKS_OF_ENDPOINT = 32_768
# Of an endpoint's blocks that one owner can have while others have some, as a part of all.
OWNER_SHARE = 2


class _Seen:
    """Blocks of one endpoint, by owner; owners and their blocks in the order of their last use."""

    def __init__(self) -> None:
        self.by_owner: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()
        self.count = 0

    def touch(self, owner: str, hashes: Sequence[bytes]) -> list[bytes]:
        """Notes a use of these blocks; returns those that are new."""
        blocks = self.by_owner.get(owner)
        if blocks is None:
            blocks = self.by_owner[owner] = OrderedDict()
        self.by_owner.move_to_end(owner)
        before = len(blocks)
        new = [block for block in hashes if block not in blocks]
        # The last block first: without its predecessors a block is of no use, so they are forgotten after it.
        for block in reversed(hashes):
            blocks[block] = None
            blocks.move_to_end(block)
        self.count += len(blocks) - before
        return new

    def shrink(self, owner: str, most: int) -> Iterator[bytes]:
        """Forgets blocks until `most` are left, and half of these for `owner` where others have some; yields them."""
        share = most // OWNER_SHARE
        while self.count > most or (len(self.by_owner) > 1 and len(self.by_owner.get(owner, ())) > share):
            over = len(self.by_owner.get(owner, ())) > share
            last = owner if over else next(iter(self.by_owner))
            blocks = self.by_owner[last]
            block, _ = blocks.popitem(last=False)
            self.count -= 1
            if not blocks:
                del self.by_owner[last]
            yield block


class PrefixIndex:
    """Blocks by endpoint. `max_blocks`: of all endpoints together, which share them equally."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._seen: dict[str, _Seen] = {}
        self.urls: frozenset[str] = frozenset()  # of the last `follow`
        self._most = MAX_BLOCKS_OF_ENDPOINT
        # By block: the endpoints that have it, as bits of one number. A walk down a prompt is one look-up for each
        # block, however many endpoints there are.
        self._holders: dict[bytes, int] = {}
        self._bits: dict[str, int] = {}
        self._urls: dict[int, str] = {}

    @property
    def size(self) -> int:
        """Blocks of all endpoints."""
        return sum(seen.count for seen in self._seen.values())

    def follow(self, urls: Collection[str]) -> None:
        """Adopts the endpoints that there are: others are forgotten."""
        self.urls = frozenset(urls)
        for url in self._seen.keys() - self.urls:
            self.forget(url)
        self._most = min(MAX_BLOCKS_OF_ENDPOINT, self._max_blocks // max(1, len(urls)))
        for url, seen in self._seen.items():
            self._drop(url, seen.shrink("", self._most))

    def forget(self, url: str) -> None:
        """An endpoint's cache is gone."""
        if (seen := self._seen.pop(url, None)) is not None:
            for blocks in seen.by_owner.values():
                self._drop(url, blocks)
            del self._urls[self._bits.pop(url)]

    def add(self, url: str, owner: str, hashes: Sequence[bytes]) -> None:
        """An endpoint got a prompt with these blocks. Only the endpoints of the last `follow` have a share."""
        hashes = hashes[: self._most // OWNER_SHARE]
        if not hashes or url not in self.urls:
            return
        seen = self._seen.get(url)
        if seen is None:
            seen = self._seen[url] = _Seen()
            bit = self._bits[url] = _lowest_free(self._urls)
            self._urls[bit] = url
        bit = self._bits[url]
        for block in seen.touch(owner, hashes):
            self._holders[block] = self._holders.get(block, 0) | bit
        self._drop(url, seen.shrink(owner, self._most))

    def matched(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """How many blocks each endpoint has from the first one on; those that have none are left out."""
        found: dict[str, int] = {}
        holders = self._holders.get(hashes[0], 0) if hashes else 0
        depth = 1
        while holders and depth < len(hashes):
            deeper = self._holders.get(hashes[depth], 0) & holders
            self._note(found, holders ^ deeper, depth)
            holders = deeper
            depth += 1
        self._note(found, holders, depth)
        return found

    def _note(self, found: dict[str, int], bits: int, depth: int) -> None:
        while bits:
            lowest = bits & -bits
            found[self._urls[lowest]] = depth
            bits ^= lowest

    def _drop(self, url: str, blocks: Collection[bytes] | Iterator[bytes]) -> None:
        bit = self._bits.get(url, 0)
        for block in blocks:
            left = self._holders.get(block, 0) & ~bit
            if left:
                self._holders[block] = left
            else:
                self._holders.pop(block, None)


def _lowest_free(taken: Collection[int]) -> int:
    bit = 1
    while bit in taken:
        bit <<= 1
    return bit
