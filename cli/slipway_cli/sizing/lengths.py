"""Distributions of lengths, as `--prompt-tokens` writes them; pure.

A length follows from its place in the distribution, and places from the number of the request, evenly and without
chance: so two runs send the same lengths, and each step has the whole distribution.
"""

import math
import re
from dataclasses import dataclass
from statistics import NormalDist

MOST_TOKENS = 1_000_000
_P95 = NormalDist().inv_cdf(0.95)
# Of a sequence in two dimensions whose points are even in both, and in their pairs: powers of 1/x for x^3 = x + 1.
_STEPS = (0.7548776662466927, 0.5698402909980532)
_TEXT = re.compile(r"([0-9]{1,7})(?:([-~])([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class Lengths:
    """`low` to `high`, evenly; with `skewed` a lognormal distribution with median `low` and 95th percentile `high`."""

    low: int
    high: int
    skewed: bool = False

    def at(self, place: float) -> int:
        """The length at a place of the distribution, from 0 to below 1; at least 1."""
        if not self.skewed:
            return self.low + math.floor(place * (self.high - self.low + 1))
        deviation = math.log(self.high / self.low) / _P95
        drawn = self.low * math.exp(deviation * NormalDist().inv_cdf(min(max(place, 1e-4), 1 - 1e-4)))
        return max(1, min(MOST_TOKENS, round(drawn)))

    @property
    def mean(self) -> float:
        """The mean length."""
        if not self.skewed:
            return (self.low + self.high) / 2
        return self.low * math.exp((math.log(self.high / self.low) / _P95) ** 2 / 2)

    @property
    def longest(self) -> int:
        """The longest length that a request may have."""
        return self.at(1 - 1e-9)

    def __str__(self) -> str:
        if self.skewed:
            return f"{self.low}~{self.high}"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def parse(text: str) -> Lengths:
    """`512`; `128-1024`, evenly; or `300~2000`: lognormal, with this median and this 95th percentile.

    Raises:
        ValueError: it has another form, or the numbers are out of order or range.
    """
    match = _TEXT.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text[:40]!r} is no length: write 512, 128-1024 or 300~2000 (median and 95th percentile)")
    low, high = int(match[1]), int(match[3] or match[1])
    if not 1 <= low <= high <= MOST_TOKENS:
        raise ValueError(f"{text}: the first number is at least 1, and the second not below it nor above {MOST_TOKENS}")
    return Lengths(low, high, match[2] == "~")


def places(request: int) -> tuple[float, float]:
    """Places in the distributions of prompts and of outputs, of the request with this number."""
    return (0.5 + _STEPS[0] * request) % 1.0, (0.5 + _STEPS[1] * request) % 1.0
