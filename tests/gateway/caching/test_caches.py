"""A real gateway answers equal requests with kept responses, and no others."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import ResponseCache
from testkit.until import until_async
from tests.gateway.grpc_gateway import grpc_gateway, infer, inferring
from tests.gateway.harness import gateway, upstream
from tests.gateway.test_judged import judged
from tests.support.report import route_reports

from .served import HOUR, USAGE, Model, ask, cached, chat, metric, publish


async def test_an_equal_request_gets_a_copy_with_an_id_of_its_own() -> None:
    model = Model()
    async with cached(model) as (gate, _):
        written_otherwise = json.dumps(chat(metadata={"a": 1}), indent=1, sort_keys=True).encode()
        first, second = await ask(gate), await ask(gate, written_otherwise, Content_Type="application/json")
        assert (first.cache, second.cache, model.computed) == ("miss", "hit", 1)
        assert second.headers["X-Slipway-Revision"] == "r1"
        assert second.headers["Age"] == "0"
        assert second.headers["X-Request-Id"] != first.headers["X-Request-Id"]
        one, other = first.json, second.json
        assert one["id"] != other["id"]
        assert len(one["id"]) == len(other["id"])
        assert one | {"id": ""} == other | {"id": ""}
        assert gate.outcomes() == {"ok": 2}
        of_route = {"model": "chat", "revision": "r1"}
        assert metric(gate, "cache_requests_total", **of_route, result="hit") == 1
        assert metric(gate, "cache_requests_total", **of_route, result="miss") == 1
        assert metric(gate, "cache_saved_tokens_total", **of_route, kind="input") == USAGE["prompt_tokens"]
        assert metric(gate, "cache_bytes") > len(first.body)


async def test_a_route_without_a_cache_keeps_nothing() -> None:
    model = Model()
    async with cached(model, cache=None) as (gate, _):
        answers = [await ask(gate) for _ in range(2)]
        assert model.computed == 2
        assert all(answer.cache is None for answer in answers)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5}, {"temperature": None}, {"temperature": "0"}, {"temperature": True, "seed": None},
        {"store": True}, {"tools": [{"type": "web_search"}]}, {"web_search_options": {"a": 1}},
    ],
    ids=str,
)  # fmt: skip
async def test_what_has_more_than_one_response_is_computed(fields: dict[str, Any]) -> None:
    model = Model()
    async with cached(model) as (gate, _):
        answers = [await ask(gate, chat(**fields)) for _ in range(2)]
        assert model.computed == 2
        assert {answer.cache for answer in answers} == {"bypass"}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2}, {"logprobs": True}, {"top_logprobs": 3}, {"seed": 1}, {"max_tokens": 5}, {"stop": ["a"]}, {"new": 1},
        {"temperature": 0.0}, {"messages": [{"role": "user", "content": "why? "}]}, {"cache_salt": "s"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
    ids=str,
)  # fmt: skip
async def test_every_other_field_is_part_of_the_key(fields: dict[str, Any]) -> None:
    model = Model()
    async with cached(model) as (gate, _):
        await ask(gate)
        assert (await ask(gate, chat(**fields))).cache == "miss"
        assert (await ask(gate, chat(**fields))).cache == "hit"
        assert model.computed == 2


async def test_a_seed_makes_a_sampled_response_one() -> None:
    async with cached(Model()) as (gate, _):
        body = chat(temperature=0.9, seed=3)
        assert [(await ask(gate, body)).cache for _ in range(2)] == ["miss", "hit"]


async def test_bodies_that_take_long_to_read_are_computed() -> None:
    async with cached(Model()) as (gate, _):
        for more in ({"x": "y" * (256 << 10)}, {"x": [{}] * 4097}):
            assert [(await ask(gate, json.dumps(chat(**more)).encode())).cache for _ in range(2)] == ["bypass"] * 2
        assert (await ask(gate, chat(x=[{}] * 4000))).cache == "miss"


async def test_names_that_appear_twice_are_not_compared() -> None:
    model = Model()
    async with cached(model) as (gate, _):
        body = json.dumps(chat()).replace('"temperature": 0', '"temperature": 0, "temperature": 0').encode()
        assert [(await ask(gate, body)).cache for _ in range(2)] == ["bypass", "bypass"]


@pytest.mark.parametrize(
    ("finish", "status", "headers"),
    [
        (None, 200, {}), ("content_filter", 200, {}), ("abort", 200, {}), ("stop", 500, {}), ("stop", 400, {}),
        ("stop", 200, {"Cache-Control": "no-store"}), ("stop", 200, {"Cache-Control": "max-age=5, Private"}),
        ("stop", 200, {"Set-Cookie": "a=b"}), ("stop", 200, {"Vary": "X-Team"}), ("stop", 200, {"Vary": "*"}),
    ],
    ids=str,
)  # fmt: skip
async def test_errors_and_what_is_cut_or_vetoed_or_not_for_others_is_not_kept(
    finish: str | None, status: int, headers: dict[str, str]
) -> None:
    model = Model(finish=finish)
    model.status, model.headers = status, headers
    async with cached(model) as (gate, _):
        answers = [await ask(gate) for _ in range(2)]
        assert model.computed == 2
        assert {answer.cache for answer in answers} == {"miss"}
        assert metric(gate, "cache_bytes") == 0


async def test_a_response_beyond_the_size_is_not_kept() -> None:
    model = Model("r1" + "x" * 2000)
    async with cached(model, cache_max_response_bytes=1500) as (gate, _):
        assert [(await ask(gate)).cache for _ in range(2)] == ["miss", "miss"]


async def test_streams_are_replayed_as_streams_and_whole_responses_as_such() -> None:
    model = Model()
    async with cached(model) as (gate, _):
        await ask(gate)
        body = chat(stream=True)
        first, second = await ask(gate, body), await ask(gate, body)
        assert (first.cache, second.cache, model.computed) == ("miss", "hit", 2)
        assert second.headers["Content-Type"] == "text/event-stream"
        assert second.body.endswith(b"data: [DONE]\n\n")
        assert b": keep" not in second.body
        ids = {event.pop("id") for answer in (first, second) for event in answer.events}
        assert len(ids) == 2
        assert [event["choices"] for event in first.events] == [event["choices"] for event in second.events]
        assert len(second.events) == 4


async def test_a_stream_with_its_usage_is_another_response() -> None:
    async with cached(Model()) as (gate, _):
        with_usage = chat(stream=True, stream_options={"include_usage": True})
        for body in (chat(stream=True), with_usage):
            first, second = await ask(gate, body), await ask(gate, body)
            assert (first.cache, second.cache) == ("miss", "hit")
            assert len(first.events) == len(second.events)


async def test_a_stream_that_breaks_off_is_not_kept() -> None:
    calls = 0

    async def breaking(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n')
        if calls == 1:
            assert request.transport is not None
            request.transport.abort()
        return out  # without an end

    async with cached(breaking) as (gate, _):
        for _ in range(3):
            answer = await ask(gate, chat(stream=True))
            assert answer.cache == "miss"
        assert calls == 3


@pytest.mark.parametrize(
    ("header", "cache", "status"),
    [
        ("no-cache", "miss", 200), ("no-store", "miss", 200), ("max-age=0", "miss", 200),
        ("max-age=nothing", "miss", 200),
        ("max-age=60", "hit", 200), ("only-if-cached", "hit", 200), ("only-if-cached, no-cache", None, 504),
        ("min-fresh=1", "hit", 200), ("NO-CACHE", "miss", 200),
    ],
    ids=str,
)  # fmt: skip
async def test_cache_control_of_the_client(header: str, cache: str | None, status: int) -> None:
    async with cached(Model()) as (gate, _):
        await ask(gate)
        await asyncio.sleep(0.002)
        answer = await ask(gate, Cache_Control=header)
        assert (answer.cache, answer.status) == (cache, status)


async def test_no_store_keeps_nothing_and_no_cache_keeps_the_new_response() -> None:
    model = Model()
    async with cached(model) as (gate, _):
        await ask(gate, Cache_Control="no-store")
        assert (await ask(gate)).cache == "miss"
        model.name = "later"
        assert (await ask(gate, Cache_Control="no-cache")).text.startswith("later")
        assert (await ask(gate)).text.startswith("later")


async def test_only_if_cached_computes_nothing() -> None:
    model = Model()
    async with cached(model) as (gate, _):
        answer = await ask(gate, Cache_Control="only-if-cached")
        assert (answer.status, answer.json["error"]["code"], model.computed) == (504, "not_cached", 0)
        assert answer.headers["x-should-retry"] == "false"
        assert gate.outcomes() == {"client_error": 1}


async def test_entries_end_with_their_time_also_with_one_that_was_shortened() -> None:
    async with cached(Model(), cache=ResponseCache(1)) as (gate, server):
        assert [(await ask(gate)).cache for _ in range(2)] == ["miss", "hit"]
        await asyncio.sleep(1.05)
        assert (await ask(gate)).cache == "miss"
        publish(gate, ("r1", 100, [server.url]), cache=HOUR)
        await ask(gate, chat("other"))
        await asyncio.sleep(1.05)
        publish(gate, ("r1", 100, [server.url]), cache=ResponseCache(1))
        assert (await ask(gate, chat("other"))).cache == "miss"


async def test_a_rollback_brings_the_entries_of_its_revision_back() -> None:
    one, two = Model("one"), Model("two")
    async with upstream(one) as a, upstream(two) as b, gateway() as gate:
        publish(gate, ("r1", 100, [a.url]))
        assert (await ask(gate)).text == "one on why?"
        publish(gate, ("r2", 100, [b.url]))
        assert (await ask(gate)).text == "two on why?"
        publish(gate, ("r1", 100, [a.url]))
        back = await ask(gate)
        assert (back.cache, back.text, back.headers["X-Slipway-Revision"]) == ("hit", "one on why?", "r1")
        publish(gate, ("r1", 100, [a.url]), uid="another object of this name")
        assert (await ask(gate)).cache == "miss"


async def test_the_split_chooses_before_the_cache() -> None:
    async with upstream(Model("one")) as a, upstream(Model("two")) as b, gateway() as gate:
        publish(gate, ("r2", 50, [b.url]), ("r1", 50, [a.url]))
        for _ in range(2):
            for n in range(12):
                answer = await ask(gate, X_Session_Id=f"s{n}")
                name = {"r1": "one", "r2": "two"}[answer.headers["X-Slipway-Revision"]]
                assert answer.text == f"{name} on why?"
        assert metric(gate, "cache_requests_total", model="chat", revision="r1", result="miss") == 1
        assert metric(gate, "cache_requests_total", model="chat", revision="r2", result="miss") == 1


async def test_hits_are_no_outcome_for_the_judge_and_their_sessions_are_assigned() -> None:
    async with upstream(Model("one")) as a, upstream(Model("two")) as b, gateway() as gate:
        publish(gate, ("r2", 50, [b.url]), ("r1", 50, [a.url]))
        for n in range(20):
            await ask(gate, X_Session_Id=f"s{n}")
        requests = [judged(gate, revision)[0] for revision in ("r1", "r2")]
        assert sum(requests) == 2
        (sample,) = route_reports(gate.balancer)["default/chat"]["samples"]
        assert sum(counts["assigned"] for counts in sample["revisions"].values()) == 20


async def test_a_hit_is_no_activity_and_wakes_no_pod() -> None:
    async with cached(Model()) as (gate, server):
        await ask(gate)
        publish(gate, ("r1", 100, [server.url]), asleep=True, wake_s=5)
        assert (await ask(gate)).cache == "hit"
        calls = await gate.balancer.activity.wait_for_changes("", 0)
        assert not calls.routes


async def test_tenants_by_key_share_nothing_unless_the_owner_says_so() -> None:
    model = Model()
    async with cached(model) as (gate, server):
        for key in ("sk-a", "sk-b"):
            answers = [await ask(gate, Authorization=f"Bearer {key}") for _ in range(2)]
            assert [answer.cache for answer in answers] == ["miss", "hit"]
        assert (await ask(gate)).cache == "miss", "nor with those that have no tenant"
        publish(gate, ("r1", 100, [server.url]), cache=ResponseCache(3600, True))
        answers = [await ask(gate, Authorization=f"Bearer {key}") for key in ("sk-a", "sk-b")]
        assert [answer.cache for answer in answers] == ["miss", "hit"]


async def test_a_server_that_knows_the_client_is_always_asked() -> None:
    model = Model()
    async with cached(model) as (gate, server):
        publish(gate, ("r1", 100, [server.url]), forward_headers=("cookie",))
        assert [(await ask(gate, Cookie="a=b")).cache for _ in range(2)] == ["bypass", "bypass"]
        assert [(await ask(gate)).cache for _ in range(2)] == ["miss", "hit"]


async def test_equal_requests_that_wait_are_computed_once() -> None:
    model = Model()
    model.gate.clear()
    async with cached(model) as (gate, _):
        asking = [asyncio.create_task(ask(gate)) for _ in range(20)]
        other = asyncio.create_task(ask(gate, chat("other")))
        await until_async(lambda: gate.caches.flights.waits == 19 and model.computed == 2)
        model.gate.set()
        answers = await asyncio.gather(*asking)
        assert model.computed == 2
        assert sorted(answer.cache for answer in answers) == ["hit"] * 19 + ["miss"]
        assert len({answer.json["id"] for answer in answers}) == 20
        assert {answer.text for answer in answers} == {"r1 on why?"}
        assert (await other).text == "r1 on other"
        assert metric(gate, "cache_requests_total", model="chat", revision="r1", result="joined") == 19
        assert gate.caches.flights.waits == 0


async def test_a_client_that_leaves_ends_only_its_own_request() -> None:
    model = Model()
    model.gate.clear()
    async with cached(model) as (gate, _):
        leader = asyncio.create_task(ask(gate))
        await until_async(lambda: model.computed == 1)
        asking = [asyncio.create_task(ask(gate)) for _ in range(5)]
        await until_async(lambda: gate.caches.flights.waits == 5)
        leaving = asking.pop()
        leaving.cancel()
        await until_async(lambda: gate.caches.flights.waits == 4)
        leader.cancel()
        await until_async(lambda: model.computed == 2)  # the next one leads
        assert gate.caches.flights.waits == 3
        model.gate.set()
        answers = await asyncio.gather(*asking)
        assert sorted(answer.cache for answer in answers) == ["hit", "hit", "hit", "miss"]
        await until_async(lambda: gate.outcomes() == {"ok": 4, "client_closed": 2})


async def test_after_a_failure_the_next_one_tries() -> None:
    model = Model()
    model.gate.clear()
    model.status = 500
    async with cached(model) as (gate, _):
        asking = [asyncio.create_task(ask(gate)) for _ in range(3)]
        await until_async(lambda: gate.caches.flights.waits == 2)
        model.gate.set()
        answers = await asyncio.gather(*asking)
        assert [answer.status for answer in answers] == [500] * 3
        assert model.computed == 3


async def test_what_cannot_be_kept_is_computed_for_all_at_once() -> None:
    model = Model(finish="content_filter")
    model.gate.clear()
    async with cached(model) as (gate, _):
        asking = [asyncio.create_task(ask(gate)) for _ in range(4)]
        await until_async(lambda: gate.caches.flights.waits == 3)
        model.gate.set()
        assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
        assert model.computed == 4


async def test_one_client_leaves_others_their_places_to_wait() -> None:
    model = Model()
    model.gate.clear()
    async with cached(model) as (gate, _):
        gate.caches.flights._waiting.limit = 4
        asking = [asyncio.create_task(ask(gate)) for _ in range(8)]
        await until_async(lambda: gate.caches.flights.waits == 2 and model.computed == 6)
        model.gate.set()
        await asyncio.gather(*asking)


async def test_a_retry_that_another_revision_answered_is_that_revisions() -> None:
    one, two = Model("one"), Model("two")
    one.status = 503
    async with upstream(one) as a, upstream(two) as b, gateway() as gate:
        publish(gate, ("r1", 100, [a.url]), ("r2", 0, [b.url]))
        first = await ask(gate)
        assert (first.headers["X-Slipway-Revision"], first.text) == ("r2", "two on why?")
        one.status = 200
        second = await ask(gate)
        assert (second.cache, second.text) == ("miss", "one on why?")
        publish(gate, ("r2", 100, [b.url]))
        third = await ask(gate)
        assert (third.cache, third.text) == ("hit", "two on why?")


async def test_messages_of_anthropic_have_copies_too() -> None:
    model = Model()
    async with cached(model) as (gate, _):
        body = {"model": "chat", "max_tokens": 9, "temperature": 0, "messages": [{"role": "user", "content": "why?"}]}
        answers = [await ask(gate, body, "/v1/messages") for _ in range(2)]
        assert [answer.json["content"][0]["text"] for answer in answers] == ["r1 on why?"] * 2
        assert model.computed == 1
        streams = [await ask(gate, body | {"stream": True}, "/v1/messages") for _ in range(2)]
        assert model.computed == 2
        assert all(b"message_stop" in answer.body for answer in streams)


async def test_predictions_are_compared_byte_for_byte() -> None:
    calls = 0

    async def predict(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return web.json_response({"outputs": [calls]}, headers={"Inference-Header-Content-Length": "15"})

    async with cached(predict) as (gate, _):
        path = "/v2/models/chat/infer"
        for body in (b'{"inputs": [1]}', b'{"inputs":  [1]}', b"\x00\xff binary"):
            first, second = await ask(gate, body, path), await ask(gate, body, path)
            assert (first.cache, second.cache, first.json) == ("miss", "hit", second.json)
            assert second.headers["Inference-Header-Content-Length"] == "15"
        assert calls == 3
        other = await ask(gate, b'{"inputs": [1]}', path, Inference_Header_Content_Length="8")
        assert other.cache == "miss"
        rank = {"model": "chat", "query": "q", "documents": ["a"], "user": "u"}
        assert [(await ask(gate, rank, "/v1/rerank")).cache for _ in range(2)] == ["miss", "hit"]


async def test_requests_that_wait_end_with_the_gateway() -> None:
    model = Model()
    model.gate.clear()
    async with cached(model) as (gate, _):
        asking = [asyncio.create_task(ask(gate)) for _ in range(4)]
        await until_async(lambda: gate.caches.flights.waits == 3)
        gate.edge.cut()
        answers = await asyncio.gather(*asking)
        assert {(answer.status, answer.json["error"]["code"]) for answer in answers} == {(503, "draining")}
        assert gate.outcomes() == {"drained": 4}
        model.gate.set()


async def test_waiting_for_an_equal_request_has_a_time_limit() -> None:
    model = Model()
    model.gate.clear()
    async with cached(model) as (gate, _):
        leader = asyncio.create_task(ask(gate))
        await until_async(lambda: model.computed == 1)
        gate.caches._wait_timeout_s = 0.1
        answer = await ask(gate)
        assert (answer.status, answer.json["error"]["code"]) == (504, "timeout")
        model.gate.set()
        assert (await leader).status == 200


async def test_calls_of_grpc_have_copies_too() -> None:
    async with upstream(inferring(1, 2)) as server, grpc_gateway() as made:
        publish(made.gate, ("r1", 100, [server.url]))
        first, second = [await made.call("ModelInfer", infer(payload=b"a")) for _ in range(2)]
        assert first == second
        await made.call("ModelInfer", infer(payload=b"b"))
        assert len(server.seen) == 2
        assert made.gate.outcomes() == {"ok": 3}


async def test_a_client_that_does_not_read_its_copy_is_ended() -> None:
    model = Model("r1 " + "word " * 60_000)  # a stream of some megabytes
    async with cached(model, cache_max_response_bytes=16 << 20, stall_timeout_s=0.3) as (gate, _):
        body = chat(stream=True)
        assert (await ask(gate, body)).cache == "miss"
        _, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rpartition(":")[2]), limit=1024)
        sent = json.dumps(body).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Accept: */*\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent)
        await until_async(lambda: gate.outcomes() == {"ok": 1, "client_closed": 1})
        writer.close()
        assert metric(gate, "cache_requests_total", model="chat", revision="r1", result="hit") == 1
        assert gate.budget.used_bytes == gate.caches.store.size_bytes
