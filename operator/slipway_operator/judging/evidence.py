"""Evidence: e-processes on counts, each an average of likelihood ratios over a fixed set of alternatives.

Under every null hypothesis named below, each likelihood ratio is a nonnegative supermartingale that starts at 1, and so
is an average of them. By Ville's inequality the probability that it *ever* exceeds 1/a is at most a: the evidence may
be read after each request, at any stopping time (Ville 1939; Ramdas et al., "Game-theoretic statistics and safe
anytime-valid inference", 2023). The choice of alternatives affects speed, never validity.

Every function broadcasts: counts have shape (..., epochs) or (...), results the leading shape. Sums run element by
element in a fixed order, so one canary and a batch of them give the same bits.
"""

import functools
import math
import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# Arrays of any integer or float type, or one number.
Numbers = npt.ArrayLike

# Alternatives: how much worse than tolerated a canary is, from slightly worse to failing completely.
FACTORS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
BETTER = tuple(1 / factor for factor in FACTORS)


def log_ratio_evidence(
    canary: Numbers, stable: Numbers, weights: Numbers, null_ratio: Numbers, factors: Sequence[float] = FACTORS
) -> Floats:
    """Natural log of the evidence that canary's event rate, divided by stable's, lies beyond `null_ratio`.

    Given that an event happened at weight w, it came from canary with probability theta(rho) = w*rho / (w*rho + 1 - w).
    The common rate cancels out, and with it load, time of day and an outage of both. The null is rho <= null_ratio
    where factors are above 1, rho >= null_ratio where below. With factor g the log of the likelihood ratio is k_c*ln g
    - (k_c + k_s)*ln((w*g*r + 1-w) / (w*r + 1-w)) for r = null_ratio, summed over epochs.

    Args:
        canary: events of canary, shape (..., epochs).
        stable: events of stable, shape (..., epochs).
        weights: fraction of requests that are assigned to canary, shape (epochs,), between 0 and 1.
        null_ratio: shape (...) or one number, positive.
        factors: alternatives, as multiples of null_ratio; equal prior weight each.
    """
    exponents = ratio_exponents(canary, stable, weights, null_ratio, factors)
    return log_mean_exp([functools.reduce(operator.add, column) for column in zip(*exponents, strict=True)])


def ratio_exponents(
    canary: Numbers, stable: Numbers, weights: Numbers, null_ratio: Numbers, factors: Sequence[float] = FACTORS
) -> list[list[Floats]]:
    """Logs of the likelihood ratios of `log_ratio_evidence`, by epoch and factor, each of shape (...)."""
    on_canary = np.asarray(canary)
    events = on_canary + np.asarray(stable)
    ratio = np.asarray(null_ratio, dtype=np.float64)
    return [
        [
            np.asarray(
                on_canary[..., epoch] * math.log(factor)
                - events[..., epoch] * np.log1p(weight * ratio * (factor - 1) / (weight * ratio + 1 - weight))
            )
            for factor in factors
        ]
        for epoch, weight in enumerate(np.asarray(weights, dtype=np.float64))
    ]


def log_over_starts(
    exponents: Sequence[Sequence[Floats]] | Floats, prior: Floats | None = None, from_the_start: float = 0.5
) -> Floats:
    """ln of the evidence of a bet spread over the epochs in which a regression may have begun, shape (...).

    A bet that starts before the regression has to win back its losses first; a bet that starts with it has none. A part
    p of the stake bets from the first epoch on, a part (1-p)/(s*(s+1)) from epoch s on, and the part for epochs to come
    keeps its value: again an average of e-processes (cf. Shin, Ramdas and Rinaldo, "E-detectors", 2024). The spread
    costs -ln p where the regression was present from the start. Epochs must begin by clock or weight, never by a count.

    Args:
        exponents: logs of likelihood ratios, by epoch (at least one) and by alternative, each of shape (...).
        prior: weights of the alternatives, summing to 1; equal when left out.
        from_the_start: p above.
    """
    by_epoch = np.asarray(exponents, dtype=np.float64)
    since_start = np.add.accumulate(by_epoch[::-1], axis=0)[::-1]  # (starts, alternatives, ...)
    logs = log_mean_exp(since_start.swapaxes(0, 1), prior)
    later = 1 - from_the_start
    stakes = [from_the_start, *(later / (start * (start + 1)) for start in range(1, len(by_epoch)))]
    kept = 1 - sum(stakes)
    return log_mean_exp(np.concatenate([logs, np.zeros_like(logs[:1])]), np.array([*stakes, kept]))


def log_bernoulli_evidence(
    bad: Numbers, trials: Numbers, null_rate: float, nodes: Floats, prior: Floats | None = None
) -> Floats:
    """Natural log of the evidence that the rate of bad trials lies beyond `null_rate`, on the side of the nodes.

    A Beta mixture on nodes in place of an integral: no special functions, and an e-process whatever the nodes are.

    Args:
        bad: shape (...).
        trials: shape (...).
        null_rate: between 0 and 1; the null is every rate on its other side, even one that varies with time.
        nodes: alternatives, all below or all above null_rate, shape (nodes,).
        prior: their weights, summing to 1; equal when left out.
    """
    k = np.asarray(bad)
    good = np.asarray(trials) - k
    return log_mean_exp(bernoulli_exponents(k, good, null_rate, nodes), prior)


def bernoulli_exponents(bad: Numbers, good: Numbers, null_rate: float, nodes: Floats) -> list[Floats]:
    """Logs of the likelihood ratios of `log_bernoulli_evidence`, by node, each of shape (...)."""
    k, others = np.asarray(bad), np.asarray(good)
    return [
        np.asarray(k * math.log(node / null_rate) + others * math.log((1 - node) / (1 - null_rate))) for node in nodes
    ]


def log_mean_exp(logs: Sequence[Floats] | Floats, prior: Floats | None = None) -> Floats:
    """ln of the weighted mean of exp(logs) over their first axis; equal weights when `prior` is left out.

    `add.accumulate`, because `add.reduce` has an order that depends on the shape.
    """
    stacked = np.asarray(logs, dtype=np.float64)
    weights = np.full(len(stacked), 1 / len(stacked)) if prior is None else prior
    top = stacked.max(axis=0)
    parts = weights.reshape(-1, *(1 for _ in top.shape)) * np.exp(stacked - top)
    return np.asarray(top + np.log(np.add.accumulate(parts, axis=0)[-1]))


def log_combined(logs: Numbers, shares: Numbers) -> Floats:
    """ln of sum_m share_m * E_m: the evidence against a canary over all its metrics.

    Shares sum to at most 1, so this is an e-process too. It rejects whenever a separate test of one metric, at that
    metric's share of the error rate, does (Vovk and Wang, "E-values: calibration, combination and applications", 2021).

    Args:
        logs: ln E of each metric, shape (..., metrics).
        shares: shape (metrics,), positive.
    """
    shape = np.asarray(logs, dtype=np.float64)
    parts = np.asarray(shares, dtype=np.float64)
    return log_mean_exp([shape[..., index] for index in range(shape.shape[-1])], parts)
