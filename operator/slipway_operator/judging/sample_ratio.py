"""Sample ratio mismatch: canary's share of the requests contradicts its weight, so a comparison is not valid.

A sequential test of sample ratio mismatch (Lindon and Malek, "Anytime-valid inference for multinomial count data",
2022), with alternatives on both sides in place of a Dirichlet prior.
"""

import math

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers, log_ratio_evidence

# Alternatives: canary's odds of getting a request, divided by those that the weight gives.
ODDS = (0.1, 0.5, 1 / 1.5, 1 / 1.2, 1 / 1.1, 1 / 1.05, 1.05, 1.1, 1.2, 1.5, 2.0, 10.0)
# At most one correct split in a thousand is reported as a mismatch.
LOG_MISMATCH = math.log(1000)


def log_mismatch_evidence(canary: Numbers, stable: Numbers, weights: Numbers) -> Floats:
    """ln of the evidence that the split contradicts the weights; counts (..., epochs), weights (epochs,)."""
    return log_ratio_evidence(canary, stable, weights, np.float64(1.0), ODDS)
