"""Evidence on how much slower canary is: within the margin, by pairs; or so slow that its weight is reduced at once.

Of a pair, canary counts as slower where its latency is above the margin times that of its twin. A canary that is slower
by the margin or more is so in half of the pairs, a healthy one in fewer: counts against one half, a coin.
"""

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers, log_bernoulli_evidence, log_ratio_evidence

NODES = 16
FEWER = (np.arange(NODES) + 0.5) / (2 * NODES)
MORE = 0.5 + FEWER
# Grossly slow: more than one request in five (GROSS_RATE) takes GROSS_TIMES as long as stable's quantile or longer.
GROSS_TIMES, GROSS_RATE = 3.0, 0.2
GROSSLY = GROSS_RATE + (1 - GROSS_RATE) * (np.arange(NODES) + 0.5) / NODES


def log_faster(k: Numbers, n: Numbers) -> Floats:
    """ln of the evidence that canary is slower by less than the margin: it was so in `k` of `n` pairs, shape (...)."""
    return log_bernoulli_evidence(k, n, 0.5, FEWER)


def log_slower(k: Numbers, n: Numbers) -> Floats:
    """ln of the evidence that canary is slower by more than the margin, shape (...)."""
    return log_bernoulli_evidence(k, n, 0.5, MORE)


def log_grossly_slower(bad: Numbers, units: Numbers) -> Floats:
    """ln of the evidence that more than GROSS_RATE of canary's requests are far above stable's limit, shape (...)."""
    return log_bernoulli_evidence(bad, units, GROSS_RATE, GROSSLY)


def log_slower_than_stable(canary: Numbers, stable: Numbers, weights: Numbers) -> Floats:
    """ln of the evidence that such slow requests are more frequent on canary; counts (..., epochs), result (...)."""
    return log_ratio_evidence(canary, stable, weights, 1.0)
