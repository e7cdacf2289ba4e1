"""What a real gateway counts for the judge, by what its upstreams and its clients do."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import HeaderMatch, HeaderRoute
from slipway_gateway.judging.samples import BOUNDS
from slipway_gateway.routing.router import assign_revision
from slipway_gateway.routing.table import RouteTable
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import (
    Gateway,
    Handler,
    Upstream,
    answering,
    echo,
    gateway,
    raw_upstream,
    refused_url,
    streaming,
    table,
    upstream,
)
from .test_proxy import JSON_HEAD, MARKED_HEAD, SSE_HEAD, STREAM, chunk, marked

ASK: dict[str, Any] = {"model": "chat", "stream": True}
WORD = {"choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}


def end(finish: str) -> dict:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}


def saying(*events: object, first_s: float = 0.0, gap_s: float = 0.0) -> Handler:
    async def stream(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(first_s)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for event in events:
            await out.write(b"data: %s\n\n" % json.dumps(event).encode())
            await asyncio.sleep(gap_s)
        await out.write(b"data: [DONE]\n\n")
        return out

    return stream


def whole(body: object, status: int = 200) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return answer


@contextlib.asynccontextmanager
async def served(handler: Handler, **settings: Any) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with upstream(handler) as server, gateway(**settings) as gate:
        gate.route(("rev", 100, [server.url]))
        yield gate, server


async def ask(gate: Gateway, body: object = ASK, **options: Any) -> int:
    async with await gate.post(body, **options) as answer:
        await answer.read()
        return answer.status


def counts(gate: Gateway, revision: str = "rev") -> dict[str, Any]:
    epochs = route_reports(gate.balancer)["default/chat"]["samples"]
    return epochs[-1]["revisions"][revision] if epochs else {}


def judged(gate: Gateway, revision: str = "rev") -> tuple[int, dict[str, int]]:
    """Requests, and events by kind."""
    found = counts(gate, revision)
    return (
        (found["requests"], {kind: n for kind, n in found["events"].items() if n and kind != "bad"})
        if found
        else (0, {})
    )


def between(gate: Gateway, measure: str, at: str) -> tuple[float, float]:
    """Ends of the one bucket that the one sample of a measure is in."""
    bounds = [0.0, *BOUNDS[measure], float("inf")]
    ((stratum, histogram),) = counts(gate)["slow"][measure].items()
    assert stratum == at and sum(histogram) == 1
    return bounds[histogram.index(1)], bounds[histogram.index(1) + 1]


# -- what ends well


async def test_a_good_stream() -> None:
    async with served(saying(*[WORD] * 5, end("stop"), first_s=0.3, gap_s=0.1)) as (gate, _):
        assert await ask(gate) == 200
        assert judged(gate) == (1, {})
        low, high = between(gate, "ttft", "b<4k,stream")
        assert high >= 0.3 and low < 3
        low, high = between(gate, "itl", "b<4k,stream")
        assert high >= 0.1 and low < 1
        low, high = between(gate, "e2e", "b<4k,stream")
        assert high >= 0.8


async def test_a_good_whole_answer_has_no_first_byte_of_its_own() -> None:
    async with served(whole({"choices": [{"text": "Hi", "finish_reason": "stop"}]})) as (gate, _):
        assert await ask(gate, {"model": "chat", "prompt": "x" * 5000}) == 200
        assert judged(gate) == (1, {})
        slow = counts(gate)["slow"]
        assert slow["ttft"] == slow["itl"] == {} and list(slow["e2e"]) == ["b<32k,whole"]


@pytest.mark.parametrize("status", [429, 400, 404, 422])
async def test_refusals_end_an_attempt_without_failure(status: int) -> None:
    async with served(answering(status)) as (gate, _):
        assert await ask(gate) == status
        assert judged(gate) == (1, {}) and not any(counts(gate)["slow"].values())


# -- failures at the end of an answer


@pytest.mark.parametrize(
    ("handler", "kinds"),
    [
        (saying(end("stop")), ["empty"]),
        (saying(WORD, end("length")), ["truncated"]),
        (saying(*[WORD] * 100, end("stop")), ["repetition"]),
        (saying(WORD, {"error": {"code": "internal_error", "type": "server_error"}}), ["errors"]),
        (saying(WORD, {"error": {"code": "non_finite", "type": "server_error"}}), ["errors", "non_finite"]),
        (whole({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}), ["empty"]),
        (whole({"choices": [{"text": "x", "finish_reason": "length"}]}), ["truncated"]),
        (whole({"text": "na " * 300, "finish_reason": "stop"}), ["repetition"]),
        (whole({"error": {"code": "non_finite", "type": "server_error"}}, 500), ["errors", "non_finite"]),
    ],
)
async def test_failures_in_answers_are_counted_by_kind(handler: Handler, kinds: list[str]) -> None:
    async with served(handler) as (gate, _):
        await ask(gate)
        assert judged(gate) == (1, dict.fromkeys(kinds, 1))
        page = gate.metrics.render().decode()
        for kind in kinds:
            name = "slipway_gateway_bad_answers_total"
            assert f'{name}{{kind="{kind}",model="chat",revision="rev"}} 1.0' in page


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/classify"])
async def test_vectors_and_scores_have_no_text_to_miss(path: str) -> None:
    async with served(whole({"text": "", "choices": []})) as (gate, _):
        assert await ask(gate, {"model": "chat"}, path=path) == 200
        assert judged(gate) == (1, {})
        assert await ask(gate, {"model": "chat"}, path="/v1/completions") == 200
        assert judged(gate) == (2, {"empty": 1})


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_what_no_model_computes_is_no_evidence(path: str) -> None:
    """A client that tokenizes before each chat would leave the judge nothing else to look at."""
    async with served(whole({"choices": []})) as (gate, _):
        assert await ask(gate, {"model": "chat"}, path=path) == 200
        assert judged(gate) == (0, {})
        assert await ask(gate, {"model": "chat"}, path="/v1/completions") == 200
        assert judged(gate) == (1, {"empty": 1})


async def test_bytes_pass_unchanged_whatever_is_read_from_them() -> None:
    events = [WORD] * 400
    async with served(saying(*events, end("length"))) as (gate, _):
        async with await gate.post(ASK) as answer:
            received = await answer.read()
        assert received == b"".join(b"data: %s\n\n" % json.dumps(e).encode() for e in [*events, end("length")]) + (
            b"data: [DONE]\n\n"
        )
        assert judged(gate)[1] == {"truncated": 1, "repetition": 1}


# -- what ends badly


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_status_of_500_or_above(status: int) -> None:
    async with served(answering(status), max_attempts=1) as (gate, _):
        assert await ask(gate) == status
        assert judged(gate) == (1, {"errors": 1}) and not any(counts(gate)["slow"].values())


async def test_failed_first_attempt_counts_when_the_retry_succeeds() -> None:
    async with upstream(answering(503)) as bad, served(echo) as (gate, good):
        gate.route(("c", 100, [bad.url]), ("s", 0, [good.url]))
        assert await ask(gate) == 200
        assert judged(gate, "c") == (1, {"errors": 1})
        assert set(route_reports(gate.balancer)["default/chat"]["samples"][-1]["revisions"]) == {"c"}


async def test_busy_response_ends_the_attempt_and_the_retry_is_no_sample() -> None:
    async with upstream(answering(429)) as busy, served(echo) as (gate, good):
        gate.route(("c", 100, [busy.url, good.url]))
        for user in range(40):
            assert await ask(gate, ASK | {"user": str(user)}) == 200
        assert busy.seen and judged(gate, "c") == (40, {})


async def test_connection_refused() -> None:
    async with gateway() as gate:
        gate.route(("rev", 100, [refused_url()]))
        assert await ask(gate) == 502
        assert judged(gate) == (1, {"errors": 1})


async def test_connections_that_are_reset() -> None:
    async with raw_upstream() as url, gateway() as gate:
        gate.route(("rev", 100, [url]))
        assert await ask(gate) == 422, "it was tried twice, and seems to end its server"
        assert judged(gate) == (1, {"errors": 1})


@pytest.mark.parametrize("head", [SSE_HEAD + chunk(b"data: {}\n\n"), JSON_HEAD + b'{"half":'])
async def test_answers_that_break_off(head: bytes) -> None:
    async with raw_upstream(head) as url, gateway() as gate:
        gate.route(("rev", 100, [url]))
        await ask(gate)
        assert judged(gate) == (1, {"errors": 1}) and not any(counts(gate)["slow"].values())


async def test_a_stream_that_goes_on_elsewhere_was_cut_all_the_same() -> None:
    async def rest(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM}
        body = b': 2.00000002 9\ndata: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
        return web.Response(body=body, headers=headers)

    async with raw_upstream(MARKED_HEAD, marked(1)) as url, upstream(rest) as server, gateway() as gate:
        gate.route(("rev", 100, [url]))
        answer = await gate.post(ASK)
        await answer.content.readline()
        gate.route(("rev", 100, [server.url]))
        assert (await answer.read()).endswith(b"[DONE]\n\n") and gate.outcomes() == {"ok": 1}
        assert judged(gate) == (1, {"errors": 1}) and not any(counts(gate)["slow"].values())
        # It counts where it was assigned.
        assert [epoch["generation"] for epoch in route_reports(gate.balancer)["default/chat"]["samples"]] == [1]


@pytest.mark.parametrize("limit", [{"idle_timeout_s": 0.3}, {"request_timeout_s": 0.3}])
@pytest.mark.parametrize("handler", [saying(WORD, first_s=30), saying(WORD, WORD, gap_s=30)])
async def test_answers_that_take_too_long(handler: Handler, limit: dict[str, float]) -> None:
    async with served(handler, **limit) as (gate, _):
        await ask(gate)
        assert judged(gate) == (1, {"errors": 1})


def side(gate: Gateway, revision: str) -> dict[str, Any]:
    return route_reports(gate.balancer)["default/chat"]["samples"][-1]["revisions"][revision]


@pytest.mark.parametrize("handler", [saying(WORD, first_s=30), saying(WORD, WORD, gap_s=30)])
async def test_streams_that_hang_are_errors_while_they_do(handler: Handler) -> None:
    async with upstream(handler) as bad, upstream(echo) as good, gateway(hung_after_s=0.2) as gate:
        gate.route(("c", 99, [bad.url]), ("s", 1, [good.url]))
        asking = asyncio.create_task(ask(gate, headers={"X-Session-Id": "1"}))
        await until_async(lambda: bad.bodies)
        await until_async(lambda: judged(gate, "c") == (1, {"errors": 1, "hung": 1}))
        assert not asking.done() and side(gate, "c")["assigned"] == 1
        late = side(gate, "c")["late"]
        assert sum(late["e2e"]["b<4k,stream"]) == 1
        asking.cancel()
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        assert judged(gate, "c") == (1, {"errors": 1, "hung": 1})
        before = side(gate, "c")["late"]
        assert sum(before["e2e"]["b<4k,stream"]) == 1
        route = gate.balancer.published.find("chat")
        assert route and not gate.balancer.first_attempts.samples.epoch(route)._open, (
            "what is over is waited for no more"
        )


JSON_ASKED = {"model": "chat", "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("text", "kinds"), [('{"a": 1}', {}), ("Sure! Here it is", {"invalid_json": 1})])
async def test_an_answer_that_was_to_be_json(text: str, kinds: dict[str, int], stream: bool) -> None:
    pieces = [{"choices": [{"delta": {"content": piece}}]} for piece in (text[:3], text[3:])]
    answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    async with served(saying(*pieces, end("stop")) if stream else whole(answer)) as (gate, _):
        assert await ask(gate, JSON_ASKED | {"stream": stream}) == 200
        assert judged(gate) == (1, kinds)
        assert await ask(gate, {"model": "chat", "stream": stream}) == 200
        assert judged(gate) == (2, kinds), "JSON was not requested"


# -- what clients cause themselves (safety 18)


@pytest.mark.finding(18, "S12")
async def test_a_response_that_ends_at_the_clients_own_limit_is_no_failure() -> None:
    """Safety 18: `max_tokens: 1` counted as truncated."""
    async with served(whole({"choices": [{"text": "a", "finish_reason": "length"}]})) as (gate, _):
        assert await ask(gate, {"model": "chat", "prompt": "x", "max_tokens": 1}) == 200
        assert judged(gate) == (1, {})
        assert await ask(gate, {"model": "chat", "prompt": "x"}) == 200
        assert judged(gate) == (2, {"truncated": 1})


@pytest.mark.finding(18)
@pytest.mark.parametrize(("code", "failures"), [("deadline_exceeded", {}), ("internal_error", {"errors": 1})])
async def test_a_deadline_of_the_clients_own_is_no_failure(code: str, failures: dict[str, int]) -> None:
    """Safety 18: a `timeout` that no version can keep counted as an error."""
    error = {"error": {"message": "m", "type": "server_error", "code": code}}
    async with served(whole(error, 504)) as (gate, _):
        assert await ask(gate, {"model": "chat", "prompt": "x", "timeout": 0.001}) == 504
        assert judged(gate) == (1, failures)
        assert route_reports(gate.balancer)["default/chat"]["revisions"]["rev"]["failures"] == len(failures)


SPLIT = (("canary", 25), ("stable", 75))


@contextlib.asynccontextmanager
async def split_gateway(canary: Handler) -> AsyncIterator[tuple[Gateway, list[str], list[str]]]:
    """A gateway in front of two revisions, and session ids of which the salt sends each to the one or the other."""
    async with upstream(canary) as tested, upstream(echo) as stable, gateway() as gate:
        urls = {"canary": [tested.url], "stable": [stable.url]}
        gate.route(*((revision, weight, urls[revision]) for revision, weight in SPLIT))
        route = gate.balancer.published.find("chat")
        assert route
        found: dict[str, list[str]] = {"canary": [], "stable": []}
        for number in range(1000):
            found[assign_revision(route, f"session:{number}")].append(str(number))
        yield gate, found["canary"], found["stable"]


async def send(gate: Gateway, client: str, session: str) -> int:
    return await ask(gate, headers={"Authorization": f"Bearer {client}", "X-Session-Id": session})


@pytest.mark.finding(18)
async def test_one_client_cuts_no_revision_off_whatever_sessions_it_invents() -> None:
    """Safety 18: ten bad requests in a row over 5 s cut the canary off."""
    async with split_gateway(answering(500)) as (gate, of_canary, of_stable):
        now_s = time.monotonic()
        gate.balancer.failsafe._clock = lambda: now_s
        assert await send(gate, "victim", of_stable[0]) == 200
        for session in of_canary[:30]:
            now_s += 1
            assert await send(gate, "hostile", session) == 500
        assert not route_reports(gate.balancer)["default/chat"]["failsafe"]["cut_off"]
        for session in of_canary[30:40]:
            now_s += 1
            await send(gate, "victim", session)
        report = route_reports(gate.balancer)["default/chat"]
        assert report["failsafe"]["cut_off"] == "canary", "two clients see the same"


@pytest.mark.finding(18)
async def test_one_client_adds_few_sessions_of_its_choice_and_takes_no_room_of_others() -> None:
    """Safety 18: session keys are the client's own, and X-Slipway-Revision shows the side of each."""
    async with split_gateway(echo) as (gate, of_canary, _):
        for session in of_canary[:150]:
            assert await send(gate, "hostile", session) == 200
        counted = counts(gate, "canary")
        assert counted["requests"] == 150 and counted["units"] == counted["assigned"] <= 50
        for session in of_canary[150:154]:
            assert await send(gate, "victim", session) == 200
        assert counts(gate, "canary")["units"] == counted["units"] + 4


