"""Counts of answered and refused requests, and how the gateway notifies the operator of a failing route."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from slipway_gateway.balancing.service import RouteService, RouteServices
from tests.support.report import as_json

from .harness import answering, echo, gateway, refused_url, upstream


def counted(one: RouteService, now_s: float) -> tuple[int, int]:
    state = as_json(one.report(now_s))
    return state["answered"], state["refused"]


def test_counts_are_of_the_last_ten_to_twenty_seconds() -> None:
    one = RouteService(0.0)
    one.answered(1.0)
    one.refused(9.0, "upstream")
    assert counted(one, 9.9) == (1, 1)
    assert counted(one, 19.9) == (1, 1)
    one.answered(19.95)
    assert counted(one, 20.0) == (1, 0), "what was before is forgotten"
    assert counted(one, 60.0) == (0, 0)
    assert one.report(60.0).last == ""


def test_a_route_fails_when_nearly_all_requests_do() -> None:
    one = RouteService(0.0)
    for _ in range(2):
        one.refused(1.0, "no_endpoint")
    assert not one.fails(1.0), "two may be chance"
    one.refused(1.0, "no_endpoint")
    assert one.fails(1.0)
    one.answered(2.0)
    assert not one.fails(2.0), "one of four was answered"
    for _ in range(10):
        one.refused(3.0, "no_endpoint")
    assert one.fails(3.0) and not one.fails(23.0)


def test_changes_are_notified_once_at_begin_and_end() -> None:
    now, notified = [0.0], []
    services = RouteServices(lambda: now[0], notified.append)
    services.follow([("a", "u", True), ("b", "u", False)])
    assert notified == []
    for _ in range(20):
        services.refused("a", "upstream")
    services.refused("elsewhere", "upstream")
    assert notified == ["a"]
    for _ in range(20):
        services.answered("a")
    assert notified == ["a", "a"]
    now[0] = 5.0
    services.follow([("a", "u", False), ("b", "u", True)])
    assert notified == ["a", "a", "a", "b"]
    now[0] = 7.5
    assert services.report("a").unserved_s == 2.5 and services.report("b").unserved_s is None
    services.follow([("a", "another object", False)])
    assert services.report("a").unserved_s == 0.0


async def report(gate: Any) -> dict[str, Any]:
    async with gate.client.get(gate.admin_url + "/internal/routes") as answer:
        return dict((await answer.json())["routes"]["default/chat"]["service"])


async def test_every_request_counts_as_answered_or_refused() -> None:
    async with gateway() as gate, upstream(echo) as server, upstream(answering(500)) as broken:
        gate.route(("r1", 100, [server.url]))
        for _ in range(3):
            await gate.post()
        state = await report(gate)
        assert (state["answered"], state["refused"], state["unserved_s"]) == (3, 0, None)
        gate.route(("r1", 100, [broken.url]))
        await gate.post()
        gate.route(("r1", 100, [refused_url()]))
        await gate.post()
        gate.route(("r1", 100, []))
        await gate.post()
        state = await report(gate)
        assert (state["answered"], state["refused"]) == (3, 3)
        assert state["last"] and state["unserved_s"] >= 0


@pytest.mark.finding(1, "S1")
async def test_failing_requests_notify_the_operator_at_once() -> None:
    """Seen: `Healthy 2/2` while every request got 503 (safety 1, story S1)."""
    async with gateway() as gate:
        gate.route(("r1", 100, [refused_url()]))
        async with gate.client.get(gate.admin_url + "/internal/calls") as answer:
            mark = (await answer.json())["mark"]
        long_poll = gate.client.get(gate.admin_url + "/internal/calls", params={"since": mark})
        waiting = asyncio.ensure_future(long_poll)
        for _ in range(3):
            assert (await gate.post()).status >= 500
        async with asyncio.timeout(60), await waiting as answer:
            assert (await answer.json())["routes"] == ["default/chat"]


LATE = {"error": {"message": "m", "type": "server_error", "param": None, "code": "deadline_exceeded"}}


@pytest.mark.finding(18)
async def test_the_deadline_of_one_client_ejects_no_endpoint_and_counts_as_answered() -> None:
    """Seen: one client with `timeout: 0.001` ejected one of two endpoints and filled `refused`."""

    async def serve(request: web.Request) -> web.Response:
        late = b"timeout" in await request.read()
        return web.json_response(LATE, status=504) if late else web.json_response({"choices": []})

    async with gateway() as gate, upstream(serve) as one, upstream(serve) as two:
        gate.route(("r1", 100, [one.url, two.url]))
        for n in range(20):
            body = {"model": "chat", "timeout": 0.001}
            async with await gate.post(body, headers={"X-Session-Id": str(n)}) as answer:
                assert answer.status == 504 and await answer.json() == LATE
        async with await gate.post() as answer:
            assert answer.status == 200
        state = await report(gate)
        assert (state["answered"], state["refused"]) == (21, 0)
        assert not gate.balancer.ejection.urls()
        assert gate.outcomes() == {"client_error": 20, "ok": 1}


async def test_other_responses_504_still_count_against_their_endpoint() -> None:
    async with gateway() as gate, upstream(answering(504)) as one, upstream(answering(504)) as two:
        gate.route(("r1", 100, [one.url, two.url]))
        for n in range(12):
            async with await gate.post(headers={"X-Session-Id": str(n)}) as answer:
                assert answer.status == 504
        state = await report(gate)
        assert (state["answered"], state["refused"]) == (0, 12)
        assert len(gate.balancer.ejection.urls()) == 1 and gate.outcomes() == {"upstream_error": 12}
