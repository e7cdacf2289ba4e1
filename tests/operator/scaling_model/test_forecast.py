"""Forecasts of demand with a season: their backtest, what makes them silent, and their numbers in a status."""

import math
import random

import pytest

from slipway_operator.scaling_model.forecast import BUCKET_S, Forecast, backtest

DAY_S = 86_400.0
BUCKETS = int(DAY_S / BUCKET_S)


def daily(bucket: int, rng: random.Random) -> float:
    return 1000.0 - 700.0 * math.cos(2 * math.pi * bucket / BUCKETS) + rng.gauss(0, 30.0)


def history(days: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [daily(bucket, rng) for bucket in range(days * BUCKETS)]


def learned(values: list[float]) -> Forecast:
    forecast = Forecast(DAY_S)
    for bucket, value in enumerate(values):
        for tick in range(3):
            forecast = forecast.add(bucket * BUCKET_S + 200.0 * tick, value)
    return forecast


def test_backtest_of_a_daily_season() -> None:
    result = backtest(history(6), DAY_S)
    print(f"error of the season {result.seasonal:.1f}, of the last value {result.last_value:.1f}, in {result.buckets}")
    assert result.seasonal < 0.95 * result.last_value
    assert result.buckets == 5 * BUCKETS


def test_it_is_silent_within_its_first_season_and_while_the_last_value_is_better() -> None:
    assert learned(history(1)[:-1]).at(DAY_S) is None
    rng, walk = random.Random(2), [1000.0]
    for _ in range(4 * BUCKETS):
        walk.append(max(1.0, walk[-1] + rng.gauss(0, 40.0)))
    walked = learned(walk)
    assert walked.at(len(walk) * BUCKET_S + 300.0) is None
    assert walked.skill is not None and walked.skill < 0


def test_a_peak_is_expected_before_it_comes() -> None:
    forecast = learned(history(4))
    noon = 4 * DAY_S + DAY_S / 2
    peak = forecast.peak(4 * DAY_S, noon)
    assert peak == pytest.approx(1700.0, rel=0.1)


def test_a_gap_is_no_demand_of_zero() -> None:
    forecast = learned(history(3))
    later = forecast.add(5 * DAY_S, 800.0)
    assert later.learned <= forecast.learned + 1
    assert later.level == pytest.approx(forecast.level, rel=0.5)


def test_its_numbers_survive_a_status_and_forged_ones_are_dropped() -> None:
    forecast = learned(history(4))
    numbers = [float(f"{number:.6g}") for number in forecast.numbers()]
    again = Forecast.of(numbers, DAY_S)
    at = 4 * DAY_S + 40_000.0
    assert again.at(at) == pytest.approx(forecast.at(at), rel=1e-3)
    assert Forecast.of(numbers, 3600.0).learned == 0
    assert Forecast.of(numbers[:-1], DAY_S).learned == 0
    assert Forecast.of([math.nan] * len(numbers), DAY_S).learned == 0
    assert Forecast.of([], DAY_S).learned == 0


def test_a_backtest_needs_more_than_a_season() -> None:
    with pytest.raises(ValueError, match="season"):
        backtest(history(1), DAY_S)
