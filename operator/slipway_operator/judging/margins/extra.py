"""How many more bad responses canary gives than stable, at most: tests by betting, and the bounds that they give.

Of a pair, one request that a canary pod and a stable pod both answer, D is 1 where canary alone is bad, -1 where stable
alone is, else 0. Under the null E[D | past] >= d each factor 1 + l*(d - D) has a mean of at most 1, so their product is
an e-process for every stake l that is chosen before D is known (Waudby-Smith and Ramdas, "Estimating means of bounded
random variables by betting", 2024). It grows with d: what is proved for one d is proved for every larger one.

Live requests have no twin. Of one that was split at canary's weight w, Z is 1/w where it is canary's and bad, -1/(1-w)
where it is stable's and bad, else 0; the mean of Z is the difference of the rates (inverse probability weighting).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slipway_operator.judging.bounds import log_rate_below
from slipway_operator.judging.evidence import Floats, Numbers, log_mean_exp, log_over_starts

GRID = (0.03, 0.06, 0.12, 0.25, 0.45, 0.7, 0.9)
# Stakes below the best one, with which the money grows fastest if bad responses are as frequent as expected: (stake as
# a fraction of the best one, part of the money on it). The first loses nothing in the median, and slow releases end
# sooner; the second is for more frequent bad responses. The rest of the money is on GRID.
AROUND = ((0.9, 0.75), (0.4, 0.1))
ON_THE_BEST = AROUND[0][1]
# Part of the money that bets from the first clock epoch on. The rest begins to bet with later epochs, because an outage
# of both sides ruins large bets.
FROM_THE_START = 0.85
LIVE_BAD = 0.005  # expected rate of bad responses to live requests, and to any where nothing is known of stable
HALVINGS = 50
FEWER_HALVINGS = 20  # to a millionth: enough for a rate that is shown per 1,000, and a ramp needs it at each reading


@dataclass(frozen=True, slots=True)
class Stakes:
    """Stakes of a bet, and the part of the money on each. They are chosen before the first pair, and then fixed."""

    sizes: tuple[float, ...]
    parts: tuple[float, ...]


def stakes(p_hat: float, d: float) -> Stakes:
    """Stakes on pairs for the margin `d`.

    `p_hat`: the expected rate of bad responses, independently on both sides of a pair. A wrong one costs time, never
    validity.
    """
    alone = p_hat * (1 - p_hat)  # bad on one side alone
    return _around(_best(((alone, d - 1), (alone, d + 1), (1 - 2 * alone, d))))


@functools.lru_cache(4096)
def live_stakes(p_hat: float, d: float, weight: float) -> Stakes:
    """Stakes on live requests of which canary gets the part `weight`, each as a fraction of `weight`.

    The largest stake at which no factor is negative is 1/(1/weight - d).
    """
    canary, stable = weight * p_hat, (1 - weight) * p_hat
    terms = ((canary, weight * d - 1), (stable, weight * (d + 1 / (1 - weight))), (1 - p_hat, weight * d))
    return _around(_best(terms))


def _around(best: float) -> Stakes:
    rest = (1 - sum(part for _, part in AROUND)) / len(GRID)
    sizes = (*GRID, *(best * fraction for fraction, _ in AROUND))
    return Stakes(sizes, (*(rest for _ in GRID), *(part for _, part in AROUND)))


def _best(terms: Sequence[tuple[float, float]]) -> float:
    """The stake l, at most 1, that maximises E ln(1 + l*gain); each gain comes with its probability."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        grows = sum(chance * gain / (1 + middle * gain) for chance, gain in terms) > 0
        low, high = (middle, high) if grows else (low, middle)
    return low


# -- pairs


def log_extra_below(a: Numbers, b: Numbers, n: Numbers, d: Numbers, stakes: Stakes) -> Floats:
    """ln of the evidence that canary gives fewer than `d` extra bad responses for each pair, shape (...).

    Args:
        a: pairs of which canary alone is bad, shape (...).
        b: pairs of which stable alone is bad.
        n: all pairs.
        d: the margin, above 0; one number, or of shape (...).
        stakes: as chosen before the first pair.
    """
    canary, stable, pairs = (np.asarray(counts)[None] for counts in (a, b, n))
    return log_mean_exp(_pair_exponents(canary, stable, pairs, d, stakes)[0], np.array(stakes.parts))


def log_extra_over_starts(a: Numbers, b: Numbers, n: Numbers, d: Numbers, stakes: Stakes) -> Floats:
    """The evidence of `log_extra_below` from counts by clock epoch, (..., epochs): bets begin at each of them."""
    canary, stable, pairs = (np.moveaxis(np.asarray(counts), -1, 0) for counts in (a, b, n))
    return log_over_starts(_pair_exponents(canary, stable, pairs, d, stakes), np.array(stakes.parts), FROM_THE_START)


