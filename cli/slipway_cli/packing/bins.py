"""Packs pods into GPUs of one type: vector bin packing in memory and compute, deterministic; pure.

First-fit decreasing by several measures, then repair: the emptiest GPUs are emptied into the others by moves and by
swaps. Chekuri and Khanna: no polynomial rule is within a constant of the optimum in every case; tests compare it with
a solver.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

_EPSILON = 1e-9
_ROUNDS = 400  # of repair, each for one GPU
MOST_PODS = 5_000
# Comparisons of a pod with a GPU, some 5 million of which take a second: for one packing, and for all of a plan.
MOST_OF_PACKING, MOST_OF_PLAN = 1_000_000, 20_000_000


@dataclass(slots=True)
class Effort:
    """Comparisons that are left. Unlike time it makes the same plan everywhere."""

    left: int = MOST_OF_PACKING


@dataclass(frozen=True, slots=True)
class Item:
    """A pod: the share of a GPU's memory and of its compute, both above 0 and at most 1."""

    name: str
    memory: float
    compute: float

    @property
    def size(self) -> float:
        """The larger of both shares."""
        return max(self.memory, self.compute)


@dataclass(slots=True)
class Bin:
    """A GPU, and what is on it."""

    items: list[Item] = field(default_factory=list)
    memory: float = 0.0
    compute: float = 0.0

    def fits(self, item: Item) -> bool:
        """Whether there is room for a pod."""
        return self.memory + item.memory <= 1 + _EPSILON and self.compute + item.compute <= 1 + _EPSILON

    def add(self, item: Item) -> None:
        """Put a pod on it."""
        self.items.append(item)
        self.memory, self.compute = self.memory + item.memory, self.compute + item.compute

    def remove(self, item: Item) -> None:
        """Take a pod off it."""
        self.items.remove(item)
        self.memory, self.compute = self.memory - item.memory, self.compute - item.compute

    @property
    def fill(self) -> float:
        """How full it is: both shares together."""
        return self.memory + self.compute


_ORDERS: tuple[Callable[[Item], float], ...] = (
    lambda item: item.size,
    lambda item: item.memory + item.compute,
    lambda item: item.memory,
    lambda item: item.compute,
    lambda item: item.memory * item.compute,
)


def pack(items: Sequence[Item], effort: Effort | None = None) -> list[Bin]:
    """The fewest GPUs that are found. Raises ValueError for a pod that no GPU holds, or too many pods.

    `effort`: what it may take, beyond which it looks for no better packing; it is the rest of it afterwards.
    """
    if len(items) > MOST_PODS:
        raise ValueError(f"{len(items)} pods are more than the {MOST_PODS} that are packed")
    if unfit := next((item for item in items if item.size > 1 + _EPSILON), None):
        raise ValueError(f"a pod of {unfit.name} does not fit on an empty GPU")
    effort = effort or Effort()
    return min((repaired(each, effort) for each in _first_fits(items, effort)), key=len)


def bound(items: Sequence[Item]) -> float:
    """GPUs that no packing does without: the sums of both shares, and pods of which no two fit together."""
    large = sum(item.size > 0.5 + _EPSILON for item in items)
    sums = (sum(item.memory for item in items), sum(item.compute for item in items))
    return max(*sums, float(large))


def _first_fits(items: Sequence[Item], effort: Effort) -> Iterator[list[Bin]]:
    """At least one."""
    for number, (order, tightest) in enumerate(product(_ORDERS, (False, True))):
        if number and effort.left <= 0:
            return
        ordered = sorted(items, key=lambda item: (-order(item), item.name))
        yield _fitted(ordered, effort, tightest=tightest)


def _fitted(ordered: Sequence[Item], effort: Effort, *, tightest: bool) -> list[Bin]:
    """Into the first GPU with room, or into the fullest one."""
    bins: list[Bin] = []
    for item in ordered:
        effort.left -= len(bins)
        room = [each for each in bins if each.fits(item)]
        if not room:
            room = [Bin()]
            bins.append(room[0])
        (max(room, key=lambda each: each.fill) if tightest else room[0]).add(item)
    return bins


def repaired(bins: list[Bin], effort: Effort) -> list[Bin]:
    """Empty GPUs one after the other, the emptiest first, while that works and effort is left."""
    tried: set[int] = set()
    for _ in range(_ROUNDS):
        left = [each for each in bins if id(each) not in tried]
        if not left or effort.left <= 0:
            break
        emptiest = min(left, key=lambda each: each.fill)
        others = [each for each in bins if each is not emptiest]
        if all(_moved(item, emptiest, others, effort) for item in sorted(emptiest.items, key=lambda item: -item.size)):
            bins, tried = others, set()
        else:
            tried.add(id(emptiest))
    return bins


def _moved(item: Item, source: Bin, others: Sequence[Bin], effort: Effort) -> bool:
    """Move a pod to another GPU, in place of a smaller one that goes to a third one if need be."""
    effort.left -= len(others)
    for target in sorted(others, key=lambda each: -each.fill):
        if target.fits(item):
            source.remove(item)
            target.add(item)
            return True
    for target in others:
        for smaller in sorted(target.items, key=lambda each: each.size):
            if smaller.size >= item.size or effort.left <= 0:
                break
            effort.left -= len(others)
            target.remove(smaller)
            third = next((each for each in others if each is not target and each.fits(smaller)), None)
            if third is not None and target.fits(item):
                third.add(smaller)
                source.remove(item)
                target.add(item)
                return True
            target.add(smaller)
    return False
