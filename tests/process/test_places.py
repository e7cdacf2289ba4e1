"""Places with shares: what one owner, and what many can take of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process.places import SHARE, TOTAL, Places

pytestmark = pytest.mark.attack_class(15)


def taken(places: Places, *owners: str) -> list[int]:
    """Each owner takes as much as it gets, one place a round; returns what each has."""
    while "" in {places.take(owner) for owner in owners}:
        pass
    return [places.held_by(owner) for owner in owners]


def test_part_of_each_owner() -> None:
    assert taken(Places(100), "a") == [50]
    assert taken(Places(99), "a", "b") == [33, 33]
    assert taken(Places(100, most=8), "a") == [8]
    assert taken(Places(50, most=20), "a", "b") == [17, 17]
    assert taken(Places(50, 100, most=20), "a", "b") == [20, 20]
    assert taken(Places(100, 25), "a") == [25]
    assert taken(Places(1), "a") == [1]


def test_what_is_left_is_free_and_what_is_there_already_counts() -> None:
    places = Places(10)
    places.force("a", size=6)
    assert places.free == 4 and places.take("a") == SHARE and places.take("b", size=5) == TOTAL
    places.leave("a", size=6)
    assert places.free == 10 and places.held_by("a") == 0 and places.take("a", size=5) == ""


def test_however_many_clients_take_all_they_can_as_much_as_each_has_stays_free() -> None:
    for greedy in (1, 2, 3, 9):
        places = Places(600)
        answers = {""}
        while "" in answers:
            answers = {places.take(f"client {n}") for n in range(greedy)}
        assert abs(places.held_by("client 0") - 600 / (greedy + 1)) <= 1
        assert places.limit - places.used >= places.held_by("client 0") - 1
        assert places.take("client 0") == SHARE and places.take("another") == ""


@given(
    st.integers(1, 12),
    st.sampled_from([1, 30, 50, 100]),
    st.integers(0, 4),
    st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 3)), max_size=60),
)
def test_places_are_counted_once_for_each_owner_and_never_beyond_the_limit(
    limit: int, percentage: int, most: int, steps: list[tuple[bool, str, str, int]]
) -> None:
    places, held = Places(limit, percentage, most), list[tuple[str, str, int]]()
    for takes, narrow, wide, size in steps:
        if takes and not (reason := places.take(narrow, wide, size=size)):
            held.append((narrow, wide, size))
        elif takes:
            assert (
                reason == TOTAL
                or any(places.held_by(name) for name in (narrow, wide))
                or size > 1
                or limit < 3
                or percentage < 50
            )
        elif held:
            first, second, many = held.pop()
            places.leave(first, second, size=many)
        assert places.used == sum(many for *_, many in held) <= limit
        for name in "abc":
            assert places.held_by(name) == sum(many for first, _, many in held if first == name)
            assert places.held_by(name) <= (most or limit)


def test_a_wider_owner_may_hold_more_than_a_narrower_one() -> None:
    places = Places(120)
    while not places.take("model a", "namespace a", "client"):
        pass
    assert places.held_by("namespace a") == 60
    while not places.take("model b", "namespace a", "client"):
        pass
    assert places.held_by("namespace a") == 80
    while not places.take("model c", "namespace c", "client"):
        pass
    assert places.held_by("client") == 90 and places.take("model d", "namespace d", "another") == ""
