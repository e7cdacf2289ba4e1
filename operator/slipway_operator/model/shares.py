"""Shares of one total: no holder can take all of it, however much it wants (pure)."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import zip_longest
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)
T = TypeVar("T")

_END = object()


class Shares(Generic[H]):
    """How much each holder has of a total.

    A holder may have `part` of what the others leave, and at most `most`. With a half, one that is alone gets half of
    the total, two get a third each, n get 1/(n+1): there is always something left for the next one.
    """

    def __init__(self, total: int, most: int | None = None, part: float = 0.5) -> None:
        self._total, self._most, self._part = total, total if most is None else most, part
        self._held: dict[H, int] = {}
        self._used = 0

    def take(self, holder: H, size: int = 1) -> bool:
        """Take `size`, if the holder's share has room for it."""
        held = self.held(holder)
        if held + size > min(self._most, math.ceil(self._part * (self.free + held))):
            return False
        self.add(holder, size)
        return True

    def add(self, holder: H, size: int = 1) -> None:
        """Count what a holder has already, whatever its share is."""
        self._held[holder] = self.held(holder) + size
        self._used += size

    def give_back(self, holder: H, size: int = 1) -> None:
        """Return what was taken."""
        self._used -= size
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]

    def held(self, holder: H) -> int:
        """Return what a holder has."""
        return self._held.get(holder, 0)

    @property
    def free(self) -> int:
        """What is left of the total."""
        return self._total - self._used


def in_turns(items: Iterable[T], holder: Callable[[T], Hashable]) -> Iterator[T]:
    """Yield the first item of each holder, then the second of each, and so on: who has many delays no other."""
    by_holder: dict[Hashable, list[T]] = {}
    for item in items:
        by_holder.setdefault(holder(item), []).append(item)
    for several in zip_longest(*by_holder.values(), fillvalue=_END):
        yield from (item for item in several if item is not _END)  # type: ignore[misc]
