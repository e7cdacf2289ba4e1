"""Drift: whether canary differs from stable on mirrored prompts more often than a second stable pod does.

Stable, canary and a second stable pod each answer every prompt. Even greedy decoding differs between two pods of one
version (batches differ, and with them the order of sums), so the second pod is the floor. If nothing changed, canary is
the one that disagrees in half of the prompts where exactly one of the two disagrees with stable.
"""

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers, bernoulli_exponents, log_over_starts

NODES = 16
# Beta(1, 1) truncated at one half: canary's share of the disagreements, from just above half to all.
CANARY_PARTS = 0.5 + 0.5 * (np.arange(NODES) + 0.5) / NODES


def log_drift_evidence(canary_only: Numbers, second_stable_only: Numbers) -> Floats:
    """ln of the evidence that canary disagrees with stable more often than stable with itself.

    Both arguments count prompts where only one of the two disagreed, shape (..., epochs); the result is (...).
    """
    canary, stable = np.asarray(canary_only), np.asarray(second_stable_only)
    epochs = range(canary.shape[-1])
    return log_over_starts(
        [bernoulli_exponents(canary[..., epoch], stable[..., epoch], 0.5, CANARY_PARTS) for epoch in epochs]
    )
