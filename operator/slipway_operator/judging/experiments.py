"""Always-valid statistics of the arms of an Experiment: means and their differences, and whether units are split right.

Each may be read after each unit, at any time: the probability that the true mean is ever outside of its interval is
bounded, and so is that of a mismatch which is reported where there is none.

The interval of a mean inverts an e-process, the likelihood of the values under a Beta(1/2, 1/2) mixture of rates
divided by that under the mean (Robbins, "Statistical methods related to the law of the iterated logarithm", 1970). It
is exact for values that are 0 or 1. For others from 0 to 1 it holds too: with a rate q in place of the mean m, the
factor of a value x is convex in x, so it is at most x*q/m + (1-x)*(1-q)/(1-m), whose expected value is 1.

Gateways that do not count units together may each count the same unit. Then each of them has a test of its own, with a
part 1/(k*(k+1)) of the error rate for the k-th one, and what any of them proves is proved.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from slipway_operator.judging.evidence import log_mean_exp
from slipway_operator.judging.sample_ratio import LOG_MISMATCH, log_mismatch_evidence

ERROR_RATE = 0.05  # with which any interval of an experiment ever misses its value
_HALVINGS = 40
_LOG_BETA = 2 * math.lgamma(0.5) - math.lgamma(1.0)  # ln B(1/2, 1/2)


class Values(NamedTuple):
    """Values from 0 to 1 of so many units."""

    units: int
    sum: float

    @property
    def mean(self) -> float:
        """The mean; there must be a unit."""
        return self.sum / self.units


class Interval(NamedTuple):
    """Lower and upper end."""

    lower: float
    upper: float

    def minus(self, other: "Interval") -> "Interval":
        """All differences of a value in this one and a value in the other one."""
        return Interval(self.lower - other.upper, self.upper - other.lower)

    def and_(self, other: "Interval") -> "Interval":
        """What is in both. Where that is nothing, the ends meet in the middle."""
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        middle = (lower + upper) / 2
        return Interval(lower, upper) if lower <= upper else Interval(middle, middle)


UNKNOWN = Interval(0.0, 1.0)


def part_of(rank: int, error_rate: float) -> float:
    """The part of an error rate that the counts of one gateway have. `rank`: from 1, in the order of arrival."""
    return error_rate / (rank * (rank + 1))


def mean_interval(values: Values, error_rate: float) -> Interval:
    """A confidence sequence of the mean of values from 0 to 1, at a time."""
    if values.units <= 0:
        return UNKNOWN
    total = min(max(values.sum, 0.0), float(values.units))
    rest, needed = values.units - total, math.log(1 / error_rate)
    mixture = (
        math.lgamma(total + 0.5) + math.lgamma(rest + 0.5) - math.lgamma(values.units + 1.0) - _LOG_BETA
    )  # ln of the likelihood under the mixture

    def is_excluded(mean: float) -> bool:
        likelihood = (total * math.log(mean) if total else 0.0) + (rest * math.log1p(-mean) if rest else 0.0)
        return mixture - likelihood >= needed

    mean = total / values.units
    lower = _end(is_excluded, inside=mean, outside=0.0) if total else 0.0
    upper = _end(is_excluded, inside=mean, outside=1.0) if rest else 1.0
    return Interval(lower, upper)


def log_split_evidence(units: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """ln of the evidence that units are not split by the weights, which are percent: the mean over arms of the evidence
    about the arm and all others together."""
    total = sum(units.get(arm, 0) for arm in weights)
    logs = [
        log_mismatch_evidence([units.get(arm, 0)], [total - units.get(arm, 0)], [weight / 100])
        for arm, weight in weights.items()
        if 0 < weight < 100
    ]
    return float(log_mean_exp(logs)) if logs else 0.0


def is_mismatch(groups: Mapping[int, Mapping[str, int]], weights: Mapping[str, int]) -> bool:
    """Whether the units of any gateway contradict the weights; wrong with a probability of a thousandth at most.

    `groups`: units by arm, by the rank of their gateways.
    """
    listed = groups.values()
    stray = any(units.get(arm, 0) for units in listed for arm, weight in weights.items() if weight == 0)
    return stray or any(
        log_split_evidence(units, weights) >= LOG_MISMATCH - math.log(part_of(rank, 1.0))
        for rank, units in groups.items()
    )


def _end(is_excluded: Callable[[float], bool], *, inside: float, outside: float) -> float:
    """The end of an interval between a value in it and one that is not."""
    inside = min(max(inside, np.nextafter(0.0, 1.0)), np.nextafter(1.0, 0.0))
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        if is_excluded(middle):
            outside = middle
        else:
            inside = middle
    return float(outside)
