"""Distributions of latencies: how often is a request slower than stable's p95, when canary is so much slower?"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

SLOW = 0.05  # of stable's requests are slower than its p95
TAIL_PART, TAIL_MEAN = 0.05, 1 / 1.5  # a Pareto tail of index 1.5 is an exponential one in log latency


@dataclass(frozen=True)
class Shape:
    """Log latency: normal with deviation `sigma`; with `tail`, one request of twenty has a Pareto factor on top."""

    sigma: float
    tail: bool = False

    @property
    def spread(self) -> float:
        """Standard deviation of log latency."""
        extra = TAIL_PART * 2 * TAIL_MEAN**2 - (TAIL_PART * TAIL_MEAN) ** 2 if self.tail else 0.0
        return math.sqrt(self.sigma**2 + extra)


@cache
def slow(shape: Shape, times: float) -> float:
    """Part of the requests above stable's p95 when all latencies are `times` as long."""
    return _above(shape, _p95(shape) - math.log(times))


@cache
def _p95(shape: Shape) -> float:
    low, high = -10.0, 20.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _above(shape, middle) > SLOW else (low, middle)
    return (low + high) / 2


def _above(shape: Shape, log_latency: float) -> float:
    body = _normal_above(log_latency / shape.sigma)
    if not shape.tail:
        return body
    parts = (np.arange(4000) + 0.5) / 4000
    factors = -TAIL_MEAN * np.log1p(-parts)
    tail = float(np.mean([_normal_above((log_latency - extra) / shape.sigma) for extra in factors]))
    return (1 - TAIL_PART) * body + TAIL_PART * tail


def _normal_above(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))
