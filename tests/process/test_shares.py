"""The share of a tenant in a total: however many one takes, the next one gets a place at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process.shares import Shares


@pytest.mark.finding("F12")
@pytest.mark.parametrize(("most", "of_one", "newcomers"), [(32, 24, 8), (16, 12, 4), (8, 6, 2), (4, 3, 1), (2, 1, 1)])
def test_one_tenant_leaves_a_quarter_for_those_that_have_nothing(most: int, of_one: int, newcomers: int) -> None:
    shares = Shares(most)
    assert sum(shares.take("a") for _ in range(2 * most)) == of_one
    assert [shares.take(f"t{n}") for n in range(newcomers + 1)] == [True] * newcomers + [False]
    assert not shares.take("t0")
    shares.give_back("a")
    assert shares.room("late") == 1


def test_without_authentication_all_clients_share_all_places() -> None:
    shares = Shares(4)
    assert [shares.take("") for _ in range(5)] == [True] * 4 + [False]


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"))))
def test_no_more_is_taken_than_there_is_and_what_is_given_back_is_free(
    most: int, moves: list[tuple[bool, str]]
) -> None:
    shares = Shares(most)
    for takes, tenant in moves:
        room = shares.room(tenant)
        if takes:
            assert shares.take(tenant) is (room > 0)
        elif shares.taken[tenant]:
            shares.give_back(tenant)
        assert 0 <= shares.taken.total() <= most and all(shares.taken.values())
        assert all(0 <= shares.room(name) <= most - shares.taken.total() for name in "abcdef")