# -- what is not counted


async def test_a_client_that_leaves() -> None:
    async with served(saying(WORD, *[WORD] * 100, gap_s=0.05)) as (gate, server):
        answer = await gate.post(ASK)
        await answer.content.readline()
        answer.close()
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        assert judged(gate) == (0, {}) and server.seen


async def test_a_client_that_leaves_before_the_first_byte() -> None:
    async with served(saying(WORD, first_s=30)) as (gate, server):
        asking = asyncio.create_task(gate.post(ASK))
        await until_async(lambda: server.bodies)
        asking.cancel()
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        assert judged(gate) == (0, {})


async def test_a_client_that_leaves_after_a_failure() -> None:
    async with served(answering(503), hold_timeout_s=30) as (gate, _):
        asking = asyncio.create_task(gate.post(ASK))
        await until_async(lambda: gate.held() == 1)
        asking.cancel()
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        assert judged(gate) == (1, {"errors": 1})


async def test_a_stream_that_the_gateways_own_drain_cuts() -> None:
    async with served(saying(WORD, WORD, gap_s=30)) as (gate, _):
        answer = await gate.post(ASK)
        await answer.content.readline()
        gate.edge.cut()
        assert b"drained" in await answer.read()
        assert judged(gate) == (0, {})
    async with served(saying(WORD, first_s=30)) as (gate, server):
        asking = asyncio.create_task(gate.post(ASK))
        await until_async(lambda: server.bodies)
        gate.edge.cut()
        assert (await asking).status == 503
        assert judged(gate) == (0, {})


