"""The KV cache's blocks: who holds which, and which of them still hold the beginning of a text seen before.

Pure bookkeeping. A full block is known by a digest of all tokens up to its end, so that equal beginnings share blocks.
"""

import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

DIGEST_BYTES = 16
MAX_ROOTS = 10_000  # of tenants, that are remembered


class Digests:
    """Chained, keyed digests of full blocks.

    The key is this process's own and random: nobody can make up a text that collides. The root holds what must not be
    shared across: each field goes in with its name, so that no two of them can be mistaken for each other.
    """

    def __init__(self, block_tokens: int, key: bytes | None = None) -> None:
        self._block_tokens = block_tokens
        self._key = key or secrets.token_bytes(32)

    def root(self, **fields: str) -> bytes:
        """The digest before the first block, for instance root(salt="tenant", adapter="")."""
        text = b"".join(len(part).to_bytes(4, "big") + part for item in sorted(fields.items()) for part in _bytes(item))
        return self._digest(text)

    def chain(self, parent: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
        """One digest for each full block of `tokens`."""
        size = self._block_tokens
        for start in range(0, len(tokens) - size + 1, size):
            words = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + size])
            parent = self._digest(parent + words)
            yield parent

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=self._key).digest()


def _bytes(item: tuple[str, str]) -> tuple[bytes, bytes]:
    return item[0].encode(), item[1].encode()


class Roots:
    """What the digests of each tenant's blocks begin with. `scope`: revision, dtype and adapter of the model."""

    def __init__(self, digests: Digests, scope: str) -> None:
        self._digests, self._scope = digests, scope
        self._known: dict[str, bytes] = {}

    def of(self, tenant: str) -> bytes:
        if tenant not in self._known:
            if len(self._known) >= MAX_ROOTS:
                self._known.clear()
            self._known[tenant] = self._digests.root(scope=self._scope, tenant=tenant)
        return self._known[tenant]


class Blocks:
    """A fixed number of blocks, each free, held by one or more sequences, or kept for whoever begins alike."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._digests: list[bytes | None] = [None] * count
        self._known: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()  # without a holder, oldest use first
        self._suspect: set[int] = set()  # held, and perhaps with numbers that are not finite
        self._spoiled: list[int] = []  # free, and to be cleared before they are taken

    @property
    def available(self) -> int:
        """Blocks that `take` could give now."""
        return len(self._free) + len(self._kept)

    @property
    def held(self) -> int:
        return self.count - self.available

    def take(self) -> int:
        """A block for new content; the least recently used text is forgotten for it.

        Raises:
            IndexError: when all blocks are held. Callers look at `available` first.
        """
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._kept.popitem(last=False) if self._kept else _none_left()
            self.forget([block])
        self._holders[block] = 1
        return block

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known beginning. They are not held yet."""
        found = []
        for digest in digests:
            block = self._known.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each."""
        for block in blocks:
            self._kept.pop(block, None)
            self._holders[block] += 1

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of them count as available now."""
        return sum(block in self._kept for block in blocks)

    def name(self, block: int, digest: bytes) -> None:
        """The block is full: whoever begins alike may share it. One that is known by the same name already stays it."""
        if digest not in self._known and self._digests[block] is None and block not in self._suspect:
            self._known[digest] = block
            self._digests[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each. The ends of texts are forgotten before their beginnings."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._suspect:
                    self._suspect.remove(block)
                    self._spoiled.append(block)
                if self._digests[block] is None:
                    self._free.append(block)
                else:
                    self._kept[block] = None

    def suspect(self, blocks: Iterable[int]) -> None:
        """They may hold numbers that are not finite: nobody else shares them from now on, and when their last holder is
        gone they are to be cleared. Until then they stay as they are: others may be reading them."""
        blocks = list(blocks)
        self.forget(blocks)
        self._suspect.update(blocks)

    def take_spoiled(self) -> list[int]:
        """Suspect blocks that nobody holds any more, each once: to be cleared before any other block is taken."""
        spoiled, self._spoiled = self._spoiled, []
        return spoiled

    def freed_without(self, holders: Iterable[Sequence[int]]) -> set[int]:
        """The blocks that nobody else than these would hold."""
        counts = Counter(block for blocks in holders for block in blocks)
        return {block for block, count in counts.items() if count == self._holders[block]}

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError when the books do not balance. For tests, and for an engine that is idle."""
        counts = [0] * self.count
        for blocks in holders:
            for block in blocks:
                counts[block] += 1
        assert counts == self._holders, "a block is held by nobody who knows, or released too often"
        free, kept = set(self._free), set(self._kept)
        assert len(free) == len(self._free) and not free & kept, "a block is free twice"
        assert free | kept == {block for block, held in enumerate(counts) if held == 0}, "a block is lost"
        assert all(counts[block] and self._digests[block] is None for block in self._suspect), "a suspect is shared"
        assert all(self._digests[block] is not None for block in kept), "a block without a name is kept"
        assert all(self._digests[block] == digest for digest, block in self._known.items()), "a name is wrong"

    def forget(self, blocks: Iterable[int]) -> None:
        """Nobody else shares them any more. They must be held, or about to be."""
        for block in blocks:
            digest, self._digests[block] = self._digests[block], None
            if digest is not None:
                del self._known[digest]


def _none_left() -> tuple[int, None]:
    raise IndexError("all blocks are held")
