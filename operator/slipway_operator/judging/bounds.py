"""Upper bounds on how bad the canary is: it passes when they are low enough.

A metric passes in two ways, each with half of the error rate: its ratio to stable is below a margin, or its own rate is
below a limit. A canary passes when *every* metric does; the chance that one of them is worse than its margin is then
still at most falsePromoteRate, with no correction for their number (an intersection-union test, Berger 1982).
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from slipway_operator.judging.evidence import (
    BETTER,
    FACTORS,
    Floats,
    Numbers,
    log_bernoulli_evidence,
    log_ratio_evidence,
)

Flags = npt.NDArray[np.bool_]

# The prior expects a healthy canary at a tenth of the limit: see `rate_nodes`.
RATE_NODES, RATE_CURVE = 32, 5.0
SMALLEST, LARGEST = 1e-4, 1e4
CANDIDATES, ROUNDS = 32, 5  # the search finds ln(ratio) between those of SMALLEST and LARGEST to a millionth


def log_ratio_below(canary: Numbers, stable: Numbers, weights: Numbers, max_ratio: Numbers) -> Floats:
    """ln of the evidence that canary's ratio is below `max_ratio`; shapes as in `log_ratio_evidence`.

    The evidence grows with max_ratio: what is proved for one max_ratio is proved for every larger one.
    """
    return log_ratio_evidence(canary, stable, weights, max_ratio, BETTER)


def log_rate_below(bad: Numbers, requests: Numbers, limit: float) -> Floats:
    """ln of the evidence that canary's own rate of bad events is below `limit`, shape (...)."""
    nodes, prior = rate_nodes(limit)
    return log_bernoulli_evidence(bad, requests, limit, nodes, prior)


def rate_nodes(limit: float) -> tuple[Floats, Floats]:
    """A Beta(1/2, 5/limit) prior truncated at `limit`, on nodes: rates, and weights that sum to 1.

    In u = sqrt(rate/limit) the density of that prior is close to exp(-5*u^2), so nodes are equally spaced in u.
    """
    u = (np.arange(RATE_NODES) + 0.5) / RATE_NODES
    weights = np.exp(-RATE_CURVE * u * u)
    return limit * u * u, weights / weights.sum()


def not_worse(log_ratio: Numbers, log_rate: Numbers | None, false_promote_rate: float) -> Flags:
    """Whether a metric passes by its ratio to stable, or by its own rate (None without a limit on it), shape (...)."""
    needed = math.log(2 / false_promote_rate)
    passed = np.asarray(log_ratio) >= needed
    return np.asarray(passed if log_rate is None else passed | (np.asarray(log_rate) >= needed))


def ratio_interval(canary: Numbers, stable: Numbers, weights: Numbers, error_rate: float) -> tuple[Floats, Floats]:
    """Lower and upper ends of a confidence sequence for canary's event rate divided by stable's, shape (...) each.

    The true ratio is ever outside with probability `error_rate` at most. An end that the counts do not bound is
    SMALLEST or LARGEST.
    """
    needed = math.log(2 / error_rate)
    k, others = (np.asarray(item)[..., None, :] for item in (canary, stable))

    def can_be_higher(ratio: Floats) -> Flags:
        return np.asarray(log_ratio_evidence(k, others, weights, ratio, FACTORS) < needed)

    lower = _first(can_be_higher, np.asarray(canary).shape[:-1])
    return lower, ratio_upper(canary, stable, weights, error_rate)


def ratio_upper(canary: Numbers, stable: Numbers, weights: Numbers, error_rate: float) -> Floats:
    """Upper end of `ratio_interval`, without the cost of the lower end: each end is a separate search."""
    needed = math.log(2 / error_rate)
    k, others = (np.asarray(item)[..., None, :] for item in (canary, stable))

    def is_lower(ratio: Floats) -> Flags:
        return np.asarray(log_ratio_evidence(k, others, weights, ratio, BETTER) >= needed)

    return _first(is_lower, np.asarray(canary).shape[:-1])


def _first(holds: Callable[[Floats], Flags], shape: tuple[int, ...]) -> Floats:
    """The lowest ratio at which `holds` is true, of `shape`; LARGEST where it is true at none.

    `holds` takes ratios of shape (..., candidates) and is true at all higher ratios as well.
    """
    low, high = np.full(shape, math.log(SMALLEST)), np.full(shape, math.log(LARGEST))
    steps = np.arange(CANDIDATES + 1) / CANDIDATES
    for _ in range(ROUNDS):
        candidates = low[..., None] + (high - low)[..., None] * steps
        # Candidates where `holds` is false come first; the last candidate stands for "true at none".
        place = np.minimum((~holds(np.exp(candidates))).sum(axis=-1), CANDIDATES)[..., None]
        low = np.take_along_axis(candidates, np.maximum(place - 1, 0), axis=-1)[..., 0]
        high = np.take_along_axis(candidates, place, axis=-1)[..., 0]
    return np.asarray(np.exp(high))
