"""Which ends of an engine are followed by another life, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process.serving.restarts import BACKOFF, EngineCrashed, EngineError, Restarts, keep_running


@given(st.lists(st.floats(0, 900), min_size=1, max_size=40), st.integers(0, 6))
def test_no_window_has_more_restarts_than_allowed(pauses: list[float], most: int) -> None:
    restarts, now, granted = Restarts(most, window_s=1000.0), 0.0, list[float]()
    for pause in pauses:
        now += pause
        delay_s = restarts.delay_s(now)
        if delay_s is not None:
            assert 0 <= delay_s <= BACKOFF.most_s
            granted.append(now)
        assert len([at for at in granted if now - at < 1000.0]) <= most


def test_the_first_restart_is_at_once_and_the_others_wait_ever_longer() -> None:
    restarts = Restarts(7)
    assert [restarts.delay_s(10.0 * n) for n in range(8)] == [0, 1, 2, 4, 8, 16, 30, None]
    assert restarts.delay_s(10_000.0) == 0


def test_with_a_limit_of_zero_the_first_crash_is_final() -> None:
    assert Restarts(0).delay_s(0.0) is None


async def lives(*ends: Exception, delays: list[float | None]) -> tuple[Exception, int, int]:
    """The error that was raised, and the numbers of processes and of restarts."""
    left, answers = iter(ends), iter(delays)
    count = restarts = 0

    async def live() -> None:
        nonlocal count
        count += 1
        raise next(left)

    def restarted() -> None:
        nonlocal restarts
        restarts += 1

    with pytest.raises(EngineError) as raised:
        await keep_running(live, lambda _: next(answers), restarted)
    assert list(answers) == []
    return raised.value, count, restarts


async def test_the_last_error_is_raised() -> None:
    first, second, failed = EngineCrashed("first"), EngineCrashed("second"), EngineError("no such file")
    assert await lives(first, second, delays=[0.0, None]) == (second, 2, 1)
    assert await lives(first, failed, delays=[0.01]) == (failed, 2, 1)
    assert await lives(failed, delays=[]) == (failed, 1, 0)
    assert await lives(first, delays=[None]) == (first, 1, 0)
