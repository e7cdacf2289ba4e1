"""A memory in which the holder with most loses its oldest."""

from hypothesis import given
from hypothesis import strategies as st

from slipway_process.fair_memory import FairMemory


def test_beyond_the_limit_the_holder_with_most_loses_its_oldest() -> None:
    memory: FairMemory[str, int, str] = FairMemory(4)
    for number in range(4):
        assert memory.put("hog", number, f"h{number}") == []
    assert memory.put("quiet", 0, "q0") == [(0, "h0")]
    assert memory.put("hog", 9, "h9") == [(1, "h1")]
    assert memory.put("quiet", 1, "q1") == [(2, "h2")]
    assert memory.of("hog") == {3: "h3", 9: "h9"} and memory.of("quiet") == {0: "q0", 1: "q1"}
    memory.pop("hog", 3)
    memory.pop("hog", 3)
    assert memory.put("other", 0, "o0") == [] and sorted(memory.keys()) == [0, 0, 1, 9]
    assert memory.put("hog", 9, "again") == [] and memory.get("hog", 9) == "again" and memory.get("hog", 3) is None


@given(
    st.integers(0, 12),
    st.lists(
        st.tuples(st.sampled_from("pppd"), st.sampled_from("abc"), st.integers(0, 5), st.integers(1, 6)), max_size=80
    ),
)
def test_it_is_what_a_plain_search_for_the_largest_would_leave(
    limit: int, steps: list[tuple[str, str, int, int]]
) -> None:
    memory: FairMemory[str, str, int] = FairMemory(limit, int)
    for what, holder, number, size in steps:
        key = f"{holder}{number}"
        if what == "d":
            memory.pop(holder, key)
            continue
        held = {name: memory.of(name) for name in "abc"}
        held[holder].pop(key, None)
        held[holder][key] = size
        for gone, of_size in memory.put(holder, key, size):
            loser = held[gone[0]]
            assert sum(loser.values()) == max(sum(items.values()) for items in held.values())
            assert next(iter(loser.items())) == (gone, of_size)
            del loser[gone]
        assert held == {name: memory.of(name) for name in "abc"}
        assert memory.size == sum(sum(items.values()) for items in held.values()) <= limit


def test_holders_that_come_and_go_leave_nothing() -> None:
    memory: FairMemory[int, int, None] = FairMemory(10)
    for number in range(10_000):
        memory.put(number, 0, None)
    assert memory.size == 10 and len(memory._heap) < 200 and len(memory._sizes) == 10
