"""Counts against spec.slo: exact at the limit, once for each request, as its client saw it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts import service_levels
from slipway_contracts.route_table import Backend
from slipway_contracts.service_levels import ServiceLevels
from slipway_gateway.balancing.objectives import MOST_PAIRS, MOST_REVISIONS, Objectives
from slipway_gateway.routing.table import Route, RouteTable
from slipway_gateway.telemetry.metrics import RequestRecord
from testkit.until import until_async

from .harness import Gateway, gateway, table, upstream

ALL = ServiceLevels(800, 60, 2000, True)


def route(
    levels: ServiceLevels | None = ALL, name: str = "default/chat", uid: str = "u", revision: str = "r1"
) -> Route:
    return Route(name, uid, "chat", backends=(Backend(revision, 100),), slo=levels)


def counting(*routes: Route) -> Objectives:
    objectives = Objectives()
    objectives.follow({one.name: one for one in routes or (route(),)})
    return objectives


def ended(outcome: str = "ok", code: int = 200, *, first_s: float = 0.1, itl_s: float | None = 0.05, **fields: Any):
    defaults = {"route": "default/chat", "revision": "r1", "stream": True}
    record = RequestRecord("id", "id", 100.0, **(defaults | fields))
    record.end(outcome, code)
    record.first_byte, record.itl_s = 100.0 + first_s, itl_s
    return record


def series(objectives: Objectives) -> dict[tuple[str, str, str], float]:
    """By revision, objective and outcome, those that are not 0."""
    family, _ = objectives.collect()
    return {
        (sample.labels["revision"], sample.labels["objective"], sample.labels["outcome"]): sample.value
        for sample in family.samples
        if sample.name == "slipway_slo_requests_total" and sample.value
    }


@pytest.mark.parametrize(
    ("first_s", "itl_s", "total_s", "missed"),
    [
        (0.75, 0.0625, 1.5, {"itlP95/60"}),
        (0.8125, 0.03125, 1.5, {"ttftP95/800"}),
        (0.5, 0.03125, 2.0, set()),
        (0.5, 0.03125, 2.0625, {"latencyP99/2000"}),
        (0.8125, 0.0625, 4.0, {"itlP95/60", "ttftP95/800", "latencyP99/2000"}),
    ],
)
def test_a_request_counts_by_its_own_time_and_by_no_bucket(
    first_s: float, itl_s: float, total_s: float, missed: set[str]
) -> None:
    objectives = counting()
    objectives.ended(ended(first_s=first_s, itl_s=itl_s), 100.0 + total_s)
    report = objectives.report(route())
    assert report == {name: (1, int(name in missed)) for name in ALL.by_key()}


def test_a_failure_counts_for_availability_alone_and_a_clients_fault_nowhere() -> None:
    objectives = counting()
    for outcome, code in (("upstream_error", 502), ("no_endpoint", 503), ("timeout", 504), ("internal", 500)):
        objectives.ended(ended(outcome, code), 900.0)
    objectives.ended(ended("upstream_error", 200), 900.0)  # a stream that broke off
    for outcome, code in (("client_error", 404), ("refused", 429), ("client_closed", 499), ("poison", 422)):
        objectives.ended(ended(outcome, code), 900.0)
    objectives.ended(ended(route=""), 900.0)
    objectives.ended(ended(route="default/other"), 900.0)
    assert objectives.report(route()) == {
        "ttftP95/800": (0, 0), "itlP95/60": (0, 0), "latencyP99/2000": (0, 0), "availability/0": (5, 5),
    }  # fmt: skip


def test_a_whole_response_has_no_first_token_and_no_time_between_tokens() -> None:
    objectives = counting()
    objectives.ended(ended(stream=False, first_s=1.0), 101.0)
    assert series(objectives) == {("r1", "latencyP99", "good"): 1, ("r1", "availability", "good"): 1}


def test_counts_follow_their_limit_and_their_object() -> None:
    objectives = counting()
    objectives.ended(ended(first_s=0.9), 101.0)
    longer = route(replace(ALL, ttft_milliseconds=1000, itl_milliseconds=None))
    objectives.follow({longer.name: longer})
    assert objectives.report(longer) == {"ttftP95/1000": (0, 0), "latencyP99/2000": (1, 0), "availability/0": (1, 0)}
    assert {name for _, name, _ in series(objectives)} == {"ttftP95", "latencyP99", "availability"}
    again = route(uid="another")
    objectives.follow({again.name: again})
    assert set(objectives.report(again).values()) == {(0, 0)}
    objectives.follow({"default/chat": route(None)})
    assert objectives.report(route(None)) is None and series(objectives) == {}


def test_series_are_there_before_the_first_request_and_bounded() -> None:
    routes = [route(name=f"team/m{number}") for number in range(MOST_PAIRS + 5)]
    objectives = counting(*routes)
    requests, left_out = objectives.collect()
    assert len(requests.samples) == MOST_PAIRS * 8 and left_out.samples[0].value == 5
    one = counting()
    for number in range(3 * MOST_REVISIONS):
        one.ended(ended(revision=f"r{number}"), 101.0)
    assert len({revision for revision, _, _ in series(one)}) == MOST_REVISIONS
    assert one.report(route())["availability/0"] == (3 * MOST_REVISIONS, 0)
    for number in range(3 * MOST_REVISIONS):  # a year of rollouts
        one.follow({"default/chat": route(revision=f"n{number}")})
    requests, _ = one.collect()
    revisions = {sample.labels["revision"] for sample in requests.samples}
    assert len(revisions) == MOST_REVISIONS and f"n{3 * MOST_REVISIONS - 1}" in revisions


def test_series_of_one_namespace_push_out_none_of_another() -> None:
    many = [route(name=f"a-hostile/m{number}") for number in range(2 * MOST_PAIRS)]
    requests, left_out = counting(*many, route(), route(name="team/b")).collect()
    names = {(sample.labels["namespace"], sample.labels["name"]) for sample in requests.samples}
    assert {("default", "chat"), ("team", "b")} <= names and len(names) == MOST_PAIRS
    assert left_out.samples[0].value == MOST_PAIRS + 2


def test_the_operator_reads_what_gateways_report_and_nothing_else() -> None:
    objectives = counting()
    objectives.ended(ended(), 101.0)
    assert service_levels.read(objectives.report(route())) == objectives.report(route())
    wrong = {
        "ttftP95": [1, 1],
        "else/1": [1, 1],
        "itlP95/60": [1, 2],
        "latencyP99/2000": [1],
        "availability/0": [1.5, 1],
    }
    assert service_levels.read(wrong) == service_levels.read([1]) == service_levels.read(None) == {}
    assert service_levels.read({"availability/0": [-1, -1], "ttftP95/99999999": [1, 1], "itlP95/x": [1, 1]}) == {}


def with_objectives(shown: RouteTable) -> RouteTable:
    (found,) = shown.routes.values()
    one = replace(found, slo=ServiceLevels(10_000, 10_000, 10_000, True))
    return RouteTable({one.name: one}, {one.model: one}, shown.endpoints)


def reported(gate: Gateway) -> dict[str, Any]:
    (found,) = gate.balancer.report().values()
    return {name.partition("/")[0]: counts for name, counts in (found.objectives or {}).items()}


async def test_requests_through_a_gateway_count_once_each() -> None:
    fails = iter((True, False))

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("fails") and next(fails, False):
            return web.Response(status=503)
        if not body.get("stream"):
            return web.json_response({"choices": []}, status=body.get("status", 200))
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for _ in range(4):
            await out.write(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
            await asyncio.sleep(0.01)
        await out.write(b"data: [DONE]\n\n")
        return out

    async with upstream(answer) as server, upstream(answer) as other, gateway(hold_timeout_s=0) as gate:
        gate.balancer.publish(with_objectives(table(1, ("rev", 100, [server.url, other.url]))))

        async def post(**fields: Any) -> int:
            async with await gate.post({"model": "chat", "messages": [], **fields}) as response:
                await response.read()
                return response.status

        assert await post() == 200
        assert reported(gate) == {"ttftP95": (0, 0), "itlP95": (0, 0), "latencyP99": (1, 0), "availability": (1, 0)}
        assert await post(stream=True) == 200
        assert reported(gate) == {"ttftP95": (1, 0), "itlP95": (1, 0), "latencyP99": (2, 0), "availability": (2, 0)}
        assert await post(fails=True) == 200, "its retry is what the client saw"
        assert await post(status=400) == 400
        async with await gate.post({"model": "unknown"}) as response:
            assert response.status == 404
        async with gate.client.get(f"{gate.url}/v1/models/chat") as response:
            assert response.status == 200
        assert reported(gate)["availability"] == (3, 0)
        gate.balancer.publish(with_objectives(table(2, ("rev", 100, []))))
        assert await post() == 503
        assert reported(gate)["availability"] == (4, 1) and reported(gate)["latencyP99"] == (3, 0)
        async with gate.client.get(f"{gate.admin_url}/metrics") as response:
            page = await response.text()
        labels = 'name="chat",namespace="default",objective="availability",outcome="good",revision="rev"'
        assert f"slipway_slo_requests_total{{{labels}}} 3.0" in page


async def test_a_client_that_sends_or_reads_slowly_spends_no_budget() -> None:
    """Any client of a model could otherwise hold the rollouts of its owner."""
    text = b"x" * (16 << 20)

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
        await out.write(b": " + text + b"\n\ndata: [DONE]\n\n")
        return out

    async with upstream(answer) as server, gateway(hold_timeout_s=0) as gate:
        shown = with_objectives(table(1, ("rev", 100, [server.url])))
        (one,) = shown.routes.values()
        one = replace(one, slo=ServiceLevels(1500, None, 2500, None))
        gate.balancer.publish(RouteTable({one.name: one}, {one.model: one}, shown.endpoints))
        body = b'{"model": "chat", "messages": [], "stream": true}'

        async def slowly() -> AsyncIterator[bytes]:
            yield body[:10]
            await asyncio.sleep(2)
            yield body[10:]

        headers = {"Content-Type": "application/json"}
        async with gate.client.post(f"{gate.url}/v1/chat/completions", data=slowly(), headers=headers) as response:
            assert response.status == 200
            await response.content.readany()
            await asyncio.sleep(3)
            await response.read()
        await until_async(lambda: reported(gate)["latencyP99"], "it ended", holds=lambda counts: counts[0] == 1)
        assert reported(gate) == {"ttftP95": (1, 0), "latencyP99": (1, 0)}
