"""A deployment scaled to zero: requests are held and wake it, streams get comments, all get a response."""

import asyncio
import contextlib
import json
import re
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from slipway_gateway.balancing.activity import ActivityTracker
from slipway_gateway.routing.table import RevisionEndpoints, RouteTable, build
from testkit.until import until_async
from tests.gateway.harness import Gateway, answering, drop, echo, gateway, streaming, table, upstream
from tests.support.report import as_json

STREAM = {"model": "chat", "stream": True}


def publish(edge: Gateway, url: str = "", **fields: Any) -> None:
    """The next table: one revision at `url`, with these fields of its route."""
    edge.generation += 1
    made = table(edge.generation, ("r1", 100, [url] if url else []))
    route = replace(made.routes["default/chat"], **fields)
    edge.balancer.publish(build([route], [RevisionEndpoints("default/chat", "r1", (url,) if url else ())]))


def sleeps(edge: Gateway, url: str = "", *, hold_s: float = 30, wake_s: int = 7) -> None:
    publish(edge, url, asleep=True, hold_s=hold_s, wake_s=wake_s)


def wakes(edge: Gateway, url: str = "", *, hold_s: float = 30) -> None:
    publish(edge, url, hold_s=hold_s, wake_s=7)


async def activity(edge: Gateway) -> dict[str, Any]:
    async with edge.client.get(edge.admin_url + "/internal/routes") as answer:
        return dict((await answer.json())["routes"]["default/chat"]["activity"])


async def calls(edge: Gateway, since: str = "") -> dict[str, Any]:
    async with edge.client.get(edge.admin_url + "/internal/calls", params={"since": since}) as answer:
        return dict(await answer.json())


async def events(answer: aiohttp.ClientResponse) -> tuple[list[str], list[Any]]:
    """Comments and data of a stream."""
    lines = (await answer.read()).decode().splitlines()
    data = [line[6:] for line in lines if line.startswith("data: ")]
    return [line for line in lines if line.startswith(":")], [x if x == "[DONE]" else json.loads(x) for x in data]


async def test_nothing_is_sent_while_it_sleeps_though_pods_are_there() -> None:
    """The route sleeps and its pods still run: requests are held, and are sent once it is awake again."""
    async with gateway() as edge, upstream(echo) as server:
        sleeps(edge, server.url)
        held = asyncio.create_task(edge.post())
        await until_async(edge.held)
        assert not server.seen
        assert (await activity(edge))["held"] == 1
        edge.route(("r1", 100, [server.url]))
        assert (await held).status == 200
        assert edge.outcomes() == {"ok": 1}


async def test_held_request_keeps_its_waiting_time_after_the_wake() -> None:
    async with gateway(hold_timeout_s=0.05) as edge, upstream(echo) as server:
        sleeps(edge)
        held = asyncio.create_task(edge.post())
        await until_async(edge.held)
        wakes(edge)
        edge.route(("r1", 100, []))  # awake, and the endpoint is not known here yet
        await asyncio.sleep(0.2)
        assert edge.held() == 1
        edge.route(("r1", 100, [server.url]))
        assert (await held).status == 200


async def test_pods_that_left_and_are_still_listed_cost_a_wake_no_attempt() -> None:
    """However often they refuse, also when it is awake and its endpoints arrive last."""
    gone = answering(503)
    async with gateway(max_attempts=2) as edge, upstream(gone) as left, upstream(echo) as server:
        sleeps(edge, left.url)
        held = asyncio.create_task(edge.post())
        await until_async(edge.held)
        wakes(edge, left.url)
        await until_async(lambda: len(left.seen) > 3)
        edge.route(("r1", 100, [left.url]))
        seen = len(left.seen)
        await until_async(lambda: len(left.seen) > seen + 1)
        edge.route(("r1", 100, [server.url]))
        assert (await held).status == 200
        assert edge.outcomes() == {"ok": 1}


async def test_request_before_the_sleep_status_gets_its_waiting_time() -> None:
    """Its table was old: the pod is gone when the sleep status comes."""
    async with gateway(hold_timeout_s=0.5) as edge, upstream(echo) as server:
        edge.route(("r1", 100, []))
        held = asyncio.create_task(edge.post())
        await until_async(edge.held)
        sleeps(edge)
        await asyncio.sleep(0.6)
        assert (await calls(edge))["routes"] == ["default/chat"]
        edge.route(("r1", 100, [server.url]))
        assert (await held).status == 200


async def test_held_stream_gets_comments_and_then_its_response() -> None:
    async with gateway(wake_comment_s=0.05) as edge, upstream(streaming(3)) as server:
        sleeps(edge)
        answer = await edge.post(STREAM)
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert answer.headers["X-Request-Id"]
        wakes(edge)
        comments = [(await answer.content.readuntil(b"\n")).decode() for _ in range(2)]
        edge.route(("r1", 100, [server.url]))
        more, data = await events(answer)
        assert all(re.match(r": waking, \d+ s of about 7 s", line) for line in comments + more)
        assert not any("\n\n" in line for line in comments), "no client takes a comment for an event"
        assert data == [{"n": 0}, {"n": 1}, {"n": 2}, "[DONE]"]
        assert edge.outcomes() == {"ok": 1}


