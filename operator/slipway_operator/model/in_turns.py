"""Items of several holders in turns (pure)."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import zip_longest
from typing import TypeVar

T = TypeVar("T")

_END = object()


def in_turns(items: Iterable[T], holder: Callable[[T], Hashable]) -> Iterator[T]:
    """Yield the first item of each holder, then the second of each, and so on: who has many delays no other."""
    by_holder: dict[Hashable, list[T]] = {}
    for item in items:
        by_holder.setdefault(holder(item), []).append(item)
    for several in zip_longest(*by_holder.values(), fillvalue=_END):
        yield from (item for item in several if item is not _END)  # type: ignore[misc]
