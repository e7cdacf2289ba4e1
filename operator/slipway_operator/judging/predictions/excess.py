"""Evidence that the population stability index is above a bound, which may be read after each prediction.

For any number h of each bin, the index is at least E_c[a(h)] - E_s[b(h)] with a = h + 1 - exp(-h), b = h - 1 + exp(h):
the sum of the variational bounds of both divergences, which h = ln(c/s) reaches. Requests are split at random with
weight w, so a prediction is worth a(h)/w if canary gave it and -b(h)/(1-w) if stable did: in the mean at most the
index. If the index is at most the bound, at each moment, no bet on more is expected to win (Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting", 2024).

h and the stakes of a clock epoch come from what earlier epochs counted, so they are fixed before the epoch's first
prediction. Where these do not look as if the bound is exceeded, nothing is staked: an equal canary loses nothing.
In the first epoch nothing is known yet. Half of the stake, shared by all bins, bets there that canary predicts that bin
too often, and half is kept: a canary with the same prediction for all requests is found at once.
"""

import math
from collections.abc import Sequence

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers, log_mean_exp
from slipway_operator.judging.predictions.index import parts

# h is clipped to this range, so that stakes may be larger. A canary that predicts what stable never does is found.
_LOWEST, _HIGHEST = -1.0, 2.0
_PRIOR_COUNT = 10.0  # predictions, distributed as stable's, that are added to canary's
LEAST = 20  # predictions of each side before anything is staked
STAKES = (0.25, 0.5, 1.0)  # fractions of the stake that grows fastest if the counted distributions are the true ones
_MOST = 0.75  # the largest part of the money that one prediction can lose
# Of the first epoch: h in the bin that canary is suspected of, and in the others; and the part of the stake that one
# prediction can lose.
_SUSPECTED, _OTHERS, _RISK = (0.5, 2.0), -1.0, 0.5


def log_excess(canary: Numbers, stable: Numbers, weights: Numbers, clocks: Sequence[int], bound: float) -> Floats:
    """ln of the evidence that the index is above `bound`, shape (...).

    Counts have shape (..., epochs, bins); `clocks` is the clock epoch of each epoch.
    """
    own, other = np.asarray(canary, dtype=np.float64), np.asarray(stable, dtype=np.float64)
    fractions, times = np.asarray(weights, dtype=np.float64), np.asarray(clocks)
    starts = sorted(set(clocks))
    first = times == starts[0]
    begun = _first(own[..., first, :], other[..., first, :], fractions[first], bound)
    logs = []
    # Bets learn from all earlier epochs, or from the last one alone: a shift may begin late.
    for alone in (False, True):
        wins = [np.zeros(own.shape[:-2]) for _ in STAKES]
        for place, clock in enumerate(starts[1:], 1):
            before = times == starts[place - 1] if alone else times < clock
            learned = (own[..., before, :], other[..., before, :], fractions[before])
            for at in np.flatnonzero(times == clock):
                won = _won(learned, own[..., at, :], other[..., at, :], float(fractions[at]), bound)
                wins = [total + more for total, more in zip(wins, won, strict=True)]
        logs += wins
    return np.asarray(begun + log_mean_exp(logs))


def _first(own: Floats, other: Floats, weights: Floats, bound: float) -> Floats:
    """ln of the factor by which the first epoch changes the money, shape (...)."""
    bins = own.shape[-1]
    logs: list[Floats] = []
    for h in _SUSPECTED:
        won = np.zeros((*own.shape[:-2], bins))
        for at, weight in enumerate(weights):
            c, s = own[..., at, :], other[..., at, :]
            canary = {one: _of_canary(one) / weight - bound for one in (h, _OTHERS)}
            stable = {one: -_of_stable(one) / (1 - weight) - bound for one in (h, _OTHERS)}
            stake = _RISK / -min(*canary.values(), *stable.values())
            won = won + c * math.log1p(stake * canary[h]) + s * math.log1p(stake * stable[h])
            won = won + (c.sum(axis=-1, keepdims=True) - c) * math.log1p(stake * canary[_OTHERS])
            won = won + (s.sum(axis=-1, keepdims=True) - s) * math.log1p(stake * stable[_OTHERS])
        logs += [won[..., place] for place in range(bins)]
    part = 0.5 / len(logs)
    return log_mean_exp([*logs, np.zeros_like(logs[0])], np.array([part] * len(logs) + [0.5]))


def _of_canary(h: float) -> float:
    return h + 1 - math.exp(-h)


def _of_stable(h: float) -> float:
    return h - 1 + math.exp(h)


def _won(
    learned: tuple[Floats, Floats, Floats], own: Floats, other: Floats, weight: float, bound: float
) -> list[Floats]:
    """For each of STAKES, ln of the factor by which one epoch changes the money, shape (...)."""
    ours, theirs, n, m = parts(*learned)
    bins = np.maximum(((ours + theirs) > 0).sum(axis=-1), 1)
    theirs = ((theirs * m[..., None]) + 0.5 / bins[..., None]) / (m + 0.5 * theirs.shape[-1] / bins)[..., None]
    ours = (ours * n[..., None] + _PRIOR_COUNT * theirs) / (n + _PRIOR_COUNT)[..., None]
    h = np.clip(np.log(ours / theirs), _LOWEST, _HIGHEST)
    of_canary, of_stable = (h + 1 - np.exp(-h)) / weight, (h - 1 + np.exp(h)) / (1 - weight)
    mean = (weight * ours * of_canary - (1 - weight) * theirs * of_stable).sum(axis=-1)
    square = (weight * ours * of_canary**2 + (1 - weight) * theirs * of_stable**2).sum(axis=-1)
    gain = mean - (bins - 1) * (1 / np.maximum(n, 1) + 1 / np.maximum(m, 1)) - bound
    worst = bound + np.maximum((-of_canary).max(axis=-1), of_stable.max(axis=-1))
    best = np.minimum(gain / np.maximum(square, 1e-12), _MOST / np.maximum(worst, bound))
    stake = np.where((gain > 0) & (n >= LEAST) & (m >= LEAST), best, 0.0)
    return [
        np.asarray(
            (
                own * np.log1p((part * stake)[..., None] * (of_canary - bound))
                + other * np.log1p((part * stake)[..., None] * (-of_stable - bound))
            ).sum(axis=-1)
        )
        for part in STAKES
    ]
