"""Latency, for information: a test of the mean and a band around a distribution. Neither decides anything.

They detect shifts that the counts of slow requests do not show yet, but the first rests on a normal approximation and
the second needs tens of thousands of requests for a tail.
"""

import math

import numpy as np

from slipway_operator.judging.evidence import Floats, Numbers


def log_msprt(difference: Numbers, variance: Numbers, spread: float) -> Floats:
    """ln of the mixture sequential probability ratio for a difference of means; shape (...).

    Johari, Pekelis and Walsh, "Always valid inference" (2022), with a normal prior of standard deviation `spread`.

    Args:
        difference: of the means of log latency, canary minus stable.
        variance: of that difference, s_c^2/n_c + s_s^2/n_s; positive.
        spread: the size of the expected differences, in the same unit.
    """
    d, v, t2 = np.asarray(difference, dtype=np.float64), np.asarray(variance, dtype=np.float64), spread * spread
    return np.asarray(0.5 * np.log(v / (v + t2)) + t2 * d * d / (2 * v * (v + t2)))


def distribution_band(samples: int, error_rate: float) -> float:
    """Half width of a confidence band for a whole distribution function, valid at all times.

    Howard and Ramdas, "Sequential estimation of quantiles" (2022), corollary 2. 1 means no information.
    """
    if samples < 1:
        return 1.0
    inner = math.log(math.log(math.e * samples)) + 0.8 * math.log(1612 / error_rate)
    return min(1.0, 0.85 * math.sqrt(inner / samples))
