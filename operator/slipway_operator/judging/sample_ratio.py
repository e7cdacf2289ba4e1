"""The split: does canary get the share of requests that its weight says? If not, comparing the two means nothing.

A sequential test of sample ratio mismatch (Lindon and Malek, "Anytime-valid inference for multinomial count data",
2022), with alternatives on both sides in place of a Dirichlet prior.
"""

import math

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers, log_ratio_evidence

# The odds of getting a request, over what they should be.
ODDS = (0.1, 0.5, 1 / 1.5, 1 / 1.2, 1 / 1.1, 1 / 1.05, 1.05, 1.1, 1.2, 1.5, 2.0, 10.0)
# One healthy split of a thousand is suspected wrongly.
LOG_MISMATCH = math.log(1000)


def log_mismatch_evidence(canary: Numbers, stable: Numbers, weights: Numbers) -> Floats:
    """ln of the evidence that requests are not split by their weights; counts (..., epochs), weights (epochs,)."""
    return log_ratio_evidence(canary, stable, weights, np.float64(1.0), ODDS)
