"""Limits at the gateway: refusals that clients understand, and one settlement for every ending."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.ledger.periods import hour_of
from slipway_gateway.ledger.store import Spent
from slipway_gateway.quotas.policy import Budget, Policy, RequestBounds
from slipway_gateway.quotas.prices import Price, micro
from slipway_gateway.quotas.shared import AnyQuota
from slipway_gateway.quotas.tenant import Limits
from testkit.until import until_async
from tests.gateway import tenants as known
from tests.gateway.harness import Gateway, Upstream, answering, gateway, refused_url, upstream

KEY = known.make_key()
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BODY = {"model": "chat", "max_tokens": 10, "messages": [{"role": "user", "content": "x" * 100}]}
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
SLIPWAY_USAGE = {"input_tokens": 7, "output_tokens": 5}
STREAM = "2a-65-" + "0" * 32


def tenant(limits: Limits | None = None, **changes: Any) -> KnownTenant:
    return replace(known.tenant("team-a", KEY), policy=Policy(limits or Limits(), **changes))


@contextlib.asynccontextmanager
async def running(one: KnownTenant, handler: Any, **changes: Any) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with (
        upstream(handler) as server,
        gateway(tenants=[one], pepper=known.PEPPER, auth_mode="required", **changes) as edge,
    ):
        edge.route(("r1", 100, [server.url]))
        yield edge, server


async def post(edge: Gateway, path: str = CHAT, body: Any = None, **headers: str) -> aiohttp.ClientResponse:
    sent = known.bearer(KEY) | headers
    return await edge.post(BODY if body is None else body, path, headers=sent)


def quota(edge: Gateway) -> AnyQuota:
    found = edge.admission.quotas.find("team-a")
    assert found is not None
    return found


def taken(edge: Gateway, name: str) -> int:
    """Units of a limit that are gone, by now."""
    return round(quota(edge).owed(name, asyncio.get_running_loop().time()))


async def charged(edge: Gateway) -> dict[str, int]:
    await edge.ledger.flush()
    _, rows = await edge.ledger.usage(0, 1 << 30, "")
    return {name: sum(row[name] for row in rows) for name in ("requests", "input_tokens", "output_tokens", "cost_nano")}


# Slow enough that nothing flows back while a test runs.
LIMITS = Limits(requests_per_minute=1, input_tokens_per_minute=1, output_tokens_per_minute=1, burst_s=60_000)


async def whole(request: web.Request) -> web.StreamResponse:
    usage = SLIPWAY_USAGE if request.path in ("/v1/generate", "/api/v1/generate", "/api/v1/embed") else USAGE
    if request.path in (EMBEDDINGS, "/v1/rerank"):
        usage = {"prompt_tokens": 7, "total_tokens": 7}
    return web.json_response({"choices": [{"text": "hello"}], "usage": usage})


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        (CHAT, (7, 5)),
        (COMPLETIONS, (7, 5)),
        (EMBEDDINGS, (7, 0)),
        ("/v1/rerank", (7, 0)),
        ("/v1/generate", (7, 5)),
        ("/api/v1/generate", (7, 5)),
        ("/api/v1/embed", (7, 5)),
        ("/api/v1/models/chat/generate", (7, 5)),
    ],
)
async def test_a_response_is_charged_by_its_usage_on_every_path(path: str, tokens: tuple[int, int]) -> None:
    async with running(tenant(LIMITS), whole) as (edge, _):
        response = await post(edge, path)
        await response.read()
        assert response.status == 200
        assert response.headers["x-ratelimit-limit-requests"] == "1"
        assert (taken(edge, "requests"), taken(edge, "input_tokens"), taken(edge, "output_tokens")) == (1, *tokens)
        found = await charged(edge)
        assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (1, *tokens)
        assert quota(edge).running == 0


async def test_a_reranker_reserves_its_query_for_each_document() -> None:
    """With the bytes of the body alone a tenant had a hundred times of its limit in progress at once."""
    open_ = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        await open_.wait()
        return await whole(request)

    async with running(tenant(replace(LIMITS, input_tokens_per_minute=1000)), waits) as (edge, server):
        body = {"model": "chat", "query": "q" * 4000, "documents": ["a"] * 100}
        running_ = asyncio.create_task(post(edge, "/v1/rerank", body))
        await until_async(lambda: asyncio.sleep(0, server.seen), "the server has it")
        assert taken(edge, "input_tokens") == pytest.approx(100_000, rel=0.02)
        began_s = time.monotonic()
        open_.set()
        await (await running_).read()
        # 7, less what flows back of a bucket of 1,000 a minute.
        assert 7 - math.ceil((time.monotonic() - began_s) * 1000 / 60) <= taken(edge, "input_tokens") <= 7


async def test_of_100_requests_at_once_with_a_limit_of_one_one_is_served() -> None:
    async with running(tenant(Limits(requests_per_minute=1)), whole) as (edge, server):
        responses = await asyncio.gather(*(post(edge) for _ in range(100)))
        statuses = [response.status for response in responses]
        assert statuses.count(200) == 1
        assert statuses.count(429) == 99
        assert len(server.seen) == 1
        assert edge.outcomes() == {"ok": 1, "refused": 99}
        assert await charged(edge) == {"requests": 1, "input_tokens": 7, "output_tokens": 5, "cost_nano": 0}


async def test_a_refusal_is_that_of_openai() -> None:
    async with running(tenant(Limits(output_tokens_per_minute=100)), whole) as (edge, _):
        body = BODY | {"max_tokens": 96}
        quota_before = [await post(edge, body=body) for _ in range(2)]
        refused = await post(edge, body=BODY | {"max_tokens": 100})
        assert [one.status for one in quota_before] == [200, 429] or refused.status == 429
        error = (await refused.json())["error"]
        assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
        assert "100 output tokens per minute" in error["message"]
        assert int(refused.headers["Retry-After"]) >= 1
        assert int(refused.headers["retry-after-ms"]) >= 1
        assert refused.headers["x-ratelimit-limit-tokens"] == "100"
        assert refused.headers["x-ratelimit-reset-tokens"]


async def test_concurrency_is_given_back_at_the_end() -> None:
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await whole(request)

    async with running(tenant(Limits(concurrency=1)), slow) as (edge, server):
        first = asyncio.create_task(post(edge))
        await until_async(lambda: server.seen)
        refused = await post(edge)
        assert refused.status == 429
        assert "1 concurrent requests" in (await refused.json())["error"]["message"]
        release.set()
        assert (await first).status == 200
        assert (await post(edge)).status == 200


async def test_a_spent_budget_refuses_with_insufficient_quota() -> None:
    prices = (Price("chat", micro("1000000")),)  # 1 for each token
    one = tenant(prices=prices, budget=Budget(day_nano=10 * 10**9))
    async with running(one, whole) as (edge, server):
        assert [(await post(edge)).status for _ in range(2)] == [200, 200]  # 7 and 14 of 10
        refused = await post(edge)
        error = (await refused.json())["error"]
        assert (refused.status, error["type"], error["code"]) == (429, "insufficient_quota", "insufficient_quota")
        assert refused.headers["x-should-retry"] == "false"
        assert len(server.seen) == 2
        await edge.ledger.flush()
        assert (await post(edge)).status == 429
        assert (await charged(edge))["cost_nano"] == 14 * 10**9


async def test_of_many_requests_at_once_a_budget_takes_those_that_it_has_room_for() -> None:
    one = tenant(prices=(Price("*", request_nano=10**9),), budget=Budget(day_nano=10 * 10**9))
    async with running(one, whole) as (edge, server):
        responses = await asyncio.gather(*(post(edge) for _ in range(50)))
        statuses = [response.status for response in responses]
        assert (statuses.count(200), statuses.count(429), len(server.seen)) == (10, 40, 10)
        assert (await charged(edge))["cost_nano"] == 10 * 10**9


async def test_a_budget_counts_what_the_ledger_has_of_today() -> None:
    one = tenant(prices=(Price("*", request_nano=7),), budget=Budget(month_nano=7))
    async with running(one, whole) as (edge, _):
        edge.ledger.spending.read({"team-a": Spent(7, 7)}, hour_of(0))
        assert (await post(edge)).status == 200  # that was another month
        assert (await post(edge)).status == 429


def stream_of(*events: bytes, **headers: str) -> Any:
    async def stream(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | headers)
        await out.prepare(request)
        for event in events:
            await out.write(event)
        if events[-1].endswith(b"[DONE]\n\n"):
            return out
        await asyncio.Event().wait()
        raise AssertionError

    return stream


def marked(position: int) -> bytes:
    return b": %d.00000000 %d\n" % (position, position) + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


DONE = b"data: [DONE]\n\n"


async def test_the_usage_of_a_stream_is_requested_and_does_not_reach_a_client_that_did_not_request_it() -> None:
    last = b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n"
    text = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
    async with running(tenant(LIMITS), stream_of(text, last, DONE)) as (edge, server):
        response = await post(edge, body=BODY | {"stream": True})
        assert await response.read() == text + DONE
        assert json.loads(server.bodies[0]) == BODY | {"stream": True, "stream_options": {"include_usage": True}}
        assert (taken(edge, "input_tokens"), taken(edge, "output_tokens")) == (7, 5)


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False, "x": 1}, None])
async def test_other_options_of_a_stream_are_kept(options: Any) -> None:
    last = b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n"
    async with running(tenant(), stream_of(last, DONE)) as (edge, server):
        response = await post(edge, body=BODY | {"stream": True, "stream_options": options})
        wanted = bool(options and options["include_usage"])
        assert await response.read() == (last + DONE if wanted else DONE)
        assert json.loads(server.bodies[0])["stream_options"] == (options or {}) | {"include_usage": True}


async def test_a_client_that_leaves_a_stream_is_charged_for_what_was_generated() -> None:
    handler = stream_of(marked(1), marked(2), marked(3), **{"X-Slipway-Stream": STREAM, "X-Slipway-Prompt-Tokens": "7"})
    async with running(tenant(LIMITS), handler) as (edge, server):
        response = await post(edge, body=BODY | {"stream": True})
        read = b""
        while b".3." not in read:
            read += await response.content.readany()
        # What ran until now is in the ledger before the stream ends: a killed gateway loses less than a second.
        assert await charged(edge) == {"requests": 1, "input_tokens": 7, "output_tokens": 3, "cost_nano": 0}
        response.close()
        await until_async(lambda: server.cancelled and quota(edge).running == 0)
        assert (taken(edge, "requests"), taken(edge, "input_tokens"), taken(edge, "output_tokens")) == (1, 7, 3)
        assert await charged(edge) == {"requests": 1, "input_tokens": 7, "output_tokens": 3, "cost_nano": 0}
        assert edge.outcomes() == {"client_closed": 1}


async def test_a_client_that_leaves_before_the_response_keeps_its_reservation_and_pays_nothing() -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with running(tenant(LIMITS), never) as (edge, server):
        task = asyncio.create_task(post(edge))
        await until_async(lambda: server.seen)
        task.cancel()
        await until_async(lambda: quota(edge).running == 0)
        assert taken(edge, "output_tokens") == 10
        assert (await charged(edge))["requests"] == 0


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_an_error_is_charged_one_request_and_no_tokens(status: int) -> None:
    async with running(tenant(LIMITS), answering(status), hold_timeout_s=0.0) as (edge, _):
        assert (await post(edge)).status == status
        assert (taken(edge, "requests"), taken(edge, "input_tokens"), taken(edge, "output_tokens")) == (1, 0, 0)
        assert quota(edge).running == 0
        assert (await charged(edge))["requests"] == 0


async def test_a_request_that_reaches_no_server_is_charged_nothing() -> None:
    async with running(tenant(LIMITS), whole, hold_timeout_s=0.0) as (edge, _):
        edge.route(("r1", 100, [refused_url()]))
        assert (await post(edge)).status == 502
        assert (taken(edge, "requests"), taken(edge, "input_tokens"), quota(edge).running) == (0, 0, 0)


async def test_a_retried_request_is_charged_once() -> None:
    seen: list[str] = []

    async def fails_first(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return await (answering(503) if len(seen) == 1 else whole)(request)

    async with running(tenant(LIMITS), fails_first) as (edge, server), upstream(fails_first) as other:
        edge.route(("r1", 100, [server.url, other.url]))
        assert (await post(edge)).status == 200
        assert len(seen) == 2
        assert (taken(edge, "requests"), taken(edge, "input_tokens"), taken(edge, "output_tokens")) == (1, 7, 5)
        assert await charged(edge) == {"requests": 1, "input_tokens": 7, "output_tokens": 5, "cost_nano": 0}


async def test_a_stream_that_goes_on_at_another_server_is_charged_once() -> None:
    head = {"X-Slipway-Stream": STREAM, "X-Slipway-Prompt-Tokens": "7"}

    async def dies(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | head)
        await out.prepare(request)
        await out.write(marked(1) + marked(2))
        await asyncio.sleep(0.05)
        assert request.transport
        request.transport.abort()
        return out

    last = b': 4.00000000 \ndata: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'

    async def goes_on(request: web.Request) -> web.StreamResponse:
        if "X-Slipway-Resume" not in request.headers:
            return await dies(request)
        result: web.StreamResponse = await stream_of(marked(3), last, DONE, **head)(request)
        return result

    async with running(tenant(LIMITS), goes_on) as (edge, _), upstream(goes_on) as other:
        edge.route(("r1", 100, [other.url, edge.balancer.published.urls("chat", "r1")[0]]))
        response = await post(edge, body=BODY | {"stream": True})
        text = await response.read()
        assert text.count(b"data: {") == 3
        assert (taken(edge, "requests"), taken(edge, "input_tokens"), taken(edge, "output_tokens")) == (1, 7, 3)
        assert await charged(edge) == {"requests": 1, "input_tokens": 7, "output_tokens": 3, "cost_nano": 0}


async def test_a_client_that_comes_back_pays_for_its_stream_once() -> None:
    head = {"X-Slipway-Stream": STREAM, "X-Slipway-Prompt-Tokens": "7"}

    async def serve(request: web.Request) -> web.StreamResponse:
        if "X-Slipway-Resume" in request.headers:
            result: web.StreamResponse = await stream_of(marked(3), DONE, **head)(request)
        else:
            result = await stream_of(marked(1), marked(2), **head)(request)
        return result

    async with running(tenant(LIMITS), serve) as (edge, server):
        response = await post(edge, body=BODY | {"stream": True})
        read = b""
        while b".2." not in read:
            read += await response.content.readany()
        response.close()
        await until_async(lambda: server.cancelled)
        event_id = [line[4:] for line in read.decode().splitlines() if line.startswith("id: ")][-1]
        again = await post(edge, body=BODY | {"stream": True}, **{"Last-Event-ID": event_id})
        await again.read()
        # The limits count what each connection computed, the bill each token of the response once.
        assert (taken(edge, "requests"), taken(edge, "output_tokens")) == (2, 3)
        assert await charged(edge) == {"requests": 1, "input_tokens": 7, "output_tokens": 3, "cost_nano": 0}


@pytest.mark.finding("F16")
async def test_coming_back_to_a_finished_stream_is_charged_when_it_is_computed_again() -> None:
    """The engine generated all tokens once more for the last events, and limits and ledger were charged nothing."""
    head = {"X-Slipway-Stream": STREAM, "X-Slipway-Prompt-Tokens": "7"}
    again = head | {"X-Slipway-Recomputes": "1"}
    buffered = True

    async def serve(request: web.Request) -> web.StreamResponse:
        if "X-Slipway-Resume" in request.headers:
            result: web.StreamResponse = await stream_of(marked(9), DONE, **head if buffered else again)(request)
        else:
            result = await stream_of(*map(marked, range(1, 10)), DONE, **head)(request)
        return result

    last = {"Last-Event-ID": f"r1.{STREAM}.8.00000000"}
    async with running(tenant(LIMITS), serve) as (edge, _):
        await (await post(edge, body=BODY | {"stream": True})).read()
        assert (taken(edge, "output_tokens"), (await charged(edge))["output_tokens"]) == (9, 9)
        # From the buffer of its pod it is free, but for the token that was sent.
        response = await post(edge, body=BODY | {"stream": True}, **last)
        await response.read()
        assert "X-Slipway-Recomputes" not in response.headers
        assert (taken(edge, "output_tokens"), (await charged(edge))["output_tokens"]) == (10, 9)
        buffered = False
        for count in (1, 2):
            await (await post(edge, body=BODY | {"stream": True}, **last)).read()
            assert taken(edge, "output_tokens") == 10 + 9 * count
            found = await charged(edge)
            assert (found["requests"], found["output_tokens"]) == (1 + count, 9 + 9 * count)


@pytest.mark.finding("F16")
async def test_whoever_comes_back_and_leaves_before_the_first_event_pays_what_is_computed_again() -> None:
    head = {"X-Slipway-Stream": STREAM, "X-Slipway-Prompt-Tokens": "7", "X-Slipway-Recomputes": "1"}
    async with running(tenant(LIMITS), stream_of(b":\n\n", **head)) as (edge, server):
        body = BODY | {"stream": True, "max_tokens": 300}
        response = await post(edge, body=body, **{"Last-Event-ID": f"r1.{STREAM}.250.00000000"})
        await response.content.readany()
        response.close()
        await until_async(lambda: server.cancelled)
        await until_async(lambda: quota(edge).running == 0)
        assert taken(edge, "output_tokens") >= 250
        assert (await charged(edge))["output_tokens"] == 250


@pytest.mark.finding("F16")
async def test_an_engine_that_resumes_nothing_is_charged_in_full() -> None:
    """Any Last-Event-ID made the output of vLLM free: its response was taken for the rest of a longer one."""
    async with running(tenant(LIMITS), whole) as (edge, _):
        await (await post(edge, **{"Last-Event-ID": f"r1.{STREAM}.999999999.00000000"})).read()
        assert taken(edge, "output_tokens") == 5
        assert (await charged(edge))["output_tokens"] == 5


@pytest.mark.finding("F16")
async def test_a_client_that_leaves_and_will_come_back_keeps_its_reservation() -> None:
    """Its server goes on without it: what is generated meanwhile is not known."""
    head = {"X-Slipway-Stream": STREAM, "X-Slipway-Prompt-Tokens": "7"}
    for returns, output in (({}, 1), ({"X-Slipway-Resumable": "1"}, 300)):
        async with running(tenant(LIMITS), stream_of(marked(1), **head)) as (edge, server):
            response = await post(edge, body=BODY | {"stream": True, "max_tokens": 300}, **returns)
            await response.content.readany()
            response.close()
            await until_async(lambda server=server: server.cancelled)
            await until_async(lambda edge=edge: quota(edge).running == 0)
            assert taken(edge, "output_tokens") == output
            assert (await charged(edge))["output_tokens"] == 1


async def test_one_request_id_for_all_bills_all() -> None:
    async with running(tenant(), whole) as (edge, _):
        for _ in range(5):
            await post(edge, **{"X-Request-Id": "always-the-same"})
        assert (await charged(edge))["requests"] == 5


async def test_a_prompt_that_needs_no_model_is_charged_as_a_request() -> None:
    async def tokens(request: web.Request) -> web.StreamResponse:
        return web.json_response({"tokens": [1, 2], "count": 2})

    async with running(tenant(LIMITS), tokens) as (edge, _):
        assert (await post(edge, "/tokenize")).status == 200
        assert (taken(edge, "requests"), taken(edge, "input_tokens")) == (1, 0)
        assert (await charged(edge))["input_tokens"] == 0


async def test_without_an_identity_nothing_is_limited_or_requested() -> None:
    handler = stream_of(marked(1), DONE)
    async with upstream(handler) as server, gateway() as edge:
        edge.route(("r1", 100, [server.url]))
        response = await edge.post(BODY | {"stream": True})
        assert response.status == 200
        assert not [name for name in response.headers if name.lower().startswith("x-ratelimit")]
        assert json.loads(server.bodies[0]) == BODY | {"stream": True}
        assert (await charged(edge))["requests"] == 0


async def test_metrics_tell_refusals_and_tokens_by_tenant() -> None:
    async with running(tenant(Limits(requests_per_minute=1)), whole) as (edge, _):
        for _ in range(3):
            await post(edge)
        value = edge.metrics.registry.get_sample_value
        labels = {"tenant": "team-a", "limit": "requests"}
        assert value("slipway_gateway_quota_refusals_total", labels) == 2
        labels = {"tenant": "team-a", "model": "chat", "kind": "output"}
        assert value("slipway_gateway_tokens_total", labels) == 5


async def test_usage_is_read_at_the_admin_port() -> None:
    async with running(tenant(), whole) as (edge, _):
        await post(edge)
        hour = edge.ledger.hour
        url = f"{edge.admin_url}/internal/usage"
        read = await edge.client.get(url, params={"first": hour - 1, "end": hour + 2, "tenant": "team-a"})
        answer = await read.json()
        assert answer["whole"] and answer["ledger"]
        assert [(row["tenant"], row["key"], row["model"], row["revision"]) for row in answer["rows"]] == [
            ("team-a", "k7Qm2x", "chat", "r1")
        ]
        assert (await edge.client.get(url, params={"first": 5, "end": 5})).status == 400
        assert (await edge.client.get(url)).status == 400


async def test_buckets_of_a_deleted_tenant_go_once_they_are_full() -> None:
    async with running(tenant(Limits(requests_per_minute=1)), whole) as (edge, _):
        await post(edge)
        edge.known.publish(())
        assert "team-a" in edge.admission.quotas.names()
    async with running(tenant(), whole) as (edge, _):
        await post(edge)
        edge.known.publish(())
        assert not edge.admission.quotas.names()


async def test_requests_of_a_tenant_are_at_all_endpoints_though_others_fill_one_and_none_is_counted_afterwards() -> (
    None
):
    """By the sum alone, all of its requests would go to the endpoint that the other tenant leaves free."""
    goes_on = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await goes_on.wait()
        return web.json_response({"usage": USAGE})

    others = known.make_key("k2other")
    async with (
        upstream(hang) as full,
        upstream(hang) as free,
        gateway(tenants=[tenant(), known.tenant("team-b", others)], pepper=known.PEPPER, auth_mode="required") as edge,
    ):

        async def send(key: str) -> None:
            async with await edge.post(BODY, CHAT, headers=known.bearer(key)) as response:
                assert response.status == 200

        async with asyncio.TaskGroup() as group:
            for number, key in enumerate([others] * 4 + [KEY] * 4, 1):
                edge.route(("r1", 100, [full.url, free.url] if key == KEY else [full.url]))
                group.create_task(send(key))
                await until_async(lambda number=number: len(full.bodies) + len(free.bodies) == number)
            own = edge.balancer.in_flight.of_tenant("team-a")
            assert own[full.url] >= 1 and own[free.url] >= 2 and own[full.url] + own[free.url] == 4
            goes_on.set()
        await until_async(lambda: not edge.balancer.in_flight.by_url)
        assert not edge.balancer.in_flight.of_tenant("team-a") and not edge.balancer.in_flight.of_tenant("team-b")


# --- bounds of a single request


async def echo(request: web.Request) -> web.StreamResponse:
    """What the server got, as its response."""
    return web.json_response({"choices": [{"text": "hello"}], "usage": USAGE, "got": json.loads(await request.text())})


async def test_a_request_above_the_tenants_context_is_refused_and_costs_nothing() -> None:
    one = tenant(LIMITS, bounds=RequestBounds(context=200))
    async with running(one, echo) as (edge, server):
        async with await post(edge, body=BODY | {"max_tokens": 500}) as refused:
            assert refused.status == 400
            error = (await refused.json())["error"]
        assert (error["code"], "200 tokens" in error["message"]) == ("context_length_exceeded", True)
        long_prompt = BODY | {"messages": [{"role": "user", "content": "x" * 900}]}
        async with await post(edge, body=long_prompt) as refused:
            assert refused.status == 400
        assert (taken(edge, "requests") if edge.admission.quotas.find("team-a") else 0, len(server.seen)) == (0, 0)
        async with await post(edge) as taken_in:
            assert taken_in.status == 200


@pytest.mark.parametrize(
    ("path", "sent", "got"),
    [
        (CHAT, {"max_tokens": 500}, {"max_tokens": 20}),
        (CHAT, {"max_completion_tokens": 500}, {"max_completion_tokens": 20}),
        (CHAT, {"max_tokens": 5}, {"max_tokens": 5}),
        (CHAT, {}, {"max_tokens": 20}),
        ("/v1/responses", {"input": "hi"}, {"max_output_tokens": 20}),
        (EMBEDDINGS, {"input": "hi"}, {}),
    ],
)
async def test_a_tenants_output_tokens_bound_each_response(path: str, sent: Any, got: dict[str, int]) -> None:
    async with running(tenant(bounds=RequestBounds(output=20)), echo) as (edge, _):
        body = {"model": "chat"} | ({"messages": BODY["messages"]} if path == CHAT else {}) | sent
        async with await post(edge, path, body) as response:
            received = (await response.json())["got"]
    assert {name: value for name, value in received.items() if "tokens" in name} == got


async def test_long_prompts_have_a_concurrency_of_their_own() -> None:
    released = asyncio.Event()

    async def waiting(request: web.Request) -> web.StreamResponse:
        await released.wait()
        return await whole(request)

    one = tenant(bounds=RequestBounds(long_context=100, long_concurrency=1))
    long_prompt = BODY | {"messages": [{"role": "user", "content": "x" * 900}]}
    async with running(one, waiting) as (edge, server):
        first = asyncio.create_task(post(edge, body=long_prompt))
        await until_async(lambda: len(server.seen) == 1, "the first one is at its server")
        async with await post(edge, body=long_prompt) as refused:
            assert refused.status == 429
            assert "1 concurrent requests with 100 input tokens" in (await refused.json())["error"]["message"]
        short = asyncio.create_task(post(edge))
        await until_async(lambda: len(server.seen) == 2, "a short one is taken")
        released.set()
        assert [(await sent).status for sent in (first, short)] == [200, 200]
        async with await post(edge, body=long_prompt) as response:
            assert response.status == 200
        assert edge.admission.report(one).refused == {"long_context": 1}


async def test_a_long_prompt_that_another_limit_refuses_leaves_its_place() -> None:
    limits = Limits(requests_per_minute=1, burst_s=60)
    one = tenant(limits, bounds=RequestBounds(long_context=10, long_concurrency=1))
    async with running(one, whole) as (edge, _):
        statuses = []
        for _ in range(3):
            async with await post(edge) as response:
                statuses.append((response.status, "concurrent" in await response.text()))
    assert statuses == [(200, False), (429, False), (429, False)]
