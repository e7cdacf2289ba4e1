"""A bounded memory that no holder fills alone: what one has too much of leaves first, not what others have (pure)."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

H = TypeVar("H", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SLACK = 64  # outdated entries of the heap, beside as many as there are holders


def _one(value: Any) -> int:
    return 1


class FairMemory(Generic[H, K, V]):
    """Items of holders, the oldest first: beyond `limit` of all, the holder with most loses its oldest."""

    def __init__(self, limit: int, size_of: Callable[[V], int] = _one) -> None:
        self._limit, self._size_of = limit, size_of
        self.size = 0
        # Ordered ones: the first key of a plain dict whose first keys were removed is searched for.
        self._items: dict[H, OrderedDict[K, V]] = {}
        self._sizes: dict[H, int] = {}
        # The largest first. Each holder has an entry of at least its size, which is known as its bound; one with
        # another size is outdated. So a holder that loses what it gains changes nothing here.
        self._heap: list[tuple[int, int, H]] = []
        self._bounds: dict[H, int] = {}
        self._sequence = 0  # of two holders of one size, the one that reached it first comes first

    def put(self, holder: H, key: K, value: V) -> list[tuple[K, V]]:
        """Keep an item, as the holder's newest; returns those that are dropped for it."""
        items = self._items.get(holder)
        if items is None:
            items = self._items[holder] = OrderedDict()
        by = self._size_of(value)
        if key in items:
            by -= self._size_of(items.pop(key))
        items[key] = value
        self.size += by
        self._sizes[holder] = size = self._sizes.get(holder, 0) + by
        if size > self._bounds.get(holder, 0):
            self._push(holder, size)
        dropped = []
        while self.size > self._limit:
            dropped.append(self.drop())
        return dropped

    def get(self, holder: H, key: K) -> V | None:
        """Return an item; None when it is not kept."""
        items = self._items.get(holder)
        return items.get(key) if items else None

    def pop(self, holder: H, key: K) -> V | None:
        """Drop an item, and return it; None when it was not kept."""
        if key in self._items.get(holder, ()):
            return self._drop(holder, key)
        return None

    def drop(self) -> tuple[K, V]:
        """Drop the oldest item of the holder with most, and return it; there must be one."""
        while True:
            bound, _, holder = self._heap[0]
            held = self._sizes.get(holder, 0)
            if held == -bound:
                oldest = next(iter(self._items[holder]))
                return oldest, self._drop(holder, oldest)
            if held:
                self._sequence += 1
                heapq.heapreplace(self._heap, (-held, self._sequence, holder))
                self._bounds[holder] = held
            else:
                heapq.heappop(self._heap)
                self._bounds.pop(holder, None)

    def of(self, holder: H) -> dict[K, V]:
        """Return the items of a holder, the oldest first."""
        return dict(self._items.get(holder, ()))

    def keys(self) -> list[K]:
        """Return the keys of all items."""
        return [key for items in self._items.values() for key in items]

    def _drop(self, holder: H, key: K) -> V:
        value = self._items[holder].pop(key)
        size = self._size_of(value)
        self.size -= size
        self._sizes[holder] -= size
        if not self._items[holder]:
            del self._items[holder], self._sizes[holder]
        return value

    def _push(self, holder: H, size: int) -> None:
        self._sequence += 1
        self._bounds[holder] = size
        heapq.heappush(self._heap, (-size, self._sequence, holder))
        if len(self._heap) > 2 * len(self._sizes) + _SLACK:
            self._bounds = dict(self._sizes)
            self._heap = [(-held, place, name) for place, (name, held) in enumerate(self._sizes.items())]
            heapq.heapify(self._heap)
