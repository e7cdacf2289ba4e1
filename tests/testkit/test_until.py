"""Waiting for a condition."""

from collections.abc import Iterator

import pytest

from testkit.until import WaitFailed, until, until_async


@pytest.fixture
def numbers() -> Iterator[int]:
    return iter(range(100))


def test_the_first_look_that_holds_is_returned(numbers: Iterator[int]) -> None:
    assert until(lambda: next(numbers), "a third look", holds=lambda number: number == 2) == 2


def test_what_is_true_at_once_needs_no_time() -> None:
    assert until(lambda: "yes", "yes", 0.0) == "yes"


def test_the_error_has_what_was_waited_for_and_what_was_seen_last() -> None:
    with pytest.raises(WaitFailed, match=r"waited for: a reply; not within 0 s; last seen: \{'phase': 'Pending'\}"):
        until(lambda: {"phase": "Pending"}, "a reply", 0.0, holds=lambda _: False)
    with pytest.raises(WaitFailed, match="last seen: no guests"):
        until(list, "guests", 0.0, shown=lambda guests: "no guests")


def test_an_exception_of_a_look_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        until(lambda: 1 // 0, "a number")


async def test_an_event_loop_waits_for_coroutines_and_for_plain_values(numbers: Iterator[int]) -> None:
    async def look() -> int:
        return next(numbers)

    assert await until_async(look, "a fourth look", holds=lambda number: number == 3) == 3
    assert await until_async(lambda: next(numbers)) == 4
    with pytest.raises(WaitFailed, match="last seen: False"):
        await until_async(lambda: False, "never", 0.0)
