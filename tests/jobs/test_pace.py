"""How long a batch is likely to take."""

import math

import pytest

from slipway_jobs.pace import Pace, TimedLines, remaining_seconds


def test_without_a_completed_batch_nothing_is_estimated() -> None:
    assert Pace([], [TimedLines(10, 5.0)]).estimated_seconds(3) is None
    assert Pace([TimedLines(0, 5.0)], []).estimated_seconds(3) is None


def test_long_batches_count_more_than_short_ones() -> None:
    assert Pace([TimedLines(90, 9.0), TimedLines(10, 11.0)], []).estimated_seconds(50) == 10.0


def test_what_runs_is_finished_first() -> None:
    completed = [TimedLines(100, 10.0)]
    assert Pace(completed, [TimedLines(200, 5.0), TimedLines(10, 60.0)]).estimated_seconds(10) == 1.0 + 15.0


def test_the_rest_of_a_batch_takes_as_long_as_its_beginning() -> None:
    assert remaining_seconds(TimedLines(100, 5.0), 25) == 15.0
    assert remaining_seconds(TimedLines(100, 5.0), 0) is None
    assert remaining_seconds(TimedLines(100, 5.0), 100) == 0.0


@pytest.mark.parametrize("seconds", [-5.0, math.inf, math.nan])
def test_a_clock_that_jumps_gives_no_senseless_number(seconds: float) -> None:
    for estimate in (
        Pace([TimedLines(10, seconds)], []).estimated_seconds(10),
        Pace([TimedLines(10, 1.0)], [TimedLines(10, seconds)]).estimated_seconds(10),
        remaining_seconds(TimedLines(10, seconds), 5),
    ):
        assert estimate is None or (math.isfinite(estimate) and estimate >= 0)
