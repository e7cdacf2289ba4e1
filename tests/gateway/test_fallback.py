"""Another deployment answers before the first byte, while a request's own one cannot; nothing of that is evidence."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import Backend, ResponseCache
from slipway_gateway.routing.table import RevisionEndpoints, Route, build
from tests.support.report import route_reports

from . import tenants as known
from .harness import Gateway, Handler, Upstream, echo, gateway, refused_url, upstream
from .test_judged import saying, whole

ASK = {"model": "large", "messages": [{"role": "user", "content": "hello"}]}
TOO_LONG = {"error": {"message": "This model's maximum context length is 8192 tokens.", "code": 400}}
CREATED = "2026-01-01T00:00:00Z"
SMALL = {"choices": [{"index": 0, "message": {"content": "small"}, "finish_reason": "stop"}], "model": "small"}


def publish(gate: Gateway, large: list[str], small: list[str], **large_route: Any) -> None:
    """Two deployments; the large one falls back to the small one, and that to the large one."""
    gate.generation += 1
    backends = (Backend("l1", 100),)
    routes = [
        Route("ns/large", "u1", "large", CREATED, gate.generation, "s", backends, fallback=("gone", "small")),
        Route("ns/small", "u2", "small", CREATED, gate.generation, "s", (Backend("s1", 100),), fallback=("large",)),
    ]
    routes[0] = replace(routes[0], **large_route)
    endpoints = [RevisionEndpoints("ns/large", "l1", tuple(large)), RevisionEndpoints("ns/small", "s1", tuple(small))]
    gate.balancer.publish(build(routes, endpoints))


@asynccontextmanager
async def two(large: Handler, small: Handler = echo, **settings: Any) -> AsyncIterator[tuple[Gateway, list[Upstream]]]:
    async with upstream(large) as first, upstream(small) as second, gateway(**settings) as gate:
        publish(gate, [first.url], [second.url])
        yield gate, [first, second]


async def answered(gate: Gateway, body: dict[str, Any], **options: Any) -> tuple[int, str, dict[str, str]]:
    async with await gate.post(body, **options) as answer:
        return answer.status, await answer.text(), dict(answer.headers)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (whole({"error": {"message": "boom"}}, 500), "error"),
        (whole({"error": {"message": "loading"}}, 503), "no_capacity"),
        (whole({"error": {"message": "busy"}}, 429), "no_capacity"),
        (whole(TOO_LONG, 400), "context_too_long"),
        (whole({"error": {"message": "", "code": "context_length_exceeded"}}, 400), "context_too_long"),
    ],
)
async def test_another_deployment_answers_and_the_response_says_so(handler: Handler, reason: str) -> None:
    async with two(handler, whole(SMALL)) as (gate, (_, small)):
        status, text, headers = await answered(gate, ASK)
        assert (status, json.loads(text)["model"]) == (200, "small")
        assert headers["X-Slipway-Fallback"] == f"ns/large; {reason}"
        assert headers["X-Slipway-Revision"] == "s1"
        assert json.loads(small.bodies[0])["model"] == "small"
        value = gate.metrics.registry.get_sample_value(
            "slipway_gateway_fallbacks_total",
            {"model": "large", "revision": "l1", "reason": reason, "result": "answered"},
        )
        assert value == 1.0
        assert gate.outcomes() == {"ok": 1}


async def test_without_a_ready_pod_nothing_waits() -> None:
    async with upstream(whole(SMALL)) as small, gateway(hold_timeout_s=30) as gate:
        publish(gate, [], [small.url])
        assert (await answered(gate, ASK))[0] == 200
        publish(gate, [refused_url()], [small.url])
        assert (await answered(gate, ASK))[0] == 200
        publish(gate, [small.url], [small.url], asleep=True, wake_s=30)
        status, _, headers = await answered(gate, ASK)
        assert (status, headers["X-Slipway-Fallback"]) == (200, "ns/large; no_capacity")
        woken = await gate.balancer.activity.wait_for_changes("", 0)
        assert "ns/large" in woken.routes


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_what_the_client_did_wrong_stays_its_own(status: int) -> None:
    async with two(whole({"error": {"message": "no"}}, status)) as (gate, (_, small)):
        assert (await answered(gate, ASK))[0] == status
        assert not small.seen


async def test_where_no_one_can_answer_the_first_error_is_the_answer() -> None:
    async with two(whole({"error": {"message": "first"}}, 500), whole({"error": {"message": "second"}}, 500)) as (
        gate,
        (large, small),
    ):
        status, text, headers = await answered(gate, ASK)
        assert (status, json.loads(text)["error"]["message"]) == (500, "first")
        assert headers["X-Slipway-Revision"] == "l1"
        assert "X-Slipway-Fallback" not in headers
        # No fallback of a fallback.
        assert (len(large.seen), len(small.seen)) == (1, 1)
        assert gate.outcomes() == {"upstream_error": 1}


async def test_embeddings_and_pinned_requests_are_no_others() -> None:
    """Vectors of another model mean nothing."""
    async with two(whole({"error": {"message": "boom"}}, 500)) as (gate, (_, small)):
        assert (await answered(gate, {"model": "large", "input": "x"}, path="/v1/embeddings"))[0] == 500
        assert not small.seen


async def test_a_stream_that_began_is_not_begun_again() -> None:
    words = saying({"choices": [{"index": 0, "delta": {"content": "word"}}]})
    async with two(words, whole(SMALL)) as (gate, (_, small)):
        assert (await answered(gate, ASK | {"stream": True}))[0] == 200
        assert not small.seen


async def test_a_stream_falls_back_before_its_first_byte() -> None:
    words = saying({"choices": [{"index": 0, "delta": {"content": "word"}}]})
    async with two(whole({}, 500), words) as (gate, _):
        status, text, headers = await answered(gate, ASK | {"stream": True})
        assert status == 200 and "word" in text and headers["X-Slipway-Fallback"]


async def test_the_failure_counts_against_the_revision_and_the_answer_for_none() -> None:
    async with two(whole({"error": {"message": "boom"}}, 500), whole(SMALL)) as (gate, _):
        for _ in range(3):
            await answered(gate, ASK)
        reports = route_reports(gate.balancer)
        (large,) = reports["ns/large"]["samples"]
        assert large["revisions"]["l1"]["events"]["errors"] == 3
        small = reports["ns/small"]["samples"]
        assert not small or small[0]["revisions"]["s1"]["requests"] == 0
        assert reports["ns/small"]["revisions"]["s1"]["inflight"] == 0
        assert reports["ns/small"]["activity"]["last_request_s"] is not None


async def test_a_tenant_gets_only_models_that_it_may_use_and_pays_for_what_answered() -> None:
    keys = [known.make_key(), known.make_key("other1")]
    listed = [
        known.tenant("team-a", keys[0], models=("ns/large", "ns/small")),
        known.tenant("team-b", keys[1], models=("ns/large",)),
    ]
    reply = SMALL | {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}
    async with two(whole({"error": {"message": "boom"}}, 500), whole(reply), tenants=listed, pepper=known.PEPPER) as (
        gate,
        (_, small),
    ):
        assert (await answered(gate, ASK, headers=known.bearer(keys[0])))[0] == 200
        assert (await answered(gate, ASK, headers=known.bearer(keys[1])))[0] == 500
        assert len(small.seen) == 1
        tokens = gate.metrics.registry.get_sample_value(
            "slipway_gateway_tokens_total", {"tenant": "team-a", "model": "small", "kind": "output"}
        )
        assert tokens == 5.0


async def test_credentials_go_only_where_they_are_wanted() -> None:
    async with two(whole({}, 500), whole(SMALL)) as (gate, (large, small)):
        publish(gate, [large.url], [small.url], forward_headers=("cookie",))
        await answered(gate, ASK, headers={"Cookie": "session=1"})
        assert "Cookie" in large.seen[0].headers and "Cookie" not in small.seen[0].headers


async def test_a_request_that_engines_died_with_goes_to_no_other_deployment() -> None:
    async def dies(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"code": "engine_crashed", "message": "died"}}, status=503)

    async with two(dies, whole(SMALL)) as (gate, (_, small)):
        assert (await answered(gate, ASK))[0] in (422, 503)
        assert not small.seen


async def test_a_pod_that_hangs_loses_its_requests_and_is_ejected() -> None:
    async def hangs(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.json_response({})

    async with (
        upstream(hangs) as hanging,
        upstream(whole(SMALL)) as good,
        upstream(whole(SMALL)) as small,
        gateway() as gate,
    ):
        publish(gate, [hanging.url, good.url], [small.url], first_byte_seconds=0.2)
        for n in range(30):
            assert (await answered(gate, ASK, headers={"X-Session-Id": f"{n}"}))[0] == 200
        # Five in a row eject it.
        assert len(hanging.seen) == 5 == len(small.seen)
        assert hanging.url in gate.balancer.ejection.urls()
        (sample,) = route_reports(gate.balancer)["ns/large"]["samples"]
        assert sample["revisions"]["l1"]["events"]["errors"] == 5


MISBEHAVIOURS = ("hangs", "fails", "resets", "is slow")


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOURS)
async def test_with_a_fallback_nearly_every_request_is_answered(misbehaviour: str) -> None:
    """A half of the pods misbehaves: at least 999 of 1,000 are answered, with at most a fifth more requests to pods."""

    async def bad(request: web.Request) -> web.StreamResponse:
        if misbehaviour == "fails":
            return web.json_response({"error": {"message": "boom"}}, status=500)
        if misbehaviour == "resets":
            assert request.transport
            request.transport.abort()
        await asyncio.sleep(9 if misbehaviour == "is slow" else 60)
        return web.json_response(SMALL)

    async with (
        upstream(bad) as first,
        upstream(whole(SMALL)) as second,
        upstream(whole(SMALL)) as small,
        gateway() as gate,
    ):
        # Long enough for the good ones on a busy machine. What fails at once needs no such time.
        in_time_s = 3 if misbehaviour in ("hangs", "is slow") else 60
        publish(gate, [first.url, second.url], [small.url], first_byte_seconds=in_time_s)
        places, results = asyncio.Semaphore(16), Counter[int]()

        async def one(number: int) -> None:
            async with places:
                results[(await answered(gate, ASK, headers={"X-Session-Id": f"{number}"}))[0]] += 1

        await asyncio.gather(*(one(number) for number in range(1000)))
        sent = sum(len(server.seen) for server in (first, second, small))
        assert results[200] >= 999
        assert sent <= 1200


async def test_what_another_deployment_answers_is_kept_in_no_cache() -> None:
    async with two(whole({}, 500), whole(SMALL)) as (gate, (large, small)):
        publish(gate, [large.url], [small.url], cache=ResponseCache(60))
        for _ in range(2):
            status, _, headers = await answered(gate, ASK | {"temperature": 0})
            assert (status, headers["X-Slipway-Fallback"]) == (200, "ns/large; error")
        assert len(small.seen) == 2
