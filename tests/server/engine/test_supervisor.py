"""Which ends of an engine are followed by another life."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.engine.client import EngineCrashed, EngineError
from slipway_server.engine.supervisor import Restarts, keep_running


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=30))
def test_no_two_crashes_of_one_window_are_both_followed_by_a_life(pauses: list[float]) -> None:
    restarts, now, last = Restarts(window_s=1000.0), 0.0, None
    for pause in pauses:
        now += pause
        assert restarts.allow(now) == (last is None or now - last >= 1000.0)
        last = now


async def lives(*ends: Exception, allowed: list[bool]) -> tuple[Exception, int]:
    """The end that was told, and how many lives there were."""
    left, answers = iter(ends), iter(allowed)
    count = 0

    async def live() -> None:
        nonlocal count
        count += 1
        raise next(left)

    with pytest.raises(EngineError) as told:
        await keep_running(live, lambda _: next(answers))
    assert list(answers) == []
    return told.value, count


async def test_the_end_that_is_told_is_the_last_one() -> None:
    first, second, failed = EngineCrashed("first"), EngineCrashed("second"), EngineError("no such file")
    assert await lives(first, second, allowed=[True, False]) == (second, 2)
    assert await lives(first, failed, allowed=[True]) == (failed, 2)
    assert await lives(failed, allowed=[]) == (failed, 1)
    assert await lives(first, allowed=[False]) == (first, 1)
