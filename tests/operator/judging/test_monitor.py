"""The monitor of spec.accuracy: stakes are never expected to grow, and a drop is found."""

import math

import pytest

from bench.accuracy_sim import CHANGES, QUIET, Quiet, false_alarms, observations_until_found
from slipway_operator.judging.monitor import (
    BIN_FACTORS,
    LABEL_FACTORS,
    ShareTest,
    Stakes,
    evidence,
    moved,
    upper_bound,
)

WRONG = ShareTest(1, 0.1)


def binomial(events: int, total: int, share: float) -> float:
    return math.comb(total, events) * share**events * (1 - share) ** (total - events)


def invested(amount: float = 0.01, factors: tuple[float, ...] = LABEL_FACTORS) -> Stakes:
    return moved((), (WRONG,), factors, (0, 0), amount)


@pytest.mark.parametrize("share", [0.1, 0.08, 0.0])
@pytest.mark.parametrize("total", [1, 7, 40, 400])
def test_stakes_are_never_expected_to_grow_within_the_limit(share: float, total: int) -> None:
    """The sum over all outcomes, exactly: this and what is invested are all that the bound of false alarms needs."""
    stakes = invested()
    expected = sum(
        binomial(bad, total, share) * evidence(moved(stakes, (WRONG,), LABEL_FACTORS, (total - bad, bad), 0.0))
        for bad in range(total + 1)
    )
    assert expected <= evidence(stakes) * (1 + 1e-9)
    if share == 0.1 and total < 10:  # stakes that are far beyond an alarm are cut
        assert expected > evidence(stakes) * (1 - 1e-6), "at the limit nothing is given away"


def test_a_share_that_falls_is_tested_by_all_others() -> None:
    rare = ShareTest(0, 0.8, falling=True)
    assert rare.events((3, 5, 2)) == 7 and rare.holds((2, 8)) and not rare.holds((1, 9))
    stakes = moved((), (rare,), BIN_FACTORS, (0, 0), 0.01)
    assert evidence(moved(stakes, (rare,), BIN_FACTORS, (5, 95), 0.0)) > 1 > evidence(stakes)


def test_the_order_of_observations_and_the_number_of_readings_make_no_difference() -> None:
    stakes = invested()
    once = moved(stakes, (WRONG,), LABEL_FACTORS, (80, 20), 0.0)
    for _ in range(10):
        stakes = moved(stakes, (WRONG,), LABEL_FACTORS, (8, 0), 0.0)
        stakes = moved(stakes, (WRONG,), LABEL_FACTORS, (0, 2), 0.0)
    assert all(abs(one - other) < 50 for one, other in zip(once, stakes, strict=True)), "but for 20 times of rounding"


def test_rounding_never_favours_an_alarm_and_little_is_lost_by_it() -> None:
    stakes = invested()
    for _ in range(1000):
        stakes = moved(stakes, (WRONG,), LABEL_FACTORS, (0, 0), 0.0)
    assert 0.01 * (1 - 1e-5) < evidence(stakes) <= 0.01


def test_what_is_invested_is_staked_on_later_observations_alone() -> None:
    assert moved((), (WRONG,), LABEL_FACTORS, (0, 500), 0.0) == ()
    late = moved((), (WRONG,), LABEL_FACTORS, (0, 500), 0.01)
    assert abs(evidence(late) - 0.01) < 1e-6


def test_stakes_of_other_bets_count_as_lost() -> None:
    assert abs(evidence(moved((10**18, 3), (WRONG,), LABEL_FACTORS, (0, 0), 0.01)) - 0.01) < 1e-6
    assert evidence((10**18,)) < math.inf and evidence((-(10**18),)) == 0


def test_the_bound_of_a_reference_holds_as_often_as_it_says() -> None:
    """Chernoff: the exact probability of a sample whose bound is below the true share."""
    level, total = 0.01, 200
    for share in (0.02, 0.1, 0.5):
        missed = sum(binomial(bad, total, share) for bad in range(total + 1) if upper_bound(bad, total, level) < share)
        assert 0 < missed <= level or share == 0.02
    assert upper_bound(0, 100, level) < 0.05 and upper_bound(100, 100, level) == 1.0


def test_false_alarms_are_fewer_than_stated_in_a_hundred_years_at_the_limit() -> None:
    """At the limit, 100 labels a day and one alarm a year: with all ten thousand of `make accuracy-sim` 0.3 a year."""
    alarms = false_alarms(QUIET[1], 100, seed=11)
    assert 5 <= alarms <= 100


def test_a_drop_of_five_points_is_found_within_a_thousand_labels() -> None:
    """Right in 90 %, then in 85 %, with 0.1 false alarms a year: half of the runs find it within 600 labels."""
    found = sorted(observations_until_found(CHANGES[1], 15, seed=3))
    assert found[7] < 1000 and found[-1] < 3000


@pytest.mark.extended
@pytest.mark.parametrize("kind", QUIET, ids=lambda kind: kind.title)
def test_a_thousand_years_have_no_more_false_alarms_than_stated(kind: Quiet) -> None:
    assert false_alarms(kind, 1000, seed=21) <= kind.terms.rate * 1000
