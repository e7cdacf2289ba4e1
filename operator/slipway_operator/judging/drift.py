"""Drift: whether canary answers mirrored prompts differently from stable, beyond what two stable pods differ by.

Each prompt is answered by stable, by canary and by a second stable pod. Even greedy decoding differs between two pods
of one version (batches differ, and with them the order of sums), so the second pod is the floor. Of the prompts where
exactly one of the two disagrees with stable, half should be canary's if nothing changed.
"""

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers, bernoulli_exponents, log_over_starts

NODES = 16
# Beta(1, 1) cut off at one half: canary's part of the disagreements, from barely more than half to all.
CANARY_PARTS = 0.5 + 0.5 * (np.arange(NODES) + 0.5) / NODES


def log_drift_evidence(canary_only: Numbers, second_stable_only: Numbers) -> Floats:
    """ln of the evidence that canary disagrees with stable more often than stable with itself.

    Prompts on which one of the two alone disagreed, shape (..., epochs); the result (...).
    """
    canary, stable = np.asarray(canary_only), np.asarray(second_stable_only)
    epochs = range(canary.shape[-1])
    return log_over_starts(
        [bernoulli_exponents(canary[..., epoch], stable[..., epoch], 0.5, CANARY_PARTS) for epoch in epochs]
    )
