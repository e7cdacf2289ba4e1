"""Evidence that the distributions differ at all: a two-sample test that may be read after each prediction.

If both sides predict alike, canary has the same part of the predictions in every bin. Given the bin of a prediction,
its side is a coin; the evidence is the likelihood of these coins under a mixture of ratios, one for each bin, divided
by the largest likelihood that one common ratio has. So a canary that answers less often does not differ, and the
quotient is at most an e-process whatever that ratio is (Wasserman, Ramdas and Balakrishnan, "Universal inference",
2020).
"""

import math
from collections.abc import Sequence

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers, log_mean_exp

# Alternatives: canary's ratio in a bin is log-normal, independent in each bin, with one of these spreads.
SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
# Five points and weights in place of the integral (Gauss and Hermite).
_NODES = ((-2.8570, 0.011257), (-1.3556, 0.222076), (0.0, 0.533334), (1.3556, 0.222076), (2.8570, 0.011257))
_PRIOR = np.array([weight for _, weight in _NODES])
_PRIOR = _PRIOR / _PRIOR.sum()
_WIDEST, _STEPS = 14.0, 60  # of the search for the common ratio: its logarithm, and halvings
_FROM_THE_START = 0.5


def log_difference(canary: Numbers, stable: Numbers, weights: Numbers, clocks: Sequence[int]) -> Floats:
    """ln of the evidence, shape (...), from counts of shape (..., epochs, bins) and the clock epoch of each epoch.

    A shift may begin at any clock epoch: stakes are spread over their starts as in `evidence.log_over_starts`.
    """
    own, other = np.asarray(canary, dtype=np.float64), np.asarray(stable, dtype=np.float64)
    fractions, times = np.asarray(weights, dtype=np.float64), np.asarray(clocks)
    starts = sorted(set(clocks))
    since = [times >= start for start in starts]
    logs = [_since(own[..., at, :], other[..., at, :], fractions[at]) for at in since]
    stakes = [_FROM_THE_START, *((1 - _FROM_THE_START) / (at * (at + 1)) for at in range(1, len(starts)))]
    return log_mean_exp([*logs, np.zeros_like(logs[0])], np.array([*stakes, max(0.0, 1 - sum(stakes))]))


def _since(own: Floats, other: Floats, weights: Floats) -> Floats:
    """ln of the evidence of a shift that began at the first of these epochs, shape (...)."""
    grouped = [(weight, weights == weight) for weight in np.unique(weights)]
    ours = [(weight, own[..., at, :].sum(axis=-2), other[..., at, :].sum(axis=-2)) for weight, at in grouped]
    by_spread = []
    for spread in SPREADS:
        of_nodes = [sum(_log_ratio(spread * node, *one) for one in ours) for node, _ in _NODES]
        by_spread.append(log_mean_exp([np.asarray(one) for one in of_nodes], _PRIOR).sum(axis=-1))
    return np.asarray(log_mean_exp(by_spread) - _largest(ours))


def _log_ratio(log_ratio: float | Floats, weight: float, own: Floats, other: Floats) -> Floats:
    """ln of the likelihood of the sides with this ratio of the rates, divided by that of equal rates."""
    return np.asarray(own * log_ratio - (own + other) * np.log1p(weight * np.expm1(log_ratio)))


def _largest(groups: Sequence[tuple[float, Floats, Floats]]) -> Floats:
    """The largest ln of the likelihood with one ratio in all bins: it is concave, so bisection finds the maximum."""
    sums = [(weight, own.sum(axis=-1), other.sum(axis=-1)) for weight, own, other in groups]
    low = np.full(sums[0][1].shape, -_WIDEST)
    high = -low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        slope = sum(own - (own + other) * _canarys(weight, middle) for weight, own, other in sums)
        low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
    return np.asarray(sum(_log_ratio((low + high) / 2, *one) for one in sums))


def _canarys(weight: float, log_ratio: Floats) -> Floats:
    """The part of the predictions that canary has at this ratio."""
    return 1 / (1 + np.exp(math.log((1 - weight) / weight) - log_ratio))
