"""Kayenta's judge, from its published source (NetflixACAJudge, MannWhitneyClassifier; Spinnaker, Apache-2.0), in numpy.

For each metric the points of canary and of stable, one a minute, are compared by a two-sided Mann-Whitney test at
98 % confidence: High where the lower end of the interval for the shift lies above a quarter of the Hodges-Lehmann
estimate, and the ratio of the means is at least `allowedIncrease`. A critical metric that is High fails the canary.

The interval's ends are where the standardised rank sum, with its corrections for ties and continuity, crosses the
normal quantile. Kayenta finds them by root search; the rank sum is a step function of the shift, so they are order
statistics of the pairwise differences, which is what is computed here.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

TOLERANCE = 0.25
Z_98 = 2.3263478740408408  # the normal quantile of 0.99


@dataclass(frozen=True)
class Comparison:
    """Of each run: ends of the interval for canary minus stable, and the Hodges-Lehmann estimate; shape (runs,)."""

    lower: Floats
    upper: Floats
    estimate: Floats


def high(canary: Floats, stable: Floats, allowed_increase: float = 1.0, z: float = Z_98) -> Flags:
    """Whether a metric is classified High; points (runs, minutes), results (runs,)."""
    return np.asarray(strength(canary, stable, allowed_increase) > z)


def strength(canary: Floats, stable: Floats, allowed_increase: float = 1.0) -> Floats:
    """The largest normal quantile at which a metric is still High; -inf where it never is. Shapes as in `high`.

    The lower end lies above the tolerance exactly when more differences exceed it than the end's rank allows. Without
    a point on one side the metric is Nodata, which is not High. Where one mean is 0 the effect size cannot be computed
    and is ignored, as Kayenta does.
    """
    found = np.full(canary.shape[:-1], -np.inf)
    if canary.shape[-1] == 0 or stable.shape[-1] == 0:
        return found
    means = canary.mean(axis=-1), stable.mean(axis=-1)
    large = (means[0] == 0) | (means[1] == 0) | (means[0] >= allowed_increase * means[1])
    found[large] = _significance(canary[large], stable[large])
    return found


def _significance(canary: Floats, stable: Floats) -> Floats:
    """`strength` of runs whose effect is large enough."""
    differences = _differences(canary, stable)
    tolerated = TOLERANCE * np.abs(np.median(differences, axis=-1))
    beyond = np.count_nonzero(differences > tolerated[..., None], axis=-1)
    sigma = _sigma(canary, stable)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (beyond - differences.shape[-1] / 2 - 0.5) / sigma
    return np.where(sigma > 0, found, -np.inf)


def compare(canary: Floats, stable: Floats, z: float = Z_98) -> Comparison:
    """The Mann-Whitney interval and estimate; points (runs, n) and (runs, m)."""
    rising = np.sort(_differences(canary, stable), axis=-1)
    pairs = rising.shape[-1]
    # The shift is rejected from below while more than this many differences exceed it.
    most = np.floor(pairs / 2 + 0.5 + z * _sigma(canary, stable)).astype(int)
    return Comparison(_at(rising, pairs - most - 1), _at(rising, most), np.median(rising, axis=-1))


def score(passing: Flags, weights: npt.ArrayLike | None = None) -> Floats:
    """Percent of the metrics that pass, by weight; (..., metrics) to (...)."""
    share = np.average(passing.astype(np.float64), axis=-1, weights=None if weights is None else np.asarray(weights))
    return np.asarray(100 * share)


def _at(rising: Floats, index: npt.NDArray[np.int64]) -> Floats:
    """The differences at these ranks; the extremes where the interval is wider than all of them."""
    inside = np.clip(index, 0, rising.shape[-1] - 1)
    return np.take_along_axis(rising, inside[..., None], axis=-1)[..., 0]


def _differences(canary: Floats, stable: Floats) -> Floats:
    pairs = canary.shape[-1] * stable.shape[-1]
    found: Floats = (canary[..., :, None] - stable[..., None, :]).reshape(*canary.shape[:-1], pairs)
    return found


def _sigma(canary: Floats, stable: Floats) -> Floats:
    """Standard deviation of the rank sum at a shift where no point of one side meets one of the other."""
    n, m = canary.shape[-1], stable.shape[-1]
    ties = (_ties(canary) + _ties(stable)) / ((n + m) * (n + m - 1))
    sigma: Floats = np.sqrt(np.maximum(n * m / 12 * (n + m + 1 - ties), 0.0))
    return sigma


def _ties(points: Floats) -> Floats:
    """Sum of t^3 - t over groups of t equal points, (runs, n) to (runs,).

    Each point of a group of t sees t equal ones: t^3 - t over the group is the sum of t^2 - 1 over its points.
    """
    equal = (points[..., :, None] == points[..., None, :]).sum(axis=-1)
    return np.asarray((equal.astype(np.float64) ** 2 - 1).sum(axis=-1))
