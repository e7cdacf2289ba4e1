"""Thresholds: how slow is slow? Frozen from stable's own latencies when the warm-up is over, one for each stratum.

A threshold is an upper bound of a histogram's bucket, so that requests above it are counted exactly from counters. The
comparison stays fair whatever it is: both sides are measured by it. A poor one only makes it slower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 100  # below, a p95 is a guess from five requests


@dataclass(frozen=True, slots=True)
class Histogram:
    """Latencies of one stratum: upper bounds of buckets in seconds, rising, and how many fell into each, not cumulated.

    `counts` has one more: those above the last bound.

    Raises:
        ValueError: when the two do not fit.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1 or list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError("a histogram has rising bounds, and one count more than bounds")

    @property
    def samples(self) -> int:
        return sum(self.counts)


def frozen(histograms: Mapping[str, Histogram], quantile: float) -> dict[str, float]:
    """Threshold in seconds of each stratum that stable has enough requests of; the others are not compared.

    A stratum whose quantile lies above the last bound has no threshold either: nothing could be seen to exceed it.
    """
    found = {name: quantile_bound(histogram, quantile) for name, histogram in histograms.items()}
    return {name: bound for name, bound in found.items() if bound is not None}


def quantile_bound(histogram: Histogram, quantile: float) -> float | None:
    """Smallest bound that at least this part of the latencies does not exceed; None where there is none."""
    if histogram.samples < LEAST_SAMPLES:
        return None
    below = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        if below >= quantile * histogram.samples:
            return bound
    return None


def stratum(prompt_tokens: int, streams: bool, edges: Sequence[int] = (1000, 8000)) -> str:
    """Name of the requests that one is compared with: `p<1000,stream`. By what came in, not what came out."""
    size = next((f"p<{edge}" for edge in edges if prompt_tokens < edge), f"p>={edges[-1]}")
    return f"{size},{'stream' if streams else 'whole'}"
