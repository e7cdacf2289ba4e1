"""Stores: bounded in bytes and time, with a share for each owner; at Redis and Valkey, one that is away has nothing."""

import asyncio
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.caching.entry import ENTRY_BYTES, Entry
from slipway_gateway.caching.redis_store import RedisStore
from slipway_gateway.caching.store import Kept, KeptKeys, MemoryStore
from slipway_gateway.limits.budget import MemoryBudget
from slipway_gateway.quotas.usage import Usage
from tests.support.redis import KINDS, RedisServer, redis_server

from .served import ask, cached, chat

pytestmark = pytest.mark.integration


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def entry(body: bytes = b"{}", **changes: Any) -> Entry:
    fields: dict[str, Any] = {"stored_s": 5.0, "revision": "r1", "headers": (("Content-Type", "a/b"),), "body": body}
    return Entry(**fields | changes)


def store(limit_bytes: int = 100_000, budget_bytes: int = 1 << 30, clock: Clock | None = None) -> MemoryStore:
    return MemoryStore(limit_bytes, MemoryBudget(budget_bytes, budget_bytes, time.monotonic), clock or Clock())


async def test_entries_end_with_their_time() -> None:
    clock = Clock()
    kept = store(clock=clock)
    await kept.put({b"a": entry()}, "x", 10)
    assert await kept.get([b"a", b"b"]) == [entry(), None]
    clock.now_s += 10
    assert await kept.get([b"a"]) == [None]
    assert kept.size_bytes == 0


async def test_what_was_used_last_stays() -> None:
    size = entry(b"x" * 100).size_bytes
    kept = store(3 * size)
    for key in (b"a", b"b", b"c"):
        await kept.put({key: entry(b"x" * 100)}, "x", 10)
    await kept.get([b"a"])
    await kept.put({b"d": entry(b"x" * 100)}, "x", 10)
    assert [one is not None for one in await kept.get([b"a", b"b", b"c", b"d"])] == [True, False, True, True]
    assert kept.size_bytes == 3 * size


async def test_a_tenant_that_fills_the_cache_pushes_out_its_own() -> None:
    size = entry().size_bytes
    kept = store(20 * size)
    for n in range(5):
        await kept.put({b"of a %d" % n: entry()}, "a", 10)
    for n in range(100):
        await kept.put({b"of b %d" % n: entry()}, "b", 10)
    assert None not in await kept.get([b"of a %d" % n for n in range(5)])
    assert len(kept) == 20


async def test_requests_get_the_room_of_responses() -> None:
    budget = MemoryBudget(10_000, 10_000, time.monotonic)
    kept = MemoryStore(10_000, budget, Clock())
    await kept.put({b"a": entry(b"x" * 3000), b"b": entry(b"x" * 3000)}, "x", 10)
    assert not budget.open("client").grow(5000)
    assert [one is not None for one in await kept.get([b"a", b"b"])] == [False, True]
    await kept.put({b"c": entry(b"x" * 9000)}, "x", 10)
    assert await kept.get([b"c"]) == [None]
    assert budget.used_bytes == 5000 + kept.size_bytes


async def test_an_entry_takes_no_more_memory_than_is_counted() -> None:
    kept = store(1 << 30)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(2000):
        headers = tuple((f"Header-{n}-{m}", f"value {n} {m}") for m in range(4))
        await kept.put({n.to_bytes(32): entry(b"%d" % n * 50, headers=headers, usage=Usage(n, n))}, f"t{n % 50}", 10)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held <= kept.size_bytes
    assert kept.size_bytes <= 3 * held


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.integers(1, 60)), max_size=60))
def test_keys_are_within_their_bound_and_none_is_lost(puts: list[tuple[int, str, int]]) -> None:
    keys, kept = KeptKeys(100), dict[bytes, int]()
    for key, owner, size in puts:
        name = b"%d" % key
        gone = keys.put(name, Kept(owner, size, 10.0))
        assert gone is not None
        kept[name] = size
        for one in gone:
            del kept[one]
        assert keys.size_bytes == sum(kept.values()) <= 100
        assert len(keys) == len(kept)
    assert keys.put(b"large", Kept("a", 101, 10.0)) is None


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with redis_server(request.param) as found:
        yield found


def redis_store(server: RedisServer, prefix: str, limit_bytes: int = 1 << 20, **more: Any) -> RedisStore:
    return RedisStore(server.url, prefix, 1.0, limit_bytes, time.monotonic, **more)


async def test_gateways_share_entries_at_redis(server: RedisServer) -> None:
    one, other = redis_store(server, "shared"), redis_store(server, "shared")
    apart = redis_store(server, "another release")
    full = entry(b"\x00\xff", streams=True, usage=Usage(3, 4, 1))
    await one.put({b"a": full, b"b": entry()}, "x", 10)
    assert await other.get([b"a", b"c", b"b"]) == [full, None, entry()]
    assert await apart.get([b"a"]) == [None]
    await one._client.set(one._name(b"c"), b"no entry")
    assert await other.get([b"c"]) == [None]
    await one.put({b"short": entry()}, "x", 0.05)
    await asyncio.sleep(0.08)
    assert await other.get([b"short"]) == [None]
    for each in (one, other, apart):
        await each.close()


async def test_a_gateway_deletes_what_is_beyond_its_bytes_at_redis(server: RedisServer) -> None:
    size = entry().size_bytes
    kept = redis_store(server, "bounded", 5 * size)
    await kept.put({b"of a": entry()}, "a", 10)
    for n in range(20):
        await kept.put({b"of b %d" % n: entry()}, "b", 10)
    found = await kept.get([b"of a", *(b"of b %d" % n for n in range(20))])
    assert found[0] is not None
    assert sum(one is not None for one in found) == 5
    assert len(await kept._client.keys("bounded:*")) == 5
    assert ENTRY_BYTES < kept.size_bytes <= 5 * size
    await kept.close()


async def test_while_redis_is_away_requests_are_computed() -> None:
    with redis_server() as server:
        async with cached(cache_redis_url=server.url, redis_timeout_s=0.5) as (gate, _):
            assert [(await ask(gate)).cache for _ in range(2)] == ["miss", "hit"]
            server.kill()
            answers = [await ask(gate) for _ in range(3)]
            assert [(answer.status, answer.cache) for answer in answers] == [(200, "miss")] * 3
            assert gate.metrics.registry.get_sample_value("slipway_gateway_cache_failures_total") == 1
            server.start()
            await asyncio.sleep(1.1)
            assert [(await ask(gate, chat("again"))).cache for _ in range(2)] == ["miss", "hit"]


async def test_two_gateways_answer_with_each_others_responses(server: RedisServer) -> None:
    async with (
        cached(cache_redis_url=server.url, redis_prefix="two", redis_timeout_s=1.0) as (one, upstream),
        cached(cache_redis_url=server.url, redis_prefix="two", redis_timeout_s=1.0) as (other, _),
    ):
        first = await ask(one)
        second = await ask(other)
        assert (first.cache, second.cache, first.text) == ("miss", "hit", second.text)
        assert len(upstream.seen) == 1