def with_header_route(shown: RouteTable) -> RouteTable:
    (route,) = shown.routes.values()
    route = replace(route, header_routes=(HeaderRoute("qa", "c", (HeaderMatch("x-team", exact="qa"),)),))
    return RouteTable({route.name: route}, {route.model: route}, shown.endpoints)


async def test_requests_whose_header_chose_are_not_counted() -> None:
    async with upstream(answering(500)) as canary, served(echo) as (gate, stable):
        gate.balancer.publish(with_header_route(table(2, ("c", 50, [canary.url]), ("s", 50, [stable.url]))))
        assert await ask(gate, headers={"X-Team": "qa"}) == 500
        assert counts(gate, "c") == {}
        # Passed over for want of an endpoint, they are a crowd of their own still.
        gate.balancer.publish(with_header_route(table(3, ("c", 0, []), ("s", 100, [stable.url]))))
        assert await ask(gate, headers={"X-Team": "qa"}) == 200
        assert counts(gate, "s") == {}
        assert await ask(gate) == 200
        assert judged(gate, "s") == (1, {})


async def test_requests_that_take_a_stream_up_are_not_counted() -> None:
    async with served(answering(410)) as (gate, server):
        assert await ask(gate, headers={"Last-Event-ID": f"rev.{STREAM}.1.00000001"}) == 410
        assert server.seen and counts(gate) == {}


