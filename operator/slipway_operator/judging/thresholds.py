"""Latency thresholds, one for each stratum: from stable's own latencies.

A threshold is the upper bound of a histogram bucket, so counters give the exact number of requests above it. The
comparison is fair with any threshold, because it applies to both sides. A poor one only makes the judge slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 100  # with fewer, a p95 is an estimate from five requests


@dataclass(frozen=True, slots=True)
class Histogram:
    """Latencies of one stratum: rising upper bounds of buckets in seconds, and the count in each, not cumulated.

    `counts` has one more element, for latencies above the last bound.

    Raises:
        ValueError: when the two do not match.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1 or list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError("a histogram has rising bounds, and one count more than bounds")

    @property
    def samples(self) -> int:
        return sum(self.counts)


def median(histogram: Histogram) -> float | None:
    """The median by linear interpolation in its bucket; None without latencies, or above the last bound."""
    half, below, lower = histogram.samples / 2, 0, 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        if count and below + count >= half:
            return lower + (bound - lower) * (half - below) / count
        below, lower = below + count, bound
    return None


def quantile_bound(histogram: Histogram, quantile: float) -> float | None:
    """Smallest bound that at least the share `quantile` of the latencies does not exceed; None if there is none.

    A stratum with too few latencies has no threshold and is not compared, nor one whose quantile lies above the last
    bound: no bucket would count what exceeds it.
    """
    if histogram.samples < LEAST_SAMPLES:
        return None
    below = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        if below >= quantile * histogram.samples:
            return bound
    return None


def stratum(prompt_tokens: int, streams: bool, edges: Sequence[int] = (1000, 8000)) -> str:
    """Name of a request's stratum, such as `p<1000,stream`: from the request, not from its response."""
    size = next((f"p<{edge}" for edge in edges if prompt_tokens < edge), f"p>={edges[-1]}")
    return f"{size},{'stream' if streams else 'whole'}"
