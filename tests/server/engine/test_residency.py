"""Which adapters are loaded: slots, bytes and pins stay right, and names are kept while requests use them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.engine.adapters.catalog import AdapterCatalog, CatalogEntry, UnknownAdapter
from slipway_server.engine.adapters.residency import Residency
from slipway_server.models.adapters.errors import AdapterError

NAMES = st.sampled_from("abcdef")


@given(st.lists(st.tuples(st.sampled_from(("add", "pin", "unpin", "remove")), NAMES, st.integers(1, 60)), max_size=60))
def test_bookkeeping_stays_right_whatever_comes(moves: list[tuple[str, str, int]]) -> None:
    residency, pins = Residency(3, 100), dict.fromkeys("abcdef", 0)
    for move, name, size in moves:
        if move == "add" and not residency.has(name):
            victims = residency.make_room(size)
            assert victims is None or not any(pins[victim] for victim in victims)
            if victims is not None:
                for victim in victims:
                    residency.remove(victim)
                residency.add(name, size)
        elif move == "pin" and residency.pin(name):
            pins[name] += 1
        elif move == "unpin" and pins[name]:
            residency.unpin(name)
            pins[name] -= 1
        elif move == "remove" and residency.has(name) and not pins[name]:
            residency.remove(name)
        assert all(residency.in_use(name) == (pins[name] > 0) for name in pins)
        residency.check(3)


def test_the_least_recently_used_adapter_without_requests_goes_first() -> None:
    residency = Residency(3, 100)
    for name in "abc":
        residency.add(name, 30)
    assert residency.pin("a")
    residency.unpin("a")
    assert residency.make_room(10) == ["b"]
    assert residency.make_room(60) == ["b", "c"]
    assert residency.pin("b")
    assert residency.make_room(10) == ["c"]


def test_room_is_made_however_many_requests_come_for_what_is_there() -> None:
    residency = Residency(2, 100)
    for name in "ab":
        residency.add(name, 50)
        assert residency.pin(name)
    assert residency.make_room(50) is None
    assert not residency.pin("a") and residency.pin("b")  # the one that was used longest ago gets no more requests
    residency.unpin("a")
    assert residency.make_room(50) == ["a"]
    residency.remove("a")
    residency.add("c", 50)
    assert residency.pin("b")


async def test_a_name_leaves_when_its_last_request_has_ended() -> None:
    catalog = AdapterCatalog("base")
    with catalog.loading("x"):
        catalog.add(CatalogEntry("x", "x", "digest", 4, 10))
    assert catalog.names == {"base", "x"} and catalog.digest_of("base") == ""
    with catalog.using("x") as digest, catalog.using("base"):
        assert digest == "digest"
        removing = asyncio.create_task(catalog.remove("x"))
        await asyncio.sleep(0)
        assert catalog.names == {"base"} and not removing.done()
        with pytest.raises(UnknownAdapter), catalog.using("x"):
            pass
        with pytest.raises(AdapterError), catalog.loading("x"):
            pass
    assert await removing == "digest"
    with catalog.loading("x"):
        pass


async def test_an_adapter_of_two_names_stays_for_the_other_one() -> None:
    catalog = AdapterCatalog("base")
    for name in "xy":
        catalog.add(CatalogEntry(name, name, "digest", 4, 10))
    assert await catalog.remove("x") == ""
    assert await catalog.remove("y") == "digest"
    with pytest.raises(UnknownAdapter):
        await catalog.remove("y")


@pytest.mark.parametrize("name", ["base", "x"])
def test_a_name_is_taken_once(name: str) -> None:
    catalog = AdapterCatalog("base")
    catalog.add(CatalogEntry("x", "x", "digest", 4, 10))
    with pytest.raises(AdapterError), catalog.loading(name):
        pass
