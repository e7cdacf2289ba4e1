"""The compiled lane answers with copies of kept responses as Python does, and with none that Python keeps no longer."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import ResponseCache
from slipway_gateway.caching.entry import Entry
from slipway_gateway.caching.lane_copies import COPY_BYTES, KEY_BYTES, PLACE_BYTES, CopiedRequest, LaneCopies
from slipway_gateway.caching.request_key import SHARED
from slipway_gateway.caching.store import MemoryStore
from slipway_gateway.limits.budget import STALLED_S, MemoryBudget
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price
from slipway_gateway.quotas.tenant import Limits
from slipway_plane import NATIVE, WHY_MISSING
from testkit.until import until_async
from tests.gateway import harness, tenants
from tests.gateway.harness import Gateway, Upstream, drop, upstream
from tests.gateway.test_fast_lane import connect, counted, fast, post, read_response, reasons, recounts, report
from tests.gateway.test_fast_lane_tenants import books

from .served import HOUR, Answer, Model, ask, chat, publish
from .test_interleavings import compiled_lane

pytestmark = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)

KEY, OTHER = tenants.make_key("aaaaaa"), tenants.make_key("bbbbbb")
PRICE = Price("*", input_micro=1_000_000, output_micro=2_000_000, request_nano=5)
# Nothing flows back while a test runs, so that headers do not depend on time.
SLOW = Limits(requests_per_minute=1, input_tokens_per_minute=1, output_tokens_per_minute=1, burst_s=60_000_000)
_ID = re.compile(rb"chatcmpl-[0-9a-f]{32}")


@asynccontextmanager
async def lanes(
    model: Any = None, cache: ResponseCache | None = HOUR, **settings: Any
) -> AsyncIterator[tuple[Gateway, Gateway, Upstream]]:
    """A gateway in Python alone, and one with the lane, with the same cached route."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(model or Model()))
        gates = []
        for plane in ("off", "required"):
            gate = await stack.enter_async_context(harness.gateway(plane=plane, **settings))
            publish(gate, ("r1", 100, [server.url]), cache=cache)
            gates.append(gate)
        yield gates[0], gates[1], server


def caches(gate: Gateway) -> dict[str, float]:
    """All metrics of caches but the bytes of copies, by their labels."""
    gate.metrics.render()
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("slipway_gateway_cache_") and sample.name.endswith("_total")
    }


