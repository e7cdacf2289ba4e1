"""Published misses of Kayenta's judge: our reading of its formulas misses them as it does, our judge does not.

The issues give one number a minute. Where it counts bad events, the same counts are judged here. Where it is a latency,
requests above stable's own threshold are counted; the number of requests a minute is our choice, and documented.
"""

import numpy as np
import pytest

from bench.judge_sim import kayenta
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec
from slipway_operator.model.analysis.verdict import Reading

SPEC = AnalysisSpec(metrics=(MetricSpec("metric", share=1.0),))


def points(*values: float) -> np.ndarray:
    return np.array([values], dtype=np.float64)


def ours(weight: int, canary_units: int, stable_units: int, canary_bad: int, stable_bad: int) -> Outcome:
    counts = Counts(
        "metric",
        (
            Epoch(
                weight=weight,
                canary_units=canary_units,
                stable_units=stable_units,
                canary_bad=canary_bad,
                stable_bad=stable_bad,
            ),
        ),
    )
    return judge(SPEC, Reading((counts,), seconds=600.0)).outcome


# spinnaker/spinnaker#6278: seven of ten minutes are a hundred times slower.
SLOW = points(*[100.0] * 7, *[1.0] * 3), points(*[1.0] * 10)
# spinnaker/kayenta#426: some errors against none.
SPARSE = points(0, 1, 2, 1, 0, 0), points(*[0.0] * 6)


def test_the_interval_is_the_published_one() -> None:
    """The issue prints 6.8e-5 to 99 and an estimate of 98.99992: a root search's error around 0, 99 and 99."""
    found = kayenta.compare(*SLOW)
    assert found.lower == pytest.approx(0, abs=1e-4)
    assert found.upper == pytest.approx(99, abs=1e-4)
    assert found.estimate == pytest.approx(99, abs=1e-4)


def test_seven_slow_minutes_of_ten_pass_kayenta_and_eight_do_not() -> None:
    assert not kayenta.high(*SLOW)[0]
    assert kayenta.high(points(*[100.0] * 8, *[1.0] * 2), SLOW[1])[0]


def test_seven_slow_minutes_of_ten_fail_here() -> None:
    """At only five requests a minute, split in halves: 35 of 50 slow against none."""
    assert ours(50, canary_units=50, stable_units=50, canary_bad=35, stable_bad=0) is Outcome.FAIL


def test_sparse_errors_pass_kayenta() -> None:
    assert not kayenta.high(*SPARSE)[0]


def test_sparse_errors_are_not_passed_here() -> None:
    """Four errors against none: at equal weights that is no proof, at weight 5 it is."""
    assert ours(50, canary_units=300, stable_units=300, canary_bad=4, stable_bad=0) is Outcome.INCONCLUSIVE
    assert ours(5, canary_units=60, stable_units=1140, canary_bad=4, stable_bad=0) is Outcome.FAIL


def test_a_canary_whose_time_out_is_all_or_nothing() -> None:
    """spinnaker/kayenta#780, case 1 turned round: latencies of canary alternate, and its median hides half of them."""
    canary = points(1, 100, 4, 101, 5, 102, 6, 103, 7, 104, 8, 105, 9, 106, 17)
    stable = points(10, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 17, 17.1, 17.2, 17.3, 17.4, 17.5, 17.6, 17.7)
    assert not kayenta.high(canary, stable)[0]
    # Slower than stable ever was, 17.7: seven of fifteen minutes of canary, with ten requests each.
    assert ours(50, canary_units=150, stable_units=150, canary_bad=70, stable_bad=0) is Outcome.FAIL


def test_errors_every_fifth_minute_against_a_stable_without_any() -> None:
    """spinnaker/kayenta#799: with NaN replaced by 0, most minutes of both sides are alike."""
    canary = points(*([1, 0, 0, 0, 0, 2, 0, 0, 0, 0] * 2), 1, 0, 0, 0, 0)
    assert not kayenta.high(canary, np.zeros_like(canary))[0]
    assert ours(50, canary_units=2500, stable_units=2500, canary_bad=7, stable_bad=0) is not Outcome.PASS
    assert ours(10, canary_units=500, stable_units=4500, canary_bad=7, stable_bad=0) is Outcome.FAIL


def test_kayenta_finds_what_it_should() -> None:
    """spinnaker/kayenta#510: the miss is not ours."""
    assert kayenta.high(points(54.9, 54.5, 55.1, 55.6, 57.4), points(0, 0, 0, 0, 0))[0]
    assert not kayenta.high(points(1, 2, 3), points(1, 2, 3))[0]
    assert not kayenta.high(points(), points(1, 2))[0]


def test_strength_is_the_quantile_up_to_which_a_metric_is_high() -> None:
    rng = np.random.default_rng(4)
    canary, stable = rng.poisson(4, (300, 12)) * 1.0, rng.poisson(2, (300, 12)) * 1.0
    for z in (0.5, 1.3, 2.3263, 3.1):
        found = kayenta.compare(canary, stable, z)
        means = canary.mean(axis=1) >= stable.mean(axis=1)
        expected = means & (found.lower > kayenta.TOLERANCE * np.abs(found.estimate))
        assert (kayenta.high(canary, stable, z=z) == expected).all()


def test_the_interval_agrees_with_a_root_search() -> None:
    """Kayenta's own way: bisection on the standardised rank sum, ranks with ties averaged."""
    rng = np.random.default_rng(8)
    for canary, stable in (
        (rng.normal(1, 1, 9), rng.normal(0, 1, 11)),
        (rng.poisson(3, 8) * 1.0, rng.poisson(2, 10) * 1.0),
    ):
        found = kayenta.compare(canary[None], stable[None])
        assert found.lower[0] == pytest.approx(root(canary, stable, kayenta.Z_98), abs=1e-6)
        assert found.upper[0] == pytest.approx(root(canary, stable, -kayenta.Z_98), abs=1e-6)


def root(canary: np.ndarray, stable: np.ndarray, z: float) -> float:
    """The shift at which the standardised rank sum of canary crosses z."""
    low, high = canary.min() - stable.max() - 1e-9, canary.max() - stable.min() + 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if standardised(canary - middle, stable) > z else (low, middle)
    return float(high)


def standardised(canary: np.ndarray, stable: np.ndarray) -> float:
    n, m = canary.size, stable.size
    both = np.concatenate([canary, stable])
    ranks = (both[:, None] > both).sum(axis=1) + ((both[:, None] == both).sum(axis=1) + 1) / 2
    _, sizes = np.unique(both, return_counts=True)
    excess = ranks[:n].sum() - n * (n + 1) / 2 - n * m / 2
    ties = (sizes**3 - sizes).sum() / ((n + m) * (n + m - 1))
    return float((excess - 0.5 * np.sign(excess)) / np.sqrt(n * m / 12 * (n + m + 1 - ties)))