async def test_a_fast_wake_sends_no_comment() -> None:
    async with gateway(wake_comment_s=30.0) as edge, upstream(streaming(1)) as server:
        sleeps(edge)
        held = asyncio.create_task(edge.post(STREAM))
        await until_async(edge.held)
        edge.route(("r1", 100, [server.url]))
        answer = await held
        assert answer.headers["X-Slipway-Revision"] == "r1"
        assert (await events(answer))[0] == []


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/v1/chat/completions", ["model_waking", "[DONE]"]),
        ("/v1/generate", ["model_waking"]),
    ],
)
async def test_a_wake_that_takes_too_long_ends_a_stream_with_an_event(path: str, wanted: list[str]) -> None:
    async with gateway(wake_comment_s=0.05) as edge:
        sleeps(edge, hold_s=0.2)
        _, data = await events(await edge.post(STREAM, path))
        assert [item if item == "[DONE]" else item["error"]["code"] for item in data] == wanted
        assert "about 7 s" in data[0]["error"]["message"]
        assert edge.outcomes() == {"no_endpoint": 1}
        assert (await activity(edge))["held"] == 0


@pytest.mark.parametrize(
    ("status", "outcome", "kind"),
    [
        (400, "client_error", "invalid_request_error"),
        (500, "upstream_error", "server_error"),
        (200, "upstream_error", ""),
    ],
)
async def test_an_answer_that_is_no_stream_comes_as_an_event_after_comments(
    status: int, outcome: str, kind: str
) -> None:
    async with gateway(wake_comment_s=0.05) as edge, upstream(answering(status)) as server:
        sleeps(edge)
        answer = await edge.post(STREAM)
        edge.route(("r1", 100, [server.url]))
        _, data = await events(answer)
        assert data[-1] == "[DONE]"
        assert data[0]["error"]["message"] == "refused by upstream"
        assert kind in data[0]["error"]["type"]
        assert edge.outcomes() == {outcome: 1}


async def test_without_holding_503_has_retry_after_and_wakes() -> None:
    async with gateway() as edge:
        sleeps(edge, hold_s=0)
        answer = await edge.post()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
        error = (await answer.json())["error"]
        assert error["code"] == "model_waking"
        assert "about 7 s" in error["message"]
        assert (await calls(edge))["routes"] == ["default/chat"]
        state = await activity(edge)
        assert state["held"] == 0
        assert state["last_request_s"] < 5


async def test_held_requests_are_bounded_and_the_next_one_gets_503() -> None:
    async with gateway(max_held=1) as edge, upstream(echo) as server:
        sleeps(edge, wake_s=0)
        waits = asyncio.create_task(edge.post())
        await until_async(edge.held)
        full = await edge.post()
        assert (full.status, full.headers["Retry-After"]) == (503, "15")
        edge.route(("r1", 100, [server.url]))
        assert (await waits).status == 200
        assert edge.outcomes() == {"ok": 1, "no_endpoint": 1}


async def test_a_client_that_leaves_while_it_waits_is_counted_once() -> None:
    async with gateway(wake_comment_s=0.05) as edge:
        sleeps(edge)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(edge.url.rpartition(":")[2]))
        body = json.dumps(STREAM).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        assert b": waking" in await reader.readuntil(b"s\n")
        await drop(writer)
        await until_async(lambda: edge.outcomes() == {"client_closed": 1})
        assert (await activity(edge))["held"] == 0


async def test_wake_requests_are_reported_at_once_and_once() -> None:
    async with gateway() as edge, upstream(echo) as server:
        sleeps(edge)
        first = await calls(edge)
        assert first["routes"] == []
        listening = asyncio.create_task(calls(edge, first["mark"]))
        held = [asyncio.create_task(edge.post()) for _ in range(3)]
        report = await asyncio.wait_for(listening, 60)
        assert (report["routes"], report["mark"] != first["mark"]) == (["default/chat"], True)
        again = asyncio.create_task(calls(edge, report["mark"]))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(again), 0.2)
        assert not again.done(), "the other two change nothing"
        edge.route(("r1", 100, [server.url]))
        assert {(await one).status for one in held} == {200}
        served = await asyncio.wait_for(again, 60)
        assert served["routes"] == ["default/chat"], "it has an endpoint now"
        again = asyncio.create_task(calls(edge, served["mark"]))
        sleeps(edge, hold_s=0)
        await edge.post()
        assert (await asyncio.wait_for(again, 60))["routes"] == ["default/chat"]


def test_activity_counts_from_the_last_request_of_this_very_route() -> None:
    now = 100.0
    tracker = ActivityTracker(lambda: now)
    one = RouteTable({"default/chat": table(1, ("r1", 100, [])).routes["default/chat"]})
    tracker.follow(one.routes)
    now = 110.0
    assert as_json(tracker.report("default/chat")) == {"held": 0, "known_s": 10.0, "last_request_s": None}
    activity = tracker.enter("default/chat")
    now = 115.0
    assert as_json(tracker.report("default/chat"))["last_request_s"] == 0.0
    tracker.leave(activity)
    now = 117.0
    tracker.follow(one.routes)
    assert as_json(tracker.report("default/chat")) == {"held": 0, "known_s": 17.0, "last_request_s": 2.0}
    tracker.follow({"default/chat": replace(one.routes["default/chat"], uid="another")})
    assert as_json(tracker.report("default/chat")) == {"held": 0, "known_s": 0.0, "last_request_s": None}
