"""Twin shadows through a real gateway: what both legs get, what counts as a pair, and what is withheld."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.twin_shadow import TailThreshold, TwinLatency, TwinShadow
from slipway_gateway.routing.table import RouteTable
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, Handler, Upstream, answering, gateway, raw_upstream, table, upstream
from .test_mirror import SECRET, endless, saying, silent
from .test_proxy import JSON_HEAD, SSE_HEAD, chunk

PATH = "/v1/completions"
BODY: dict[str, Any] = {"model": "chat", "prompt": "x"}
SHADOW = TwinShadow("c", "s", 100, 1000)
LATENCIES = (TwinLatency("ttft", 15), TwinLatency("e2e", 15, (TailThreshold("b<4k,whole", 1),)))


def shadowing(
    canary: list[str],
    stable: list[str],
    shadow: TwinShadow | None = SHADOW,
    *,
    generation: int = 1,
    baseline: list[str] | None = None,
    weight: int = 0,
) -> RouteTable:
    extra = () if baseline is None else (("s-baseline", 0, baseline),)
    shown = table(generation, ("c", weight, canary), ("s", 100 - weight, stable), *extra)
    (route,) = shown.routes.values()
    route = replace(route, twin_shadow=shadow)
    return RouteTable({route.name: route}, {route.model: route}, shown.endpoints)


@contextlib.asynccontextmanager
async def twins(
    canary: Handler, stable: Handler, shadow: TwinShadow = SHADOW, **settings: Any
) -> AsyncIterator[tuple[Gateway, Upstream, Upstream, Upstream]]:
    """A gateway whose clients are served by one pod of stable, and whose twin is a baseline pod."""
    async with (
        upstream(canary) as tested,
        upstream(stable) as twin,
        upstream(saying("stable")) as served,
        gateway(**settings) as gate,
    ):
        gate.balancer.publish(shadowing([tested.url], [served.url], shadow, baseline=[twin.url]))
        yield gate, tested, twin, served


async def ask(gate: Gateway, body: dict[str, Any] = BODY, path: str = PATH, **options: Any) -> int:
    async with await gate.post(body, path, **options) as answer:
        assert SECRET.decode() not in (await answer.read()).decode(errors="replace")
        return answer.status


def counts(gate: Gateway) -> dict[str, Any]:
    """What all generations counted, without what is nought."""
    (found,) = [
        sample["twins"]["c"] for sample in route_reports(gate.balancer)["default/chat"]["samples"] if sample["twins"]
    ] or [{}]
    return found


def events(gate: Gateway) -> dict[str, dict[str, int]]:
    shown = {name: {leg: n for leg, n in legs.items() if n} for name, legs in counts(gate)["events"].items()}
    return {name: legs for name, legs in shown.items() if legs}


def results(gate: Gateway) -> dict[str, int]:
    samples = (one for family in gate.metrics.registry.collect() for one in family.samples)
    return {one.labels["result"]: int(one.value) for one in samples if one.name == "slipway_gateway_twin_copies_total"}


async def until_results(gate: Gateway, wanted: int) -> None:
    await until_async(lambda: sum(results(gate).values()) == wanted)


# -- what is sent


@pytest.mark.parametrize("stream", [True, False])
async def test_both_legs_get_the_same_copy_and_the_client_its_own_answer(stream: bool) -> None:
    async with twins(saying(SECRET.decode()), saying("stable")) as (gate, canary, twin, served):
        assert await ask(gate, BODY | {"stream": stream, "temperature": 0.7}) == 200
        await until_results(gate, 1)
        assert results(gate) == {"paired": 1} and counts(gate)["pairs"] == 1 and counts(gate)["open"] == 0
        (copy,), (same,), (own,) = canary.bodies, twin.bodies, served.bodies
        assert copy == same and json.loads(copy).keys() - json.loads(own).keys() == {"seed"}
        for leg in (canary, twin):
            (request,) = leg.seen
            assert request.headers["X-Slipway-Shadow"] == "1" and request.path == PATH
        assert canary.seen[0].headers["X-Slipway-Tenant"] == twin.seen[0].headers["X-Slipway-Tenant"]


async def test_legs_are_sent_at_the_same_moment() -> None:
    both, began = asyncio.Event(), set()

    def meets(name: str) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            began.add(name)
            if len(began) == 2:
                both.set()
            await both.wait()
            return web.json_response({"choices": [{"text": "met", "finish_reason": "stop"}]})

        return answer

    async with twins(meets("canary"), meets("twin")) as (gate, _, _, _):
        await ask(gate)
        await until_results(gate, 1)
        assert events(gate) == {}


async def test_without_a_baseline_the_twin_is_a_pod_of_stable() -> None:
    async with upstream(saying("c")) as canary, upstream(saying("s")) as stable, gateway() as gate:
        gate.balancer.publish(shadowing([canary.url], [stable.url]))
        await ask(gate)
        await until_results(gate, 1)
        assert counts(gate)["pairs"] == 1 and len(stable.seen) == 2


async def test_copy_stores_nothing_and_is_another_call() -> None:
    async with twins(saying("c"), saying("s")) as (gate, canary, twin, _):
        await ask(gate, BODY | {"store": True, "temperature": 0}, headers={"Idempotency-Key": "once"})
        await until_results(gate, 1)
        for leg in (canary, twin):
            assert json.loads(leg.bodies[0])["store"] is False and "Idempotency-Key" not in leg.seen[0].headers


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}, {"type": "mcp"}]},
        {"web_search_options": {}},
        {"background": True},
    ],
)
async def test_request_with_a_side_effect_at_its_server_is_not_copied(fields: dict[str, Any]) -> None:
    async with twins(saying("c"), saying("s")) as (gate, canary, twin, _):
        await ask(gate, BODY | fields)
        assert results(gate) == {"side_effects": 1} and not canary.seen + twin.seen
        assert counts(gate)["withheld"] == {}


async def test_request_with_tools_of_the_client_is_copied() -> None:
    async with twins(saying("c"), saying("s")) as (gate, *_):
        await ask(gate, BODY | {"tools": [{"type": "function", "function": {"name": "f"}}]}, "/v1/chat/completions")
        await until_results(gate, 1)
        assert results(gate) == {"paired": 1}


async def test_tokenizing_is_not_copied() -> None:
    async with twins(saying("c"), saying("s")) as (gate, canary, *_):
        await ask(gate, path="/tokenize")
        assert results(gate) == {} and not canary.seen


@pytest.mark.parametrize("status", [400, 500])
async def test_request_is_copied_whatever_its_client_got(status: int) -> None:
    async with (
        twins(saying("c"), saying("s"), max_attempts=1) as (gate, canary, twin, _),
        upstream(answering(status)) as bad,
    ):
        gate.balancer.publish(shadowing([canary.url], [bad.url], baseline=[twin.url], generation=2))
        assert await ask(gate) == status
        await until_results(gate, 1)
        assert results(gate) == {"paired": 1}


async def test_request_that_an_engine_died_of_is_not_copied() -> None:
    async with twins(saying("c"), saying("s")) as (gate, canary, twin, _), raw_upstream() as dead:
        gate.balancer.publish(shadowing([canary.url], [dead], baseline=[twin.url], generation=2))
        await ask(gate)
        assert results(gate) == {"suspect": 1} and not [one for one in twin.seen if "X-Slipway-Shadow" in one.headers]


# -- which are pairs


async def test_session_is_copied_whole_and_counts_once_in_an_epoch() -> None:
    async with twins(saying("c"), saying("s")) as (gate, canary, twin, served):
        for n in range(3):
            await ask(gate, headers={"X-Session-Id": "one"})
            await until_results(gate, n + 1)
        assert results(gate) == {"paired": 1, "uncounted": 2} and counts(gate)["pairs"] == 1
        assert len(canary.seen) == len(twin.seen) == 3
        # Other weights are another generation, in which the session has given its pair already.
        for generation, epoch in ((2, 0), (3, 1)):
            shadow = TwinShadow("c", "s", 100, 1000, epoch)
            gate.balancer.publish(
                shadowing([canary.url], [served.url], shadow, baseline=[twin.url], generation=generation)
            )
            await ask(gate, headers={"X-Session-Id": "one"})
            await until_results(gate, 2 + generation)
        assert results(gate) == {"paired": 2, "uncounted": 3}


async def test_request_without_a_session_is_a_pair_each_time() -> None:
    async with twins(saying("c"), saying("s")) as (gate, *_):
        for n in range(3):
            await ask(gate)
            await until_results(gate, n + 1)
        assert counts(gate)["pairs"] == 3


async def test_a_share_of_sessions_is_copied_whole() -> None:
    async with twins(saying("c"), saying("s"), TwinShadow("c", "s", 40, 1000)) as (gate, canary, twin, _):
        for n in range(30):
            for _ in range(2):
                await ask(gate, headers={"X-Session-Id": str(n)})
        sent = sum(results(gate).values())
        await until_async(lambda: gate.metrics.registry.get_sample_value("slipway_gateway_twin_inflight") == 0)
        assert 0 < results(gate)["paired"] == results(gate)["uncounted"] < 30
        assert len(canary.seen) == len(twin.seen) == sum(results(gate).values()) >= sent


# -- what counts


BROKEN = {
    "no-http": b"\x00\xff\x00 " + SECRET + b"\r\n\r\n",
    "breaks-off": SSE_HEAD + chunk(b"data: " + SECRET + b"\n\n"),
    "breaks-off-whole": JSON_HEAD + b"{" + SECRET,
    "drops": b"",
}
BAD: dict[str, tuple[Handler, str]] = {
    "late": (silent(), "errors"),
    "endless": (endless, "errors"),
    "fails": (answering(500, Leak=SECRET.decode()), "errors"),
    "refuses": (answering(429), "errors"),
    "rejects": (answering(400), "errors"),
    "empty": (saying(""), "empty"),
    "loops": (saying("again and again " * 100), "repetition"),
}


@contextlib.asynccontextmanager
async def bad_server(kind: str) -> AsyncIterator[str]:
    if kind in BAD:
        async with upstream(BAD[kind][0]) as server:
            yield server.url
        return
    async with raw_upstream(BROKEN[kind]) as url:
        yield url


@pytest.mark.parametrize("leg", ["canary_only", "twin_only"])
@pytest.mark.parametrize("kind", [*BROKEN, *BAD])
async def test_whatever_a_leg_does_from_dispatch_on_counts_for_it(kind: str, leg: str) -> None:
    # Only what never ends has to wait for the limit; the good leg must end within it on a busy machine.
    limit_s = 3.0 if kind in ("late", "endless") else 60.0
    async with (
        twins(saying("c"), saying("s"), mirror_timeout_s=limit_s) as (gate, canary, twin, served),
        bad_server(kind) as bad,
    ):
        urls = ([bad], [twin.url]) if leg == "canary_only" else ([canary.url], [bad])
        gate.balancer.publish(shadowing(urls[0], [served.url], baseline=urls[1], generation=2))
        assert await ask(gate) == 200
        await until_results(gate, 1)
        name = BAD[kind][1] if kind in BAD else "errors"
        assert events(gate) == {"bad": {leg: 1}, name: {leg: 1}}
        assert (counts(gate)["pairs"], counts(gate)["open"]) == (1, 0)


async def test_event_of_both_legs_is_one_of_both() -> None:
    async with twins(answering(500), answering(500)) as (gate, *_):
        await ask(gate)
        await until_results(gate, 1)
        assert events(gate) == {"bad": {"both": 1}, "errors": {"both": 1}}


async def test_truncated_text_is_an_event_and_not_bad() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [{"text": "much", "finish_reason": "length"}]})

    async with twins(cut, saying("s")) as (gate, *_):
        await ask(gate)
        await until_results(gate, 1)
        assert events(gate) == {"truncated": {"canary_only": 1}}
        await ask(gate, BODY | {"max_tokens": 5})
        await until_results(gate, 2)
        assert events(gate) == {"truncated": {"canary_only": 1}}, "the client's own limit is no event"


@pytest.mark.parametrize("stream", [True, False])
async def test_pair_is_compared_by_latency_once_the_table_has_limits(stream: bool) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await saying("c")(request)

    async with twins(slow, saying("s")) as (gate, canary, twin, served):
        body = BODY | {"stream": stream}
        await ask(gate, body)
        await until_results(gate, 1)
        assert counts(gate)["latencies"] == {}, "pairs of the warm-up are not compared"
        shadow = TwinShadow("c", "s", 100, 1000, latencies=LATENCIES)
        gate.balancer.publish(shadowing([canary.url], [served.url], shadow, baseline=[twin.url], generation=2))
        await ask(gate, body)
        await until_results(gate, 2)
        found = route_reports(gate.balancer)["default/chat"]["samples"][-1]["twins"]["c"]["latencies"]
        assert {"pairs": 1, "over": 1}.items() <= found["e2e"].items()
        assert ("ttft" in found) == stream
        assert found["e2e"]["tail_both"] == found["e2e"]["tail_pairs"] == (not stream), "streams have no threshold here"


async def test_no_counter_of_clients_knows_of_pairs() -> None:
    seen = []
    for shadow in (SHADOW, None):
        async with twins(answering(500), saying("s")) as (gate, canary, twin, served):
            gate.balancer.publish(shadowing([canary.url], [served.url], shadow, baseline=[twin.url], generation=2))
            for n in range(4):
                await ask(gate, headers={"X-Session-Id": str(n)})
            await until_results(gate, 4 if shadow else 0)
            report = route_reports(gate.balancer)["default/chat"]
            for sample in report["samples"]:
                sample.pop("twins")
                for side in sample["revisions"].values():
                    side["slow"] = {name: sum(map(sum, strata.values())) for name, strata in side["slow"].items()}
            report.pop("activity")
            digest = report.pop("digest")
            seen.append((report, gate.outcomes(), digest))
    assert seen[0] == seen[1]


# -- what is withheld


async def withheld(gate: Gateway, reason: str) -> None:
    await ask(gate)
    assert counts(gate)["withheld"] == {reason: 1} and counts(gate)["pairs"] == 0
    assert results(gate) == {reason: 1}


async def test_pairs_have_a_rate() -> None:
    async with twins(saying("c"), saying("s"), TwinShadow("c", "s", 100, 1)) as (gate, canary, twin, _):
        for _ in range(4):
            await ask(gate)
        await until_results(gate, 4)
        assert results(gate)["rate"] >= 2 and len(canary.seen) == len(twin.seen) == results(gate)["paired"] <= 2
        assert counts(gate)["withheld"] == {"rate": results(gate)["rate"]}


async def test_pairs_in_flight_have_a_limit() -> None:
    release = asyncio.Event()
    async with twins(silent(release), saying("s"), twin_max_inflight=1) as (gate, canary, twin, _):
        await ask(gate)
        await ask(gate)
        assert (counts(gate)["open"], counts(gate)["withheld"]) == (1, {"full": 1})
        release.set()
        await until_results(gate, 2)
        assert len(canary.seen) == len(twin.seen) == 1


@pytest.mark.parametrize("settings", [{"mirror_max_body_bytes": 10}, {"mirror_max_bytes": 1000}])
async def test_large_pairs_are_withheld(settings: dict[str, int]) -> None:
    async with twins(saying("c"), saying("s"), **settings) as (gate, canary, twin, _):
        await withheld(gate, "too_large")
        assert not canary.seen + twin.seen


async def test_pairs_are_withheld_while_clients_need_the_capacity() -> None:
    release = asyncio.Event()
    async with (
        twins(saying("c"), saying("s"), max_inflight=4, max_client_percentage=100) as (gate, canary, twin, _),
        upstream(silent(release)) as slow,
    ):
        gate.balancer.publish(shadowing([canary.url], [slow.url], baseline=[twin.url], generation=2))
        waiting = [asyncio.create_task(ask(gate)) for _ in range(4)]
        await until_async(lambda: len(slow.seen) == 4)
        release.set()
        assert await asyncio.gather(*waiting) == [200] * 4
        await until_results(gate, 4)
        assert results(gate)["busy"] >= 1 and len(canary.seen) == len(twin.seen) == results(gate).get("paired", 0)


@pytest.mark.parametrize(("refused", "reason"), [("canary", "canary_refused"), ("twin", "twin_refused")])
async def test_neither_leg_is_sent_while_one_pod_is_busy(refused: str, reason: str) -> None:
    legs = (answering(429), saying("s")) if refused == "canary" else (saying("c"), answering(429))
    async with twins(*legs) as (gate, canary, twin, _):
        await ask(gate)
        await until_results(gate, 1)
        await ask(gate)
        assert results(gate) == {"paired": 1, reason: 1} and len(canary.seen) == len(twin.seen) == 1
        assert events(gate)["bad"] == {f"{refused}_only": 1}


@pytest.mark.parametrize(("gone", "reason"), [("canary", "no_canary"), ("twin", "no_twin")])
async def test_neither_leg_is_sent_without_a_pod(gone: str, reason: str) -> None:
    async with twins(saying("c"), saying("s")) as (gate, canary, twin, served):
        # Without any pod of stable the canary has to serve clients.
        pods = ([], [served.url]) if gone == "canary" else ([canary.url], [])
        gate.balancer.publish(shadowing(*pods, generation=2, weight=0))
        await withheld(gate, reason)
        assert not [one for server in (canary, twin) for one in server.seen if "X-Slipway-Shadow" in one.headers]


async def test_shutdown_cancels_pairs_and_sends_no_more() -> None:
    async with twins(silent(), silent()) as (gate, canary, twin, _):
        await ask(gate)
        await until_async(lambda: canary.seen and twin.seen)
        await gate.edge.stop_mirroring()
        assert results(gate) == {"cancelled": 1} and counts(gate)["open"] == counts(gate)["pairs"] == 0
        await until_async(lambda: canary.cancelled and twin.cancelled)
        await ask(gate)
        assert results(gate) == {"cancelled": 1}


async def test_nothing_is_paired_where_it_is_off() -> None:
    async with twins(saying("c"), saying("s"), twin_max_inflight=0) as (gate, canary, twin, _):
        await ask(gate)
        assert results(gate) == {} and not canary.seen + twin.seen
