"""Where entries are kept: in the memory of a gateway, bounded in bytes and time, with a share for each owner."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from slipway_process.fair_memory import FairMemory

from ..limits.budget import MemoryBudget
from .entry import Entry


class EntryStore(Protocol):
    """Keeps entries. A store that cannot be reached has none, and takes none."""

    @property
    def size_bytes(self) -> int:
        """What this gateway keeps there."""
        ...

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """The entries of these keys; None for those that are not kept."""
        ...

    async def put(self, entries: Mapping[bytes, Entry], owner: str, ttl_s: float) -> None:
        """Keeps entries of `owner` by key for `ttl_s` at most; they replace those of these keys."""
        ...

    async def close(self) -> None: ...


class Kept(NamedTuple):
    owner: str
    size_bytes: int
    expires_s: float


class KeptKeys:
    """Keys of what is kept, in the order of their last use (pure): beyond `limit_bytes` the owner with most loses its
    oldest, so that no owner pushes out what others have."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: dict[bytes, Kept] = {}
        self._shares: FairMemory[str, bytes, int] = FairMemory(limit_bytes, int)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        return self._shares.size

    def put(self, key: bytes, kept: Kept) -> list[bytes] | None:
        """Notes what is kept now; returns the keys that leave for it, or None where it has no room at all."""
        former = self.drop(key)
        if kept.size_bytes > self._limit:
            return [key] if former else None
        self._kept[key] = kept
        gone = [name for name, _ in self._shares.put(kept.owner, key, kept.size_bytes)]
        for name in gone:
            del self._kept[name]
        return gone

    def use(self, key: bytes, now_s: float) -> bool:
        """Whether a key is kept still; it is its owner's newest then."""
        kept = self._kept.get(key)
        if kept is None or kept.expires_s <= now_s:
            return False
        self._shares.put(kept.owner, key, kept.size_bytes)
        return True

    def expires_s(self, key: bytes) -> float | None:
        """When a key is no longer kept; None where it is not."""
        kept = self._kept.get(key)
        return kept.expires_s if kept is not None else None

    def drop(self, key: bytes) -> Kept | None:
        """Forgets a key; returns what was kept of it."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._shares.pop(kept.owner, key)
        return kept

    def drop_oldest(self) -> bytes | None:
        """Forgets the oldest key of the owner with most; None where nothing is kept."""
        if not self._kept:
            return None
        key, _ = self._shares.drop()
        del self._kept[key]
        return key


class MemoryStore:
    """Entries in memory. They count in the budget of requests, and leave first when requests need the room."""

    def __init__(self, limit_bytes: int, budget: MemoryBudget, clock: Callable[[], float]) -> None:
        self._limit_bytes, self._keys = limit_bytes, KeptKeys(limit_bytes)
        self._entries: dict[bytes, Entry] = {}
        self._clock = clock
        self.on_left: Callable[[bytes], None] = lambda key: None  # an entry is no longer kept
        self._account = budget.open("")
        budget.caches(self._account, self._reclaim)

    @property
    def size_bytes(self) -> int:
        return self._account.held_bytes

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        return [self._get(key) for key in keys]

    async def put(self, entries: Mapping[bytes, Entry], owner: str, ttl_s: float) -> None:
        for key, entry in entries.items():
            self._put(key, owner, entry, ttl_s)

    def leave(self, size_bytes: int) -> None:
        """Leaves a part of its bytes to copies of what it keeps. Must come before the first entry."""
        self._keys = KeptKeys(self._limit_bytes - size_bytes)

    def use(self, keys: Sequence[bytes]) -> None:
        """Requests got these entries without `get`."""
        for key in keys:
            self._keys.use(key, self._clock())

    def look(self, key: bytes) -> tuple[Entry, float] | None:
        """An entry, which is not used for that, and when it expires; None where it is not kept."""
        expires_s = self._keys.expires_s(key)
        return None if expires_s is None or expires_s <= self._clock() else (self._entries[key], expires_s)

    def _get(self, key: bytes) -> Entry | None:
        if self._keys.use(key, self._clock()):
            return self._entries[key]
        self._forget(key)
        return None

    def _put(self, key: bytes, owner: str, entry: Entry, ttl_s: float) -> None:
        self._forget(key)
        if self._account.grow(entry.size_bytes):
            return
        gone = self._keys.put(key, Kept(owner, entry.size_bytes, self._clock() + ttl_s))
        if gone is None:
            self._account.shrink(entry.size_bytes)
            return
        self._entries[key] = entry
        for name in gone:
            self._drop(name)

    async def close(self) -> None:
        pass

    def _forget(self, key: bytes) -> None:
        if self._keys.drop(key) is not None:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._account.shrink(self._entries.pop(key).size_bytes)
        self.on_left(key)

    def _reclaim(self, wanted_bytes: int) -> int:
        before = self.size_bytes
        while before - self.size_bytes < wanted_bytes and (key := self._keys.drop_oldest()) is not None:
            self._drop(key)
        return before - self.size_bytes
