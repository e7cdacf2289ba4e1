"""Delays grow by a factor, up to a limit, and chance takes away no more than its part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process.backoff import Backoff


def test_delays_grow_by_the_factor_up_to_the_limit() -> None:
    assert [Backoff(1.0, 30.0).delay_s(failures) for failures in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert [Backoff(0.5, 20.0, factor=3.0).delay_s(failures) for failures in range(1, 6)] == [0.5, 1.5, 4.5, 13.5, 20]
    assert [Backoff(2.0, 2.0).delay_s(failures) for failures in (1, 2, 3)] == [2.0, 2.0, 2.0]


def test_failures_may_be_counted_in_parts() -> None:
    """Where they are forgotten over time."""
    backoff = Backoff(0.1, 2.0)
    assert backoff.delay_s(0.0) == backoff.delay_s(-3.0) == 0.0
    assert backoff.delay_s(0.5) == pytest.approx(0.05 * 2**0.5)
    assert backoff.delay_s(1.5) == pytest.approx(0.1 * 2**0.5)


def test_chance_takes_away_its_part_of_a_delay() -> None:
    backoff = Backoff(0.2, 300.0, jitter=0.5)
    assert [backoff.delay_s(3, chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.6, 0.8])
    assert Backoff(0.2, 300.0, jitter=1.0).delay_s(3, 0.0) == 0.0
    assert Backoff(0.2, 300.0).delay_s(3, 0.0) == 0.8


@given(
    initial_s=st.floats(1e-3, 10.0),
    times=st.floats(1.0, 1e6),
    factor=st.floats(1.01, 10.0),
    failures=st.integers(1, 10**9),
    chance=st.floats(0.0, 1.0),
)
def test_delays_never_shrink_and_never_pass_the_limit(
    initial_s: float, times: float, factor: float, failures: int, chance: float
) -> None:
    backoff = Backoff(initial_s, initial_s * times, factor, jitter=0.5)
    delay_s, next_s = backoff.delay_s(failures, chance), backoff.delay_s(failures + 1, chance)
    assert 0.5 * initial_s <= delay_s <= next_s <= backoff.most_s
    assert backoff.delay_s(10**9) == backoff.most_s


@pytest.mark.parametrize("numbers", [(0.0, 1.0), (2.0, 1.0), (1.0, 2.0, 1.0), (1.0, 2.0, 2.0, 1.5)])
def test_numbers_that_make_no_backoff_are_refused(numbers: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="a delay has to grow"):
        Backoff(*numbers)