def _pair_exponents(a: Numbers, b: Numbers, n: Numbers, d: Numbers, stakes: Stakes) -> Floats:
    """Logs of the products of factors, shape (epochs, stakes, ...), of counts of shape (epochs, ...)."""
    canary, stable, pairs = (np.asarray(counts)[:, None] for counts in (a, b, n))
    margin = np.asarray(d, dtype=np.float64)
    trailing = max(pairs.ndim - 2, margin.ndim)
    sizes = np.array(stakes.sizes).reshape(-1, *(1 for _ in range(trailing)))
    return np.asarray(
        canary * np.log1p(sizes * (margin - 1))
        + stable * np.log1p(sizes * (margin + 1))
        + (pairs - canary - stable) * np.log1p(sizes * margin)
    )


def extra_upper(a: Numbers, b: Numbers, n: Numbers, stakes: Stakes, level: float) -> Floats:
    """The least `d` that is proved: canary gives at most so many extra bad responses for each pair, shape (...).

    The bound is ever too low with probability `level` at most; 1 where nothing is proved. Counts are by clock epoch,
    shape (..., epochs).
    """
    return _least(lambda d: log_extra_over_starts(a, b, n, d, stakes), np.asarray(n).shape[:-1], level)


# -- live requests


def log_ipw_below(
    canary: Numbers, stable: Numbers, units: Numbers, weights: Numbers, d: Numbers, bets: Sequence[Stakes]
) -> Floats:
    """ln of the evidence that canary gives fewer than `d` extra bad responses for each request, shape (...).

    Args:
        canary: bad units of canary, shape (..., epochs).
        stable: bad units of the other side.
        units: all units of both.
        weights: canary's part of the units, shape (epochs,), between 0 and 1.
        d: the margin, above 0; one number, or of shape (...).
        bets: the stakes of each epoch, by `live_bets`.
    """
    canary_bad, stable_bad, n = np.asarray(canary), np.asarray(stable), np.asarray(units)
    margin = np.asarray(d, dtype=np.float64)
    exponents = []
    for epoch, weight in enumerate(np.asarray(weights, dtype=np.float64)):
        on_canary, on_stable = canary_bad[..., epoch], stable_bad[..., epoch]
        even = n[..., epoch] - on_canary - on_stable
        exponents.append([
            np.asarray(
                on_canary * np.log1p(size * weight * margin - size)
                + on_stable * np.log1p(size * weight * (margin + 1 / (1 - weight)))
                + even * np.log1p(size * weight * margin)
            )
            for size in bets[epoch].sizes
        ])  # fmt: skip
    return log_over_starts(exponents, np.array(bets[0].parts), FROM_THE_START)


def live_bets(weights: Numbers, d: float, p_hat: float = LIVE_BAD) -> list[Stakes]:
    """The stakes of each epoch of live requests, for the margin `d`."""
    return [live_stakes(p_hat, d, float(weight)) for weight in np.asarray(weights, dtype=np.float64)]


def live_extra_upper(
    canary: Numbers, stable: Numbers, units: Numbers, weights: Numbers, bets: Sequence[Stakes], level: float
) -> Floats:
    """The least `d` that `log_ipw_below` proves at `level`, shape (...); 1 where it proves none."""
    shape = np.asarray(units).shape[:-1]
    return _least(lambda d: log_ipw_below(canary, stable, units, weights, d, bets), shape, level)


def rate_upper(bad: Numbers, units: Numbers, level: float) -> Floats:
    """The lowest bound on canary's own rate of bad responses that is proved at `level`, shape (...)."""
    k, n = np.asarray(bad), np.asarray(units)
    shape = np.broadcast_shapes(k.shape, n.shape)
    return _least(lambda limit: _log_rate_below(k, n, limit), shape, level, FEWER_HALVINGS)


def _log_rate_below(bad: Numbers, units: Numbers, limits: Floats) -> Floats:
    """`log_rate_below` with a limit of its own for each canary, in the shape of `limits`."""
    k, n, flat = (np.broadcast_to(item, limits.shape).ravel() for item in (bad, units, limits))
    found = [float(log_rate_below(a, b, float(limit))) for a, b, limit in zip(k, n, flat, strict=True)]
    return np.array(found, dtype=np.float64).reshape(limits.shape)


def _least(
    log_evidence: Callable[[Floats], Floats], shape: Sequence[int], level: float, halvings: int = HALVINGS
) -> Floats:
    """The lowest d in (0, 1) at which the evidence, which grows with d, reaches 1/level; 1 where it does nowhere."""
    needed = np.log(1 / level)
    low, high = np.zeros(tuple(shape)), np.ones(tuple(shape))
    for _ in range(halvings):
        middle = (low + high) / 2
        proved = np.asarray(log_evidence(middle) >= needed)
        low, high = np.where(proved, low, middle), np.where(proved, middle, high)
    return high