def seen(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """A response without what each one has of its own."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert 0 <= int(headers.pop("age", "0")) < 60
    kept = {name: value for name, value in headers.items() if name not in ("x-request-id", "date")}
    kept = {name: value for name, value in kept.items() if not name.startswith("x-ratelimit-reset")}
    return answer.status, kept, _ID.sub(b"", answer.body)


async def answer_any(request: web.Request) -> web.StreamResponse:
    """The response of an embedding server or of a classic model."""
    if request.path == "/v1/embeddings":
        wanted = (await request.json())["input"]
        given = wanted if isinstance(wanted, list) else [wanted]
        data = [{"object": "embedding", "index": at, "embedding": [0.5, len(one)]} for at, one in enumerate(given)]
        usage = {"prompt_tokens": 4 * len(given), "total_tokens": 4 * len(given)}
        return web.json_response({"object": "list", "model": "chat", "data": data, "usage": usage})
    if request.path.startswith("/v2/"):
        return web.json_response({"outputs": [{"name": "y", "data": [1]}]}, headers={"X-Own": "1", "Server": "engine"})
    return await Model()(request)


REQUESTS: Mapping[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    # by name: the body, its path, and headers
    "a chat": (chat(), "/v1/chat/completions", {}),
    "of a session": (chat(), "/v1/chat/completions", {"X_Session_Id": "s"}),
    "of a user": (chat(user="u"), "/v1/chat/completions", {}),
    "with an id": (chat(), "/v1/chat/completions", {"X_Request_Id": "mine-1"}),
    "by the route's name": (chat(model="default/chat"), "/v1/chat/completions", {}),
    "with a key": (chat(), "/v1/chat/completions", {"Authorization": "Bearer k"}),
    "with formats": (chat(), "/v1/chat/completions", {"Accept": "application/json"}),
    "closing": (chat(), "/v1/chat/completions", {"Connection": "close"}),
    "an embedding": ({"model": "chat", "input": "a"}, "/v1/embeddings", {}),
    "embeddings": ({"model": "chat", "input": ["a", "bb"]}, "/v1/embeddings", {}),
    "a prediction": ({"inputs": []}, "/v2/models/chat/infer", {}),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_hit_is_the_same_in_both_lanes_and_counts_alike(name: str) -> None:
    body, path, headers = REQUESTS[name]
    async with lanes(answer_any) as (python, both, server):
        made = [[seen(await ask(gate, body, path, **headers)) for _ in range(5)] for gate in (python, both)]
        assert made[0] == made[1]
        assert [one[1]["x-slipway-cache"] for one in made[1]] == ["miss", "hit", "hit", "hit", "hit"]
        assert len(server.seen) == 2
        await until_async(lambda: sum(both.outcomes().values()) == 5)
        # After a miss the connection stays in Python until there is a hit.
        assert (fast(both), reasons(both)) == (3, {"cache": 2 if name == "closing" else 1})
        assert (counted(python), caches(python)) == (counted(both), caches(both))
        expected, found = report(python), report(both)
        assert {**found, "samples": []} == {**expected, "samples": []}


async def test_a_hit_counts_as_assigned_and_as_no_outcome() -> None:
    async with lanes() as (python, both, server):
        for gate in (python, both):
            publish(gate, ("r1", 50, [server.url]), ("r2", 50, [server.url]), generation=5)
            for n in range(30):
                for _ in range(3):
                    await ask(gate, X_Session_Id=f"s{n % 20}")
        await until_async(lambda: sum(both.outcomes().values()) == 90)
        assert report(python) == report(both)
        assert fast(both) >= 80
        of_revisions = report(both)["samples"][-1]["revisions"].values()
        assert sum(one["assigned"] for one in of_revisions) == 20
        assert sum(one["requests"] for one in of_revisions) == 2


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, {"Cache_Control": "no-cache"}), ({}, {"Cache_Control": "no-store"}), ({}, {"Cache_Control": "max-age=60"}),
        ({"temperature": 1}, {"Cache_Control": "only-if-cached"}), ({"temperature": 1e-3, "seed": 1}, {}),
        ({"temperature": "1"}, {}), ({"metadata": {"a": 1}}, {}), ({}, {"Accept": "text/plain"}),
    ],
    ids=str,
)  # fmt: skip
async def test_what_the_lane_has_no_copy_for_is_pythons(fields: dict[str, Any], headers: dict[str, str]) -> None:
    async with lanes() as (_, gate, _):
        for _ in range(3):
            await ask(gate)
        await served(gate, 1)
        await ask(gate, chat(**fields), **headers)
        await served(gate, 1)
        assert reasons(gate) == {"cache": 2}


async def test_what_no_cache_keeps_is_served_by_the_lane_as_by_python() -> None:
    """Responses by chance: most of what clients send. They go to the server, and say so."""
    by_chance = {"temperature": 0.7}, {"temperature": None}, {"temperature": 1, "seed": None}
    async with lanes() as (python, both, server):
        for gate in (python, both):
            answers = [await ask(gate, chat(**fields)) for fields in by_chance for _ in range(2)]
            assert {answer.cache for answer in answers} == {"bypass"}
        await served(both, 6)
        assert len(server.seen) == 12 and reasons(both) == {}
        assert counted(python) == counted(both) and caches(python) == caches(both)
        assert report(python) == report(both)
        # A miss goes to Python, and the connection is the lane's again with the next request by chance.
        for fields in ({}, {"temperature": 0.7}, {"temperature": 0.7}):
            await ask(both, chat("other", **fields))
        await served(both, 7)
        assert reasons(both) == {"cache": 1}


async def test_what_no_cache_keeps_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)
    async with lanes() as (_, gate, _):
        await ask(gate, chat(temperature=0.7))
        await until_async(lambda: recounts(gate) == {"same": 1})
        monkeypatch.setattr(LaneCopies, "may_keep", lambda *about: True)
        await ask(gate, chat(temperature=0.7))
        await until_async(lambda: recounts(gate) == {"same": 1, "bypass": 1})


async def test_credentials_that_servers_get_are_no_reason_for_another_response() -> None:
    async with lanes() as (_, gate, server):
        publish(gate, ("r1", 100, [server.url]), forward_headers=("cookie",))
        for _ in range(3):
            await ask(gate)
        answers = [await ask(gate, Cookie=f"a={n}") for n in range(3)]
        assert [answer.cache for answer in answers] == ["bypass"] * 3
        await served(gate, 1)


async def test_requests_that_miss_stay_in_python_and_others_do_not() -> None:
    async with lanes() as (_, gate, server):
        for n in range(6):
            await ask(gate, chat(f"question {n}"))
        assert reasons(gate) == {"cache": 1}
        publish(gate, ("r1", 100, [server.url]), cache=None)
        for _ in range(4):
            await ask(gate)
        await served(gate, 3)  # the first one found the connection in Python
        assert reasons(gate) == {"cache": 1}


async def test_a_stream_and_a_long_response_have_no_copies() -> None:
    async with lanes() as (_, gate, _):
        for body in (chat(stream=True), chat("long " * 20_000)):
            answers = [await ask(gate, body) for _ in range(3)]
            assert [answer.cache for answer in answers] == ["miss", "hit", "hit"]
        await served(gate, 0)
        assert set(reasons(gate)) <= {"stream", "cache", "long_body"}


async def test_no_copy_outlives_the_entry_that_it_is_of() -> None:
    model = Model()
    async with lanes(model) as (_, gate, _):
        store = gate.caches.store
        assert isinstance(store, MemoryStore)
        for leaves in (lambda: store._reclaim(1 << 30), lambda: store._forget(next(iter(store._entries)))):
            for expected in ("miss", "hit", "hit"):
                assert (await ask(gate)).cache == expected
            leaves()
            assert gate.caches.copies is not None
            assert (len(gate.caches.copies), gate.caches.copies.size_bytes, copied(gate)) == (0, 0, 0)
        model.name = "another"
        await ask(gate, Cache_Control="no-cache")
        assert (await ask(gate)).text.startswith("another")


async def served(gate: Gateway, count: int) -> None:
    """Returns when the lane has counted so many requests."""
    await until_async(lambda: fast(gate) == count)


def copied(gate: Gateway) -> int:
    assert gate.edge.lane is not None
    return gate.edge.lane.native.copied_bytes


async def test_a_response_that_replaces_another_one_is_the_only_one() -> None:
    model = Model()
    async with lanes(model) as (_, gate, _):
        for n in range(5):
            model.name = f"m{n}"
            await ask(gate, Cache_Control="no-cache")
            texts = {(await ask(gate)).text for _ in range(3)}
            assert texts == {f"m{n} on why?"}
        await served(gate, 10)


async def test_a_time_to_live_ends_in_the_lane_too() -> None:
    async with lanes(cache=ResponseCache(1)) as (_, gate, _):
        results = set()
        async with asyncio.timeout(30):
            while not fast(gate):  # three requests within a second
                await ask(gate)
            while "miss" not in results:
                results.add((await ask(gate)).cache)
                await asyncio.sleep(0.05)


async def test_entries_are_of_a_revision_and_of_an_object() -> None:
    first, second = Model("r1"), Model("r2")
    async with lanes(first) as (_, gate, one), upstream(second) as other:
        for _ in range(3):
            assert (await ask(gate)).text.startswith("r1")
        publish(gate, ("r2", 100, [other.url]))
        assert [(await ask(gate)).cache for _ in range(3)] == ["miss", "hit", "hit"]
        publish(gate, ("r1", 100, [one.url]))
        answers = [await ask(gate) for _ in range(2)]
        assert [(answer.cache, answer.text[:2]) for answer in answers] == [("hit", "r1")] * 2
        await served(gate, 4)
        publish(gate, ("r1", 100, [one.url]), uid="another object")
        assert (await ask(gate)).cache == "miss"
        publish(gate, ("r1", 100, [one.url]), cache=None)
        assert (await ask(gate)).cache is None


async def test_what_the_lane_serves_stays_in_the_cache() -> None:
    """The least recently used response leaves: a use in the lane is one."""
    async with lanes() as (_, gate, _):
        for _ in range(2):
            await ask(gate, chat("used"))
        for n in range(5):
            await ask(gate, chat(f"other {n}"))
        assert [(await ask(gate, chat("used"))).cache for _ in range(2)] == ["hit", "hit"]
        await served(gate, 1)
        gate.metrics.render()  # Python learns of it
        store = gate.caches.store
        assert isinstance(store, MemoryStore)
        newest = store._keys._shares.of(next(iter(store._keys._shares._items)))
        entry = store._entries[list(newest)[-1]]
        assert b"used" in entry.body


async def test_copies_take_a_part_of_the_cache_and_no_more() -> None:
    async with lanes(cache_max_bytes=100_000) as (_, gate, _):
        for n in range(40):
            for _ in range(2):
                await ask(gate, chat(f"question {n} " + "x" * 500))
        assert gate.caches.copies is not None
        assert 0 < copied(gate) == gate.caches.copies.size_bytes <= 25_000
        gate.caches.copies._reclaim(1 << 30)
        assert (copied(gate), gate.caches.copies.size_bytes, len(gate.caches.copies._by_key)) == (0, 0, 0)


def known(**policy: Any) -> list[Any]:
    rules = Policy(**{"prices": (PRICE,), "limits": SLOW, **policy})
    return [replace(tenants.tenant(name, key), policy=rules) for name, key in (("a", KEY), ("b", OTHER))]


@pytest.mark.parametrize("percentage", [0, 10])
async def test_tenants_pay_for_hits_alike(percentage: int) -> None:
    settings = {"tenants": known(prices=(replace(PRICE, hit_percentage=percentage),)), "pepper": tenants.PEPPER}
    async with lanes(auth_mode="required", **settings) as (python, both, _):
        made: list[list[Any]] = []
        for gate in (python, both):
            made.append([seen(await ask(gate, **tenants.bearer(key))) for key in (KEY, OTHER) for _ in range(4)])
        assert made[0] == made[1]
        assert [one[1]["x-slipway-cache"] for one in made[1]] == ["miss", "hit", "hit", "hit"] * 2
        await until_async(lambda: sum(both.outcomes().values()) == 8)
        assert (fast(both), reasons(both)) == (4, {"cache": 2})
        found = [await books(gate) for gate in (python, both)]
        assert found[0] == found[1]
        assert sum(row["cache_hits"] for row in found[1]["ledger"]) == 6
        assert caches(python) == caches(both)


async def test_limits_and_budgets_refuse_hits_as_in_python() -> None:
    for policy in ({"limits": Limits(requests_per_minute=1, burst_s=240.0)}, {"budget": Budget(day_nano=13_020)}):
        settings = {"tenants": known(**policy), "pepper": tenants.PEPPER}
        async with lanes(auth_mode="required", **settings) as (python, both, _):
            made = [[(await ask(gate, **tenants.bearer(KEY))).status for _ in range(7)] for gate in (python, both)]
            assert made[0] == made[1]
            assert (made[1].count(200), made[1][-1]) == (4, 429), policy
            await served(both, 2)


async def test_tenants_share_responses_only_where_the_owner_says_so() -> None:
    for shared, expected in ((None, ["miss", "hit", "hit"]), (True, ["hit", "hit", "hit"])):
        async with lanes(cache=ResponseCache(3600, shared), tenants=known(), pepper=tenants.PEPPER) as (_, gate, _):
            for _ in range(3):
                await ask(gate, **tenants.bearer(KEY))
            assert [(await ask(gate, **tenants.bearer(OTHER))).cache for _ in range(3)] == expected


async def test_every_hit_is_counted_again_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)
    settings = {"tenants": known(prices=(replace(PRICE, hit_percentage=7),)), "pepper": tenants.PEPPER}
    async with lanes(answer_any, auth_mode="required", **settings) as (_, gate, _):
        for body, path, headers in REQUESTS.values():
            for _ in range(3):
                given = {name: value for name, value in headers.items() if name != "Authorization"}
                await ask(gate, body, path, **given, **tenants.bearer(KEY))
        assert fast(gate) >= len(REQUESTS)
        recounts = "slipway_gateway_recounts_total"
        value = gate.metrics.registry.get_sample_value
        await until_async(lambda: value(recounts, {"result": "same"}) == fast(gate))
        assert gate.edge.lane is not None
        assert gate.edge.lane.is_open, "nothing differs"


async def test_a_copy_of_another_response_is_found_and_closes_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)
    async with lanes() as (_, gate, _):
        for _ in range(2):
            await ask(gate)
        copies, lane = gate.caches.copies, gate.edge.lane
        assert copies is not None
        assert lane is not None
        (digest,) = copies._copies
        lane.native.put_copy(
            digest, revision="r1", headers=[("Content-Type", "application/json")], body=b"{}", own_id=(0, []),
            usage=None, stored_s=1e12, expires_s=1e12, size_bytes=1,
        )  # fmt: skip
        assert (await ask(gate)).body == b"{}"
        await until_async(lambda: not lane.is_open)
        assert lane.recounter.differing("default/chat") == ("copy",)


async def test_a_client_that_leaves_with_a_hit_is_charged_as_in_python() -> None:
    async with lanes() as (_, gate, _):
        for _ in range(2):
            await ask(gate)
        reader, writer = await connect(gate)
        writer.write(post(json.dumps(chat()).encode(), b"Content-Type: application/json\r\nAccept: */*\r\n"))
        status, headers, _ = await read_response(reader)
        assert (status, headers["x-slipway-cache"]) == (200, "hit")
        await drop(writer)
        await until_async(lambda: fast(gate) == 1)
        assert gate.edge.lane is not None
        await until_async(lambda: gate.edge.lane is not None and gate.edge.lane.in_flight.used == 0)
        assert gate.edge.lane.native.held_bytes == 0


async def test_a_hit_has_its_line_in_the_access_log(tmp_path: Any) -> None:
    lines = []
    for plane in ("off", "required"):
        path = tmp_path / f"{plane}.log"
        async with upstream(Model()) as server, harness.gateway(plane=plane, access_log=str(path)) as gate:
            publish(gate, ("r1", 100, [server.url]))
            for _ in range(3):
                await ask(gate)
            await until_async(lambda gate=gate: sum(gate.outcomes().values()) == 3)  # type: ignore[misc]
        lines.append([json.loads(line) for line in path.read_text().splitlines()])
    chance = ("ts", "request_id", "duration_ms", "ttft_ms")
    python, both = ([{k: v for k, v in one.items() if k not in chance} for one in made] for made in lines)
    assert python[-1] == both[-1]
    assert (both[-1]["cache"], both[-1].get("upstream", "")) == ("hit", "")


async def test_a_response_that_replaces_another_one_before_its_hit_is_counted_again_is_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)
    model = Model()
    async with lanes(model) as (_, gate, _):
        lane, waiting = gate.edge.lane, list[Any]()
        assert lane is not None
        monkeypatch.setattr(lane, "recount", waiting.append)
        for _ in range(3):
            await ask(gate)
        await until_async(lambda: len(waiting) == 1)
        model.name = "another"
        await ask(gate, Cache_Control="no-cache")
        answer = await ask(gate)  # Python's, which puts another copy into the lane
        assert (answer.cache, answer.text[:7], gate.caches.copies and len(gate.caches.copies)) == ("hit", "another", 1)
        lane.recounter.look(waiting[0])
        assert lane.recounter.differing("default/chat") == ()
        assert lane.is_open


async def test_embeddings_of_more_tokens_than_a_server_can_compute_are_relayed() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return web.json_response({"object": "list", "data": data, "usage": {"prompt_tokens": 1 << 63}})

    async with lanes(answer) as (python, both, _):
        for gate in (python, both):
            answers = [await ask(gate, {"model": "chat", "input": "a"}, "/v1/embeddings") for _ in range(3)]
            assert [one.status for one in answers] == [200] * 3


def to_copy(body: bytes) -> CopiedRequest:
    return CopiedRequest(SHARED, "default/chat", "u", "/v1/chat/completions", {}, body, "r1")


async def test_a_copy_counts_each_place_of_its_id_and_makes_no_entry_and_no_client_leave() -> None:
    now_s, evicted = 0.0, list[bool]()
    budget = MemoryBudget(200_000, 200_000, lambda: now_s)
    store = MemoryStore(100_000, budget, lambda: now_s)
    copies = LaneCopies(compiled_lane().native, store, 100_000, budget, lambda: now_s)
    body = b'{"id":"abcdefgh","ids":[%b]}' % b",".join([b'"abcdefgh"'] * 2000)
    entry = Entry(0.0, "r1", (("Content-Type", "application/json"),), body)
    await store.put({b"k": entry}, "", 3600)
    copies.offer(to_copy(b"1"), [b"k"], "", entry)
    assert copies.size_bytes == COPY_BYTES + KEY_BYTES + 2001 * PLACE_BYTES + entry.size_bytes
    stalled = budget.open("c")
    assert not stalled.grow(budget.limit_bytes - budget.used_bytes - copies.size_bytes + 1)
    stalled.waits(lambda: evicted.append(True))
    now_s = 2 * STALLED_S
    copies.offer(to_copy(b"2"), [b"k"], "", entry)
    assert (len(copies), len(store), evicted) == (1, 1, [])
    stalled.shrink(1)
    copies.offer(to_copy(b"2"), [b"k"], "", entry)
    assert len(copies) == 2
