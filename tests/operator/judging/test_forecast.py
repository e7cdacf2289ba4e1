"""Wald's formula reproduces the design's table of detection, and the judge itself is as fast as that."""

import math

import pytest

from bench.judge_sim.latencies import Shape, slow
from slipway_operator.api.v1alpha1.analysis_run import Epoch
from slipway_operator.judging.evidence import log_ratio_evidence
from slipway_operator.judging.forecast import (
    Rates,
    canary_part,
    expected,
    observed,
    requests_until_fail,
    requests_until_pass,
)
from slipway_operator.model.analysis.spec import MetricSpec

ALPHA, SHARE, BETA = 0.01, 1 / 8, 0.05
TTFT, ITL = Shape(0.6), Shape(0.2)
# regression, weight, stable's rate, canary's rate, bad events, total requests, canary requests, seconds at 20/s
TABLE = [
    ("canary down", 0.05, 0.005, 1.0, 4, 65, 3, 3),
    ("0.5 to 10 %", 0.05, 0.005, 0.10, 10, 1035, 52, 52),
    ("0.5 to 2.5 %", 0.10, 0.005, 0.025, 37, 5253, 525, 264),
    ("0.5 to 1 %", 0.25, 0.005, 0.01, 162, 25_900, 6480, 1320),
    ("TTFT +50 %", 0.10, 0.05, slow(TTFT, 1.5), 76, 1236, 124, 62),
    ("TTFT +20 %", 0.10, 0.05, slow(TTFT, 1.2), 418, 7740, 774, 390),
    ("TTFT +20 %, 25", 0.25, 0.05, slow(TTFT, 1.2), 230, 3840, 960, 192),
    ("ITL +10 %", 0.10, 0.05, slow(ITL, 1.1), 160, 2794, 279, 138),
    ("empty", 0.10, 0.001, 0.01, 15, 8090, 809, 402),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_detection_table(row: tuple[str, float, float, float, int, int, int, int]) -> None:
    """Within 3 %, or half an event where they are few: the table rounds."""
    _, weight, stable, canary, events, total, on_canary, seconds = row
    rates = Rates(canary, stable, weight)
    needed = requests_until_fail(rates, 1.0, SHARE, ALPHA)
    assert needed * rates.events_per_request == pytest.approx(events, rel=0.03, abs=0.5)
    assert needed == pytest.approx(total, rel=0.03)
    assert needed * weight == pytest.approx(on_canary, rel=0.03, abs=0.5)
    assert needed / 20 == pytest.approx(seconds, rel=0.03, abs=0.5)


def test_the_cost_of_tolerance() -> None:
    rates = Rates(slow(TTFT, 1.2), 0.05, 0.10)
    assert requests_until_fail(rates, 1.25, SHARE, ALPHA) == pytest.approx(19_100, rel=0.03)


def test_number_of_samples_for_a_pass() -> None:
    """116 bad events at weight 25 for a p95 event, or 738 clean canary requests for okBelow 0.005."""
    rates = Rates(0.05, 0.05, 0.25)
    needed = requests_until_pass(rates, 2.0, None, BETA)
    assert needed == pytest.approx(2310, rel=0.03)
    assert needed * rates.events_per_request == pytest.approx(116, rel=0.03)
    clean = Rates(1e-9, 1e-9, 0.25)
    assert requests_until_pass(clean, 2.0, 0.005, BETA) * 0.25 == pytest.approx(738, rel=0.01)


@pytest.mark.parametrize("row", TABLE[1:], ids=lambda row: row[0])
def test_evidence_on_the_expected_counts_crosses_at_the_forecast(
    row: tuple[str, float, float, float, int, int, int, int],
) -> None:
    """On expected counts the judge needs no more than Wald's events, and at least half as many."""
    _, weight, stable, canary, *_ = row
    rates = Rates(canary, stable, weight)
    theta = canary_part(weight, rates.ratio)
    wald = requests_until_fail(rates, 1.0, SHARE, ALPHA) * rates.events_per_request
    needed = math.log(1 / ALPHA) + math.log(1 / SHARE)
    found = next(
        n for n in range(1, 2000) if log_ratio_evidence([n * theta], [n * (1 - theta)], [weight], 1.0) >= needed
    )
    assert 0.5 * wald < found <= 1.02 * wald + 1


def test_a_healthy_canary_is_never_expected_to_fail_nor_a_bad_one_to_pass() -> None:
    assert requests_until_fail(Rates(0.01, 0.01, 0.1), 1.0, SHARE, ALPHA) == math.inf
    assert requests_until_pass(Rates(0.05, 0.01, 0.1), 2.0, 0.005, BETA) == math.inf


def test_rates_that_are_observed_count_half_an_event_more() -> None:
    rates = observed(
        (
            Epoch(weight=5, canary_units=99, stable_units=1999, canary_bad=0, stable_bad=9),
            Epoch(weight=25, canary_units=100, stable_units=300, canary_bad=2, stable_bad=1),
        )
    )
    assert rates is not None
    assert (rates.canary, rates.weight) == (2.5 / 200, 0.25)
    assert rates.stable == pytest.approx(10.5 / 2300)
    assert observed((Epoch(weight=5, canary_units=10),)) is None


def test_forecast_names_the_expected_outcome() -> None:
    metric = MetricSpec("errors", share=1.0, ok_below=0.005)
    bad = expected(
        metric, (Epoch(weight=10, canary_units=200, stable_units=1800, canary_bad=8, stable_bad=9),), ALPHA, BETA
    )
    good = expected(
        metric, (Epoch(weight=10, canary_units=200, stable_units=1800, canary_bad=0, stable_bad=2),), ALPHA, BETA
    )
    assert bad.fails and not good.fails
    assert bad.samples is not None and good.samples is not None
