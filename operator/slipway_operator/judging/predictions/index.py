"""The population stability index (PSI): how far canary's predictions are from stable's, over the same bins.

PSI is the sum of (c - s)*ln(c/s) over the bins, for the parts c and s of each side's predictions: the symmetric
Kullback-Leibler divergence. Below 0.1 is usually called small, above 0.25 large.
"""

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers

_HALF = 0.5  # of a prediction, added to each bin that either side uses: no bin is empty, and no logarithm infinite


def stability_index(canary: Numbers, stable: Numbers, weights: Numbers) -> tuple[Floats, Floats]:
    """The index minus what chance adds to it, and what chance adds; shape (...) each, 0 where a side has no prediction.

    Args:
        canary: predictions of canary, shape (..., epochs, bins).
        stable: predictions of stable.
        weights: canary's part of the requests in each epoch, shape (epochs,).
    """
    own, other, of_own, of_other = parts(canary, stable, weights)
    used = (own + other) > 0
    bins = used.sum(axis=-1)
    own = (own * of_own[..., None] + _HALF * used) / np.maximum(of_own + _HALF * bins, 1)[..., None]
    other = (other * of_other[..., None] + _HALF * used) / np.maximum(of_other + _HALF * bins, 1)[..., None]
    ratio = np.log(np.where(used, own, 1.0) / np.where(used, other, 1.0))
    found = np.asarray(((own - other) * ratio).sum(axis=-1))
    # Of equal distributions the index of n and m predictions is about (1/n + 1/m) times a chi-square of bins - 1.
    chance = np.maximum(bins - 1, 0) * (1 / np.maximum(of_own, 1) + 1 / np.maximum(of_other, 1))
    known = (of_own > 0) & (of_other > 0)
    return np.where(known, np.maximum(found - chance, 0.0), 0.0), np.where(known, chance, 0.0)


def parts(canary: Numbers, stable: Numbers, weights: Numbers) -> tuple[Floats, Floats, Floats, Floats]:
    """Each bin's part of canary's and of stable's predictions, shape (..., bins); their effective numbers, shape (...).

    Stable's predictions are weighted by the proportions in which canary has them under each weight: if the inputs
    change while the weight does, the two sides still face the same ones.
    """
    own, other = np.asarray(canary, dtype=np.float64), np.asarray(stable, dtype=np.float64)
    fractions = np.asarray(weights, dtype=np.float64)
    total = np.zeros(own.shape[:-2])
    own_parts = np.zeros((*own.shape[:-2], own.shape[-1]))
    other_parts, spread = np.zeros_like(own_parts), np.zeros_like(total)
    for weight in np.unique(fractions):
        at = fractions == weight
        ours, theirs = own[..., at, :].sum(axis=-2), other[..., at, :].sum(axis=-2)
        n, m = ours.sum(axis=-1), theirs.sum(axis=-1)
        n = np.where(m > 0, n, 0.0)  # nothing to compare with
        total = total + n
        own_parts = own_parts + np.where(n > 0, 1.0, 0.0)[..., None] * ours
        other_parts = other_parts + (n / np.maximum(m, 1))[..., None] * theirs
        spread = spread + n * n / np.maximum(m, 1)
    scale = np.maximum(total, 1)[..., None]
    worth = np.where(spread > 0, total * total / np.where(spread > 0, spread, 1.0), 0.0)
    return own_parts / scale, other_parts / scale, total, worth
