"""Which share of the requests misses its objective at which load of a pod, and where that share is too large; pure.

Loads fall into bins, each 6 % wider than the one before. A bin keeps the mean load, and how many requests counted and
missed; beyond MOST_REQUESTS older ones fade, so a bin follows its pods. Between bins the share only grows: violators
are pooled. The load at which the share crosses the budget is what a pod carries.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

RATIO = 1.06
MOST_BINS = 48
MOST_REQUESTS = 4_000.0  # that count in one bin
LEAST_REQUESTS = 30.0  # of a pool, before it is evidence
_Z = 1.64  # of a one-sided bound of 95 %
_LEAST_LOAD, _LARGEST_LOAD = 1e-3, 1e9


@dataclass(frozen=True, slots=True)
class Bin:
    """What was counted at about one load."""

    load: float  # mean
    requests: float
    missed: float

    @property
    def share(self) -> float:
        """Share of the requests that missed."""
        return self.missed / self.requests

    def bound(self, z: float) -> float:
        """Wilson's bound of the share: an upper one for a positive z."""
        n, p = self.requests, self.share
        middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle + spread) / (1 + z * z / n)

    def plus(self, other: "Bin") -> "Bin":
        """Both together."""
        requests = self.requests + other.requests
        load = (self.load * self.requests + other.load * other.requests) / requests
        return Bin(load, requests, self.missed + other.missed)


@dataclass(frozen=True, slots=True)
class Crossing:
    """The load at which the budget is crossed, with bounds; `open`: it was never crossed, so it is at least `load`."""

    load: float
    low: float
    high: float
    open: bool


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Bins by number; the number of a bin follows from its load."""

    bins: Mapping[int, Bin] = field(default_factory=dict)

    def add(self, load: float, requests: float, missed: float) -> "LoadCurve":
        """Requests of a pod over some seconds at this load."""
        if not _LEAST_LOAD <= load <= _LARGEST_LOAD or requests <= 0 or not 0 <= missed <= requests:
            return self
        number, fresh = _number(load), Bin(load, requests, missed)
        present = self.bins.get(number)
        renewed = _faded(present).plus(fresh) if present else fresh
        bins = {**self.bins, number: renewed}
        if len(bins) > MOST_BINS:
            del bins[min(bins, key=lambda each: (each == number, bins[each].requests))]
        return LoadCurve(bins)

    def crossing(self, budget: float) -> Crossing | None:
        """Where the share of missed requests exceeds `budget`, from 0 to 1; None without evidence."""
        pooled = _pooled(self.bins[number] for number in sorted(self.bins))
        pools = [pool for pool in pooled if pool.requests >= LEAST_REQUESTS]
        if not pools:
            return None
        at = _crossed(pools, [pool.share for pool in pools], budget)
        if at is None:
            return Crossing(pools[-1].load, pools[-1].load, math.inf, open=True)
        low = _crossed(pools, [pool.bound(_Z) for pool in pools], budget)
        high = _crossed(pools, [pool.bound(-_Z) for pool in pools], budget)
        return Crossing(at, min(at, low or at), math.inf if high is None else max(at, high), open=False)

    def numbers(self) -> Iterator[float]:
        """Three numbers for each bin, for a status."""
        for number in sorted(self.bins):
            present = self.bins[number]
            yield from (present.load, present.requests, present.missed)

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "LoadCurve":
        """From the numbers of a status; what is no bin is left out."""
        curve = cls()
        for load, requests, missed in list(zip(*[iter(numbers)] * 3, strict=False))[:MOST_BINS]:
            if 0 < requests < _LARGEST_LOAD and 0 <= missed <= requests:
                kept = _faded(Bin(load, requests, missed))
                curve = curve.add(kept.load, kept.requests, kept.missed)
        return curve


def _number(load: float) -> int:
    return math.floor(math.log(load) / math.log(RATIO))


def _faded(present: Bin) -> Bin:
    if present.requests <= MOST_REQUESTS:
        return present
    share = MOST_REQUESTS / present.requests
    return Bin(present.load, MOST_REQUESTS, present.missed * share)


def _pooled(bins: Iterable[Bin]) -> list[Bin]:
    """Adjacent violators are pooled, so that the share does not fall where the load grows; so are bins of few."""
    pools: list[Bin] = []
    for present in bins:
        pools.append(present)
        while len(pools) > 1 and (pools[-2].share > pools[-1].share or pools[-2].requests < LEAST_REQUESTS):
            last = pools.pop()
            pools[-1] = pools[-1].plus(last)
    return pools


def _crossed(pools: Sequence[Bin], shares: Sequence[float], budget: float) -> float | None:
    """The load at which a line through the shares crosses the budget; None where it does not."""
    before_load, before = 0.0, 0.0
    for pool, share in zip(pools, shares, strict=True):
        if share > budget:
            part = (budget - before) / (share - before) if share > before else 1.0
            return before_load + max(0.0, part) * (pool.load - before_load)
        before_load, before = pool.load, max(before, share)
    return None
