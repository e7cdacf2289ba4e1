"""Shares of a total: what one holder, and what many can take; items in turns of their holders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.model.shares import Shares, in_turns


def taken(shares: Shares[str], *holders: str) -> list[int]:
    """Let each holder take as much as it gets, one unit a round; returns what each has."""
    while sum(shares.take(holder) for holder in holders):
        pass
    return [shares.held(holder) for holder in holders]


def test_part_of_each_holder() -> None:
    assert taken(Shares(100), "a") == [50]
    assert taken(Shares(99), "a", "b") == [33, 33]
    assert taken(Shares(100, most=8), "a") == [8]
    assert taken(Shares(100, part=0.25), "a") == [25]
    assert taken(Shares(1), "a") == [1]


def test_a_newcomer_finds_room_whatever_the_others_do() -> None:
    shares: Shares[str] = Shares(4096)
    for number in range(8):
        taken(shares, f"hog-{number}")
    assert shares.free >= 16 and shares.take("newcomer")


def test_what_is_given_back_is_free() -> None:
    shares: Shares[str] = Shares(10)
    assert shares.take("a", 4) and not shares.take("a", 2)
    shares.give_back("a", 4)
    assert shares.free == 10 and shares.held("a") == 0 and shares.take("a", 5)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.booleans())))
def test_no_history_takes_more_than_there_is(steps: list[tuple[str, int, bool]]) -> None:
    shares: Shares[str] = Shares(50, most=20)
    for holder, size, gives in steps:
        if gives and shares.held(holder) >= size:
            shares.give_back(holder, size)
        elif not gives and shares.take(holder, size):
            assert shares.held(holder) <= 20
        assert shares.free == 50 - sum(map(shares.held, "abcd")) >= 0


@pytest.mark.parametrize(("items", "expected"), [("", ""), ("aaabbc", "abcaba"), ("abc", "abc"), ("baab", "baba")])
def test_items_in_turns(items: str, expected: str) -> None:
    assert "".join(in_turns(items, lambda item: item)) == expected
