"""Evidence that a share has changed, watched for as long as a revision serves: an e-detector in calendar time (pure).

A *test* says that one kind of observation, such as a wrong label, has a share of at most `limit`. Each of its bets
multiplies its stake by the likelihood ratio of an observation under a larger share and under the limit. While the
share is at most the limit, given all that was observed before, no stake is expected to grow. Stakes begin with nothing,
and `invested` is added to them at each reading: in all, `falseAlarmsPerYear` in a year. An alarm is raised when all of
them together reach 1, and takes them. So stakes and alarms together are never expected to be more than what was
invested: **the expected number of false alarms in any time is at most the rate times that time**, however many
observations come and however often it is read. This is the Shiryaev-Roberts e-detector of Shin, Ramdas and Rinaldo
("E-detectors: a nonparametric framework for sequential change detection", 2024), whose bets begin at readings and with
stakes by the time since the last one, in place of a stake of 1 with each observation.

Its state is one integer for each bet: the logarithm of the stake in units of 1e-9, rounded down. So it is the same
after it was written and read, and rounding never favours an alarm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNIT = 1e-9  # of the logarithms
# Alternatives of a test, as multiples of the odds at its limit: shares a little above it, and far above it.
LABEL_FACTORS = (1.2, 1.5, 2.0, 4.0, 16.0)
BIN_FACTORS = (1.3, 2.0, 6.0)
_LARGEST = 40.0  # a logarithm of a stake; an alarm is raised long before

Stakes = tuple[int, ...]  # of all bets of all tests in their order; empty: nothing is invested yet


@dataclass(frozen=True, slots=True)
class ShareTest:
    """That the share of the observations in `place` is at most `limit`; `falling`: that of all others is.

    `limit` is above 0 and below 1.
    """

    place: int
    limit: float
    falling: bool = False

    def events(self, counts: Sequence[int]) -> int:
        """Observations that speak against it."""
        inside = counts[self.place] if self.place < len(counts) else 0
        return sum(counts) - inside if self.falling else inside

    def holds(self, counts: Sequence[int]) -> bool:
        """Whether the share among these observations is at most the limit."""
        return self.events(counts) <= self.limit * sum(counts)


def moved(
    stakes: Stakes, tests: Sequence[ShareTest], factors: Sequence[float], counts: Sequence[int], invested: float
) -> Stakes:
    """The stakes after these observations, and after `invested` was added to them in equal parts.

    The order of the observations makes no difference. What is invested now is staked on later ones only.
    """
    bets = len(tests) * len(factors)
    # A status is written by others too: stakes of another number of bets count as lost.
    logs = [UNIT * one for one in stakes] if len(stakes) == bets else [-math.inf] * bets
    added = math.log(invested / bets) if invested > 0 else -math.inf
    ratios = [ratio for test in tests for ratio in _log_ratios(test, factors, counts)]
    results = [_log_sum(log + ratio, added) for log, ratio in zip(logs, ratios, strict=True)]
    if min(results, default=-math.inf) == -math.inf:
        return ()
    return tuple(math.floor(min(one, _LARGEST) / UNIT) for one in results)


def evidence(stakes: Stakes) -> float:
    """All stakes together: an alarm is raised at 1."""
    return sum(math.exp(min(UNIT * one, _LARGEST)) for one in stakes)


def upper_bound(events: int, total: int, level: float) -> float:
    """A share that the true one exceeds with a probability of at most `level`, by Chernoff's bound; total above 0."""
    share, most = events / total, -math.log(level) / total
    low, high = share, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(share, middle) < most else (low, middle)
    return high


def _log_ratios(test: ShareTest, factors: Sequence[float], counts: Sequence[int]) -> list[float]:
    events, total = test.events(counts), sum(counts)
    alternatives = (_alternative(test.limit, factor) for factor in factors)
    return [
        events * math.log(share / test.limit) + (total - events) * math.log((1 - share) / (1 - test.limit))
        for share in alternatives
    ]


def _alternative(limit: float, factor: float) -> float:
    odds = factor * limit / (1 - limit)
    return odds / (1 + odds)


def _log_sum(one: float, other: float) -> float:
    """The logarithm of the sum of two numbers that are given by theirs."""
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _divergence(share: float, other: float) -> float:
    """Kullback-Leibler divergence of two coins."""
    if other >= 1.0:
        return math.inf if share < 1.0 else 0.0
    heads = share * math.log(share / other) if share else 0.0
    return heads + ((1 - share) * math.log((1 - share) / (1 - other)) if share < 1.0 else 0.0)