async def test_sessions_count_once_for_each_kind() -> None:
    async with served(answering(500)) as (gate, _):
        for session in ("a", "a", "b", None, None):
            await ask(gate, headers={"X-Session-Id": session} if session else {})
        assert judged(gate) == (5, {"errors": 4})


async def test_a_request_counts_at_the_weights_that_it_was_assigned_at() -> None:
    async with served(saying(*[WORD] * 5, end("length"), gap_s=0.1)) as (gate, server):
        asking = asyncio.create_task(ask(gate))
        await until_async(lambda: server.bodies)
        gate.route(("rev", 60, [server.url]), ("next", 40, [server.url]))
        assert await asking == 200
        assert await ask(gate, ASK | {"user": "u"}) == 200
        first, second = route_reports(gate.balancer)["default/chat"]["samples"]
        assert (first["generation"], first["weights"]) == (1, {"rev": 100})
        assert first["revisions"]["rev"]["events"]["truncated"] == 1
        assert (second["generation"], second["weights"]) == (2, {"rev": 60, "next": 40})
        assert sum(found["requests"] for found in second["revisions"].values()) == 1


# -- metrics


async def test_gaps_between_events_are_a_metric() -> None:
    async with served(streaming(4, 0.1)) as (gate, _):
        assert await ask(gate) == 200
        name = "slipway_gateway_itl_seconds"
        labels = {"model": "chat", "revision": "rev"}
        registry = gate.metrics.registry
        assert registry.get_sample_value(f"{name}_count", labels) == 1
        assert 0.08 < (registry.get_sample_value(f"{name}_sum", labels) or 0) < 1


async def test_old_revisions_leave_these_metrics_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.telemetry.metrics._MAX_PAIRS", 1)
    async with served(saying(WORD, WORD, end("length"), gap_s=0.01)) as (gate, server):
        for revision in ("r1", "r2"):
            gate.route((revision, 100, [server.url]))
            assert await ask(gate) == 200
        page = gate.metrics.render().decode()
        assert 'revision="r1"' not in page and 'revision="r2"' in page
