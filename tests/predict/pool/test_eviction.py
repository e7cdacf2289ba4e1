"""Which models leave: the least recently used one that may."""

from hypothesis import given
from hypothesis import strategies as st

from slipway_predict.pool.eviction import ModelInMemory, Others, PoolLimits, Room, make_room, shed

LIMITS = PoolLimits(memory_bytes=100, max_loaded=10, min_residency_s=10.0)
NOW = 1000.0


def model(name: str, size: int, used_s: float = 0.0, loaded_s: float = 0.0, **more: bool) -> ModelInMemory:
    return ModelInMemory((name, "1"), size, loaded_s, used_s, **more)


def evicted(room: Room) -> list[str]:
    return [name for name, _ in room.evict]


def test_with_room_nothing_leaves() -> None:
    assert make_room(LIMITS, [model("a", 60)], Others(), 40, NOW) == Room(fits=True)


def test_the_least_recently_used_one_leaves() -> None:
    loaded = [model("a", 40, used_s=3), model("b", 40, used_s=1), model("c", 20, used_s=2)]
    assert evicted(make_room(LIMITS, loaded, Others(), 30, NOW)) == ["b"]


def test_a_model_that_is_needless_to_evict_stays() -> None:
    loaded = [model("small", 10, used_s=1), model("large", 80, used_s=2)]
    assert evicted(make_room(LIMITS, loaded, Others(), 60, NOW)) == ["large"]


def test_pinned_and_busy_ones_and_those_just_loaded_stay() -> None:
    loaded = [
        model("pinned", 25, pinned=True),
        model("busy", 25, busy=True),
        model("new", 25, loaded_s=NOW - 4),
        model("old", 25),
    ]
    assert evicted(make_room(LIMITS, loaded, Others(), 25, NOW)) == ["old"]
    assert make_room(LIMITS, loaded, Others(), 50, NOW) == Room(wait_until_s=NOW + 6)
    assert make_room(LIMITS, loaded[:2], Others(), 60, NOW) == Room(wait_until_s=None)


def test_nothing_leaves_for_a_model_that_never_fits() -> None:
    loaded = [model("pinned", 50, pinned=True), model("a", 10)]
    assert "50 are left beside pinned models" in make_room(LIMITS, loaded, Others(), 51, NOW).impossible
    few = PoolLimits(100, 1)
    assert "1 models are pinned" in make_room(few, loaded, Others(), 1, NOW).impossible


def test_what_ends_already_makes_room_and_nothing_else_leaves() -> None:
    loaded = [model("a", 50)]
    assert make_room(LIMITS, loaded, Others(leaving_bytes=50, leaving=1), 50, NOW) == Room()


def test_the_number_of_models_is_a_limit_too() -> None:
    loaded = [model("a", 1, used_s=2), model("b", 1, used_s=1)]
    assert evicted(make_room(PoolLimits(100, 2), loaded, Others(), 1, NOW)) == ["b"]


def test_models_that_grow_make_others_leave_also_those_just_loaded() -> None:
    loaded = [model("grown", 90, used_s=5), model("new", 30, used_s=4, loaded_s=NOW), model("pinned", 5, pinned=True)]
    assert shed(LIMITS, loaded, Others()) == (("new", "1"),)
    assert shed(LIMITS, loaded[:1], Others()) == ()


MODELS = st.lists(
    st.builds(
        ModelInMemory,
        st.tuples(st.uuids().map(str), st.just("1")),
        st.integers(0, 60),
        st.floats(NOW - 20, NOW),
        st.floats(NOW - 20, NOW),
        busy=st.booleans(),
        pinned=st.booleans(),
    ),
    max_size=8,
)


@given(MODELS, st.integers(0, 120), st.integers(0, 50))
def test_in_any_memory_only_what_may_leave_leaves_and_enough_of_it(
    loaded: list[ModelInMemory], need: int, starting: int
) -> None:
    room = make_room(LIMITS, loaded, Others(starting_bytes=starting, starting=1 if starting else 0), need, NOW)
    gone = [one for one in loaded if one.key in room.evict]
    for one in gone:
        assert not one.busy and not one.pinned and NOW - one.loaded_s >= LIMITS.min_residency_s
    left = sum(one.size_bytes for one in loaded if one not in gone) + starting + need
    if room.fits or room.evict:
        assert left <= LIMITS.memory_bytes
    if room.fits:
        assert not room.evict
    if room.wait_until_s is not None:
        assert room.wait_until_s > NOW
