"""The fast lane of the data plane and Python serve the same requests alike, and count each of them once."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from opentelemetry.trace import SpanKind

from slipway_contracts.guards import GuardSpec
from slipway_contracts.route_table import HeaderMatch, HeaderRoute, InferenceLogSample, MirrorRoute, ResponseCache
from slipway_contracts.service_levels import ServiceLevels
from slipway_gateway.balancing.endpoint_picker import LeastLoad, PrefixAffinity
from slipway_gateway.balancing.prompt_blocks import PromptBlocks
from slipway_gateway.fast_lane.table import why_python
from slipway_gateway.identity.tenants import KnownTenant
from slipway_plane import NATIVE, WHY_MISSING
from testkit.until import until_async
from tests.plane.mutation import varying

from . import harness
from .harness import Gateway, Upstream, drop, upstream

pytestmark = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)

PATH = "/v1/chat/completions"
TEXT = "A short and quite ordinary sentence, which repeats nothing at all."
ANSWER = {
    "id": "x",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
# What differs between two gateways by chance: ids, times and ports.
_CHANCE = ("ts", "request_id", "duration_ms", "ttft_ms", "upstream")


def completion(content: str = TEXT, finish: str = "stop") -> bytes:
    message = {"role": "assistant", "content": content}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()


async def in_parts(request: web.Request, kind: str, *parts: bytes) -> web.StreamResponse:
    """A response without a length."""
    out = web.StreamResponse(headers={"Content-Type": kind})
    await out.prepare(request)
    for part in parts:
        await out.write(part)
    await out.write_eof()
    return out


BODIES = {
    "long": completion("varied words " * 9000),
    "loop": completion("again and " * 200),
    "empty": b"",
    "cut": completion(finish="length"),
    "error": b'{"error":{"message":"no","type":"server_error"}}',
}
HEADERS = {"Set-Cookie": "a=b", "X-Slipway-Revision": "mine", "X-Own": "1", "Server": "engine", "Keep-Alive": "5"}


async def answer(request: web.Request) -> web.StreamResponse:
    """What the header `x-want` names."""
    want = request.headers.get("x-want", "")
    if want in BODIES:
        return web.Response(body=BODIES[want], headers={"Content-Type": "application/json"})
    if want.isdigit():
        return web.json_response({"error": {"message": "no", "type": "x", "code": "y"}}, status=int(want))
    if want == "chunked":
        return await in_parts(request, "application/json", b'{"choices":', b"[]}")
    if want == "stream":
        event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
        return await in_parts(request, "text/event-stream", event, b"data: [DONE]\n\n")
    if want == "text":
        return web.Response(text="hello")
    if want == "slow":
        await asyncio.sleep(1.6)
    response = web.json_response(ANSWER, headers=HEADERS if want == "headers" else None)
    if want == "close":
        response.force_close()
    return response


@contextlib.asynccontextmanager
async def two_lanes(*revisions: str, **changes: Any) -> AsyncIterator[tuple[Gateway, Gateway, Upstream]]:
    """A gateway in Python alone, one with the fast lane, and a server that both send to."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(answer))
        gates = [
            await stack.enter_async_context(harness.gateway(plane=plane, **changes)) for plane in ("off", "required")
        ]
        names = revisions or ("rev",)
        for gate in gates:
            weights = [100 // len(names)] * len(names)
            gate.route(*((name, weight, [server.url]) for name, weight in zip(names, weights, strict=True)))
        yield gates[0], gates[1], server


def fast(gate: Gateway) -> int:
    """Requests that the fast lane served alone."""
    gate.metrics.render()
    assert isinstance(gate.metrics, harness.CountingMetrics)
    return gate.metrics.fast()


def reasons(gate: Gateway) -> dict[str, int]:
    """Connections that went to Python, by why."""
    found: dict[str, int] = {}
    for family in gate.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "slipway_gateway_handovers_total":
                found[sample.labels["reason"]] = found.get(sample.labels["reason"], 0) + int(sample.value)
    return found


def recounts(gate: Gateway) -> dict[str, int]:
    """Requests that Python counted again, by what differed."""
    found = {}
    for family in gate.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "slipway_gateway_recounts_total":
                found[sample.labels["result"]] = int(sample.value)
    return found


def counted(gate: Gateway) -> dict[str, float]:
    """All counts of requests and attempts by their labels, without times."""
    wanted = re.compile(r"slipway_gateway_(requests_total|bad_answers_total|retries_total|\w+_seconds_count|inflight)$")
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if wanted.match(sample.name)
    }


def report(gate: Gateway) -> dict[str, Any]:
    """The report on the route, without what depends on times."""
    made = msgspec.to_builtins(gate.balancer.report()["default/chat"])
    del made["activity"]
    for sample in made["samples"]:
        for revision in sample["revisions"].values():
            for kind in ("slow", "late"):
                for measure, strata in revision[kind].items():
                    revision[kind][measure] = {at: sum(counts) for at, counts in strata.items()}
    return dict(made)


# Headers, body and path.
SeenRequest = tuple[list[tuple[str, str]], bytes, str]


def seen_by(server: Upstream) -> SeenRequest:
    """The last request that a server got: its headers but those of chance, its body and its path."""
    request = server.seen[-1]
    listed = [(name.lower(), value) for name, value in request.headers.items() if name.lower() != "x-request-id"]
    return listed, server.bodies[-1], request.path_qs


def shown(response: aiohttp.ClientResponse) -> dict[str, str]:
    """Headers of a response, but those of chance."""
    return {
        name.lower(): value for name, value in response.headers.items() if name.lower() not in ("x-request-id", "date")
    }


REQUESTS: Mapping[str, tuple[dict[str, str], dict[str, Any], str, str]] = {
    # by name: headers, fields of the body, path, and why Python served it; "" where the fast lane did
    "plain": ({}, {}, PATH, ""),
    "with an id": ({"X-Request-Id": "mine-1"}, {}, PATH, ""),
    "with an id that is refused": ({"X-Request-Id": "mine 1"}, {}, PATH, ""),
    "with a key": ({"Authorization": "Bearer secret-key"}, {}, PATH, ""),
    "with credentials that stay here": ({"Cookie": "a=b", "X-Api-Key": "k", "Api-Key": "k"}, {}, PATH, ""),
    "of a session": ({"X-Session-Id": "s"}, {}, PATH, ""),
    "of a user": ({}, {"user": "u"}, PATH, ""),
    "by the route's name": ({}, {"model": "default/chat"}, PATH, ""),
    "resumable": ({"X-Slipway-Resumable": "1"}, {}, PATH, ""),
    "closing": ({"Connection": "close"}, {}, PATH, ""),
    "an embedding": ({}, {"input": "a"}, "/v1/embeddings", ""),
    "tokens": ({}, {"text": "a"}, "/tokenize", ""),
    "a prediction": ({}, {"rows": [[1]]}, "/v2/models/chat/infer", ""),
    "with headers back": ({"x-want": "headers"}, {}, PATH, ""),
    "closed by the server": ({"x-want": "close"}, {}, PATH, ""),
    "a stream": ({"x-want": "stream"}, {"stream": True}, PATH, "stream"),
    "a stream that no one calls for": ({"x-want": "stream"}, {}, PATH, "chunked"),
    "chunks": ({"x-want": "chunked"}, {}, PATH, "chunked"),
    "long": ({"x-want": "long"}, {}, PATH, "long_response"),
    "a loop": ({"x-want": "loop"}, {}, PATH, "judged"),
    "cut": ({"x-want": "cut"}, {"max_tokens": 3}, PATH, "judged"),
    "empty": ({"x-want": "empty"}, {}, PATH, "judged"),
    "an error in a response of status 200": ({"x-want": "error"}, {}, PATH, "judged"),
    "no JSON": ({"x-want": "text"}, {}, PATH, "no_json"),
    "slow": ({"x-want": "slow"}, {}, PATH, "slow"),
    "not found": ({"x-want": "404"}, {}, PATH, "status"),
    "busy": ({"x-want": "429"}, {}, PATH, "status"),
    "failed": ({"x-want": "500"}, {}, PATH, "status"),
    "unavailable": ({"x-want": "503"}, {}, PATH, "status"),
    "JSON wanted": ({}, {"response_format": {"type": "json_object"}}, PATH, "json_format"),
    "no model": ({}, {"model": None}, PATH, "no_model"),
    "an unknown model": ({}, {"model": "other"}, PATH, "unknown_model"),
    "with a query": ({}, {}, f"{PATH}?a=b", "path"),
    "of the Responses API": ({}, {"input": "a"}, "/v1/responses", "path"),
    "of a page": ({"Origin": "https://a.example"}, {}, PATH, "browser"),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_both_lanes_answer_and_count_alike(name: str) -> None:
    headers, fields, path, reason = REQUESTS[name]
    body = {key: value for key, value in ({"model": "chat"} | fields).items() if value is not None}
    async with two_lanes(hold_timeout_s=0.1, max_attempts=2) as (python, both, server):
        made = []
        for gate in (python, both):
            answered = await gate.post(body, path, headers=headers)
            seen = (seen_by(server) if server.seen else None, len(server.seen))
            kept = shown(answered)
            if reason in ("chunked", "stream"):
                # Parts that came in one read have a length: that is by chance.
                kept.pop("content-length", kept.pop("transfer-encoding", ""))
            made.append((answered.status, kept, await answered.read(), *seen))
            server.seen.clear()
        assert made[0] == made[1]
        await until_async(lambda: sum(both.outcomes().values()) == 1)
        assert (fast(both), reasons(both)) == ((0, {reason: 1}) if reason else (1, {}))
        assert counted(python) == counted(both)
        expected = report(python)
        if not expected["samples"]:
            expected["samples"] = report(both)["samples"]  # its generation began with the table
        assert report(both) == expected


async def test_a_split_and_its_counts_are_the_same_in_both_lanes() -> None:
    async with two_lanes("new", "old") as (python, both, _):
        for gate in (python, both):
            for n in range(60):
                sent = await gate.post(headers={"X-Session-Id": f"s{n % 40}"} if n < 50 else {"X-Request-Id": f"r{n}"})
                gate.counted[f"{n}",] = sent.headers["X-Slipway-Revision"] == "new"
        assert python.counted == both.counted
        assert 10 < sum(both.counted.values()) < 50
        await until_async(lambda: sum(both.outcomes().values()) == 60)
        assert (fast(both), report(both)) == (60, report(python))


async def test_a_session_in_both_lanes_is_one_unit() -> None:
    async with two_lanes("new", "old") as (_, gate, _):
        for stream in (False, True, False, True):
            want = {"x-want": "stream"} if stream else {}
            sent = await gate.post({"model": "chat", "stream": stream}, headers={"X-Session-Id": "s", **want})
            await sent.read()
        await until_async(lambda: sum(gate.outcomes().values()) == 4)
        samples = report(gate)["samples"][0]["revisions"]
        assert sum(one["requests"] for one in samples.values()) == 4
        assert sum(one["assigned"] for one in samples.values()) == 1
        assert sum(one["units"] for one in samples.values()) == 1


async def test_a_request_counts_as_in_flight_while_it_goes_from_one_lane_to_the_other() -> None:
    async with two_lanes() as (_, gate, _):
        calls = asyncio.create_task(gate.post(headers={"x-want": "slow"}))
        await until_async(lambda: report(gate)["revisions"]["rev"]["inflight"] == 1)
        seen = set()
        while not calls.done():
            now = report(gate)
            seen.add((now["revisions"]["rev"]["inflight"], sum(now["revisions"]["rev"]["pods"].values())))
            await asyncio.sleep(0.002)
        assert (await calls).status == 200
        assert seen <= {(1, 1), (2, 2), (0, 0)}, "it is counted, and for a moment in both lanes"
        assert reasons(gate) == {"slow": 1}
        await until_async(lambda: report(gate)["revisions"]["rev"]["inflight"] == 0)
        assert gate.edge.lane is not None
        assert gate.edge.lane.in_flight.used == 0
        assert gate.edge.lane.native.held_bytes == 0


async def connect(gate: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))


def post(body: bytes = b'{"model":"chat"}', more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (PATH.encode(), more, len(body), body)


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
    return int(first.split(" ")[1]), headers, body


async def test_requests_in_pieces_and_pipelined_are_served_in_their_order() -> None:
    async with two_lanes() as (_, gate, _):
        reader, writer = await connect(gate)
        whole = post()
        for part in (whole[:-9], whole[-9:-4], whole[-4:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        await read_response(reader)
        writer.write(post(more=b"X-Request-Id: second\r\n") + post(more=b"X-Request-Id: third\r\n"))
        ids = [(await read_response(reader))[1]["x-request-id"] for _ in range(2)]
        assert ids == ["second", "third"]
        await drop(writer)
        await until_async(lambda: sum(gate.outcomes().values()) == 3)
        assert (fast(gate), reasons(gate)) == (1, {"pipelined": 1})


async def test_a_request_behind_one_that_runs_is_pythons_with_it() -> None:
    async with two_lanes() as (_, gate, server):
        reader, writer = await connect(gate)
        writer.write(post(more=b"X-Request-Id: first\r\nx-want: slow\r\n"))
        await until_async(lambda: len(server.seen) == 1)
        writer.write(post(more=b"X-Request-Id: second\r\n"))
        ids = [(await read_response(reader))[1]["x-request-id"] for _ in range(2)]
        assert (ids, len(server.seen)) == (["first", "second"], 2)
        await drop(writer)
        assert reasons(gate) == {"pipelined": 1}


async def test_a_connection_comes_back_when_its_next_request_may_be_plain() -> None:
    async with two_lanes() as (_, gate, _):
        reader, writer = await connect(gate)
        for _ in range(5):
            writer.write(post(more=b"x-want: 404\r\n"))
            assert (await read_response(reader))[0] == 404
            writer.write(post())
            assert (await read_response(reader))[0] == 200
        await until_async(lambda: gate.outcomes() == {"client_error": 5, "ok": 5})
        assert (fast(gate), reasons(gate)) == (5, {"status": 5})
        assert gate.metrics.registry.get_sample_value("slipway_gateway_connections") == 1
        # What is none of HTTP's subset keeps it in Python.
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_response(reader))[0] == 200
        writer.write(post())
        assert (await read_response(reader))[0] == 200
        assert (fast(gate), reasons(gate)) == (5, {"status": 5, "method": 1})
        await drop(writer)
        await until_async(lambda: gate.metrics.registry.get_sample_value("slipway_gateway_connections") == 0)


async def test_a_connection_comes_back_when_its_route_is_plain_again() -> None:
    async with two_lanes() as (_, gate, server):
        reader, writer = await connect(gate)
        plain = harness.table(5, ("rev", 100, [server.url]))
        route = replace(plain.routes["default/chat"], generation=4, feedback=True)
        gate.balancer.publish(replace(plain, routes={route.name: route}, models={"chat": route}))
        for generation, served in ((4, 0), (5, 0), (5, 1)):
            if generation == 5:
                gate.balancer.publish(plain)
            writer.write(post())
            assert (await read_response(reader))[0] == 200
            assert fast(gate) == served
        assert reasons(gate) == {"feedback": 1}
        await drop(writer)


@pytest.mark.parametrize(("cut", "reason"), [(20, "part_head"), (-5, "slow_body")])
async def test_a_request_that_stops_is_pythons(cut: int, reason: str) -> None:
    async with two_lanes() as (_, gate, _):
        reader, writer = await connect(gate)
        writer.write(post()[:cut])
        await until_async(lambda: reasons(gate) == {reason: 1})
        assert gate.edge.lane is not None
        assert gate.edge.lane.native.held_bytes == 0
        writer.write(post()[cut:])
        assert (await read_response(reader))[0] == 200
        await drop(writer)


async def test_a_body_that_ends_too_soon_counts_as_in_python() -> None:
    async with two_lanes() as lanes:
        for gate in lanes[:2]:
            _, writer = await connect(gate)
            writer.write(post()[:-5])
            await writer.drain()
            await asyncio.sleep(0.05)
            await drop(writer)
            await until_async(lambda gate=gate: gate.outcomes() == {"client_closed": 1})  # type: ignore[misc]


async def test_a_client_that_leaves_counts_alike_and_its_server_learns_of_it() -> None:
    async with two_lanes("new", "old") as (python, both, server):
        for n, gate in enumerate((python, both)):
            _, writer = await connect(gate)
            writer.write(post(more=b"x-want: slow\r\n"))
            await until_async(lambda n=n: len(server.seen) == n + 1)  # type: ignore[misc]
            await asyncio.sleep(0.1)
            await drop(writer)
            await until_async(lambda n=n: server.cancelled == n + 1)  # type: ignore[misc]
            await until_async(lambda gate=gate: gate.outcomes() == {"client_closed": 1})  # type: ignore[misc]
        assert fast(both) == 1
        samples = [report(gate)["samples"][0]["revisions"] for gate in (python, both)]
        totals = [
            {name: sum(one[name] for one in found.values()) for name in ("assigned", "requests", "units")}
            for found in samples
        ]
        late = [sum(sum(one["late"]["e2e"].values()) for one in found.values()) for found in samples]
        assert (totals[0], late[0]) == (totals[1], late[1]) == ({"assigned": 1, "requests": 0, "units": 0}, 1)


async def test_a_table_is_in_force_in_both_lanes_when_its_digest_is_reported() -> None:
    async with two_lanes() as (_, gate, server):
        reader, writer = await connect(gate)
        for n in range(40):
            gate.route((f"rev{n}", 100, [server.url]))
            assert gate.balancer.report()["default/chat"].generation == n + 2
            writer.write(post())
            assert (await read_response(reader))[1]["x-slipway-revision"] == f"rev{n}"
        gate.balancer.publish(None)
        writer.write(post())
        assert (await read_response(reader))[0] == 503
        await drop(writer)
        assert (fast(gate), reasons(gate)) == (40, {"table": 1})


async def test_a_tenant_closes_the_lane_to_requests_without_a_key_at_once() -> None:
    async with two_lanes() as (_, gate, _):
        reader, writer = await connect(gate)
        writer.write(post())
        assert (await read_response(reader))[0] == 200
        gate.known.publish([KnownTenant("t")])
        writer.write(post())
        assert (await read_response(reader))[0] == 401
        await drop(writer)
        assert (fast(gate), reasons(gate)) == (1, {"anonymous": 1})


async def test_a_drain_ends_connections_of_both_lanes_and_loses_no_request() -> None:
    async with two_lanes() as (_, gate, _):
        idle, running, python = [await connect(gate) for _ in range(3)]
        for reader, writer in (idle, running):
            writer.write(post())
            assert "connection" not in (await read_response(reader))[1]
        python[1].write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        await read_response(python[0])
        running[1].write(post(more=b"x-want: slow\r\n"))
        await until_async(lambda: report(gate)["revisions"]["rev"]["inflight"] == 1)
        gate.edge.draining = True
        await gate.runner.sites.copy().pop().stop()
        status, headers, _ = await read_response(running[0])
        assert (status, headers.get("connection")) == (200, "close")
        for reader, _ in (idle, running):
            async with asyncio.timeout(20):
                assert await reader.read() == b""
        for _, writer in (idle, running, python):
            await drop(writer)
        assert gate.outcomes() == {"ok": 4}


async def test_a_request_during_a_drain_announces_the_end_of_its_connection() -> None:
    async with two_lanes() as (_, gate, _):
        reader, writer = await connect(gate)
        writer.write(post())
        await read_response(reader)
        gate.edge.draining = True
        writer.write(post())
        assert (await read_response(reader))[1]["connection"] == "close"
        await drop(writer)
        assert reasons(gate) == {"draining": 1}


async def test_a_pod_that_dies_loses_and_doubles_no_request() -> None:
    """Each request that a client sent is answered once, and counted once, while one of two servers dies and returns."""
    async with two_lanes() as (_, gate, first):
        second = Upstream(answer)
        await second.start("127.0.0.1")
        gate.route(("rev", 100, [first.url, second.url]))
        done: list[int] = []
        stops = asyncio.Event()

        async def client() -> None:
            reader, writer = await connect(gate)
            while not stops.is_set():
                writer.write(post())
                done.append((await read_response(reader))[0])
            await drop(writer)

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(client())
            await asyncio.sleep(0.3)
            await second.stop()
            await asyncio.sleep(0.5)
            stops.set()
        assert set(done) == {200}
        await until_async(lambda: gate.outcomes() == {"ok": len(done)})
        now = report(gate)
        assert now["revisions"]["rev"]["requests"] == len(done)
        assert now["samples"][-1]["revisions"]["rev"]["requests"] == len(done)
        assert now["revisions"]["rev"]["inflight"] == 0
        assert fast(gate) > 8


async def test_a_server_that_cannot_be_reached_is_tried_once_and_another_one_answers() -> None:
    async with two_lanes() as lanes:
        gone = harness.refused_url()
        for gate in lanes[:2]:
            gate.route(("rev", 100, [gone, lanes[2].url]))
            for _ in range(12):
                assert (await gate.post()).status == 200
            await until_async(lambda gate=gate: gate.outcomes() == {"ok": 12})  # type: ignore[misc]
        python, both = (report(gate)["revisions"]["rev"] for gate in lanes[:2])
        assert both["requests"] == python["requests"] == 12
        # The fifth failure ejects it; which server an unloaded gateway prefers is by the id of each request.
        assert 1 <= reasons(lanes[1])["connect"] == both["failures"] <= 5
        assert python["failures"] <= 5


async def test_successes_in_the_fast_lane_keep_a_server_from_being_ejected() -> None:
    async with two_lanes(max_attempts=1, consecutive_5xx=3, consecutive_gateway_failure=3) as (_, gate, server):
        other = Upstream(answer)
        await other.start("127.0.0.1")
        try:
            gate.route(("rev", 100, [server.url, other.url]))
            for _ in range(6):
                for want in ("500", "500", "", "", "", ""):
                    await gate.post(headers={"x-want": want})
            assert not gate.balancer.ejection.urls()
            for _ in range(30):
                await gate.post(headers={"x-want": "500"})
            ejected = gate.balancer.ejection.urls()
            assert len(ejected) == 1
            before = {one.url: len(one.seen) for one in (server, other)}
            for _ in range(10):
                assert (await gate.post()).status == 200
            (url,) = ejected
            assert before[url] == next(len(one.seen) for one in (server, other) if one.url == url)
        finally:
            await other.stop()


async def test_a_cut_off_revision_leaves_its_route_to_python() -> None:
    async with two_lanes("new", "old", max_attempts=1) as (_, gate, _):
        assert gate.edge.lane is not None
        gate.edge.lane.native.pause("default/chat", True)
        assert (await gate.post()).status == 200
        gate.edge.lane.native.pause("default/chat", False)
        async with aiohttp.ClientSession() as client:
            assert (await client.post(f"{gate.url}{PATH}", json={"model": "chat"})).status == 200
        await until_async(lambda: fast(gate) == 1)
        assert reasons(gate) == {"failsafe": 1}


async def test_memory_of_the_lane_is_bounded_and_what_has_no_room_is_pythons() -> None:
    async with two_lanes(memory_budget_bytes=1 << 20, max_body_bytes=1 << 16) as (_, gate, _):
        body = json.dumps({"model": "chat", "prompt": "x" * 40_000}).encode()
        writers = []
        for _ in range(6):
            reader, writer = await connect(gate)
            writer.write(post(body)[:-1])
            writers.append((reader, writer))
        assert gate.edge.lane is not None
        await until_async(lambda: sum(reasons(gate).values()) == 6)
        assert reasons(gate).get("memory", 0) >= 4
        for _, writer in writers:
            await drop(writer)
        await until_async(lambda: sum(gate.outcomes().values()) == 6)
        assert gate.edge.lane.native.held_bytes == 0


async def test_places_in_flight_are_those_of_both_lanes() -> None:
    async with two_lanes(max_inflight=2, max_client_percentage=100) as (_, gate, server):
        calls = [asyncio.create_task(gate.post(headers={"x-want": "slow"})) for _ in range(2)]
        await until_async(lambda: len(server.seen) == 2)
        refused = await gate.post()
        assert refused.status == 429
        assert [(await one).status for one in calls] == [200, 200]
        await until_async(lambda: gate.outcomes() == {"ok": 2, "refused": 1})
        assert reasons(gate) == {"slow": 2, "in_flight": 1}


async def test_lines_of_the_access_log_are_alike() -> None:
    lines: list[dict[str, Any]] = []

    class Writer:
        def put(self, owner: str, line: bytes) -> None:
            lines.append(json.loads(line) | {"owner": owner})

        async def close(self) -> None:
            pass

    async with two_lanes() as lanes:
        for gate in lanes[:2]:
            gate.edge.access_log._writer, before = Writer(), gate.edge.access_log._writer
            sent = await gate.post(headers={"X-Request-Id": "mine 1", "Authorization": "Bearer slw_abc_secret"})
            await sent.read()
            await until_async(lambda gate=gate: len(lines) == 1 + (gate is lanes[1]))  # type: ignore[misc]
            gate.edge.access_log._writer = before
            before.put("", json.dumps(lines[-1]).encode())
        for line in lines:
            assert line.keys() >= {"ts", "duration_ms", "ttft_ms", "upstream"}
        assert fast(lanes[1]) == 1
        python, both = ({k: v for k, v in line.items() if k not in _CHANCE} for line in lines)
        assert python == both


async def test_a_sample_is_counted_again_and_a_difference_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)

    async with two_lanes("new", "old") as (_, gate, _):
        for n in range(10):
            headers = {"X-Session-Id": f"s{n}"} if n % 2 else {"Authorization": f"Bearer k{n}"}
            await (await gate.post({"model": "chat", "user": f"u{n}"}, headers=headers)).read()
        await (await gate.post({"rows": 1}, "/v2/models/chat/infer")).read()
        await until_async(lambda: recounts(gate) == {"same": 11})
        monkeypatch.setattr("slipway_gateway.fast_lane.recount.assign_revision", lambda route, key: "other")
        await (await gate.post()).read()
        await until_async(lambda: recounts(gate) == {"same": 11, "revision": 1})
        # From now on all requests are Python's, and the report says why.
        before = fast(gate)
        assert (await gate.post()).status == 200 and fast(gate) == before
        assert gate.balancer.report()["default/chat"].recounts_differ == ("revision",)


TOKENS = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"\xff", b"HTTP/1.0", b"HTTP/1.1", b"GET ", b"POST  "),
    *(
        b"Content-Length: 5\r\n",
        b"Content-Length: +16\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(b"Connection: close\r\n", b"Connection: upgrade\r\n", b"Host: y\r\n", b"Content-Type: a\r\n", b" folded\r\n"),
    *(
        b'"model":"chat",',
        b'"stream":true,',
        b'"user":"u",',
        b"\\u0063",
        b"[[[[",
        b"}",
        b'"',
        b"\xef\xbb\xbf",
        b"X-Slipway-Stream: a\r\n",
    ),
)


async def outcome_of(gate: Gateway, raw: bytes) -> tuple[int, bytes]:
    """The status and the body of the response to these bytes; 0 without one, or where nothing came for a while."""
    reader, writer = await connect(gate)
    try:
        writer.write(raw)
        async with asyncio.timeout(2.5):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
        return int(head.split(b" ")[1]), body
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        return 0, b""
    finally:
        await drop(writer)


@pytest.mark.parametrize("cases", [120, pytest.param(1_500, marks=pytest.mark.extended)])
async def test_what_a_stranger_sends_gets_the_same_response_in_both_lanes(cases: int) -> None:
    """There is no second opinion on malformed bytes: what the lane is not sure of is judged by Python."""
    random, vary = Random(7), varying(TOKENS)
    first = post(b'{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":3}', b"Accept: */*\r\n")
    async with two_lanes(hold_timeout_s=0.1) as (python, both, _):
        for begin in range(0, cases, 40):
            raws = [vary(first, random) for _ in range(min(40, cases - begin))]
            one_s, other_s = await asyncio.gather(
                *(asyncio.gather(*(outcome_of(gate, raw) for raw in raws)) for gate in (python, both))
            )
            for raw, one, other in zip(raws, one_s, other_s, strict=True):
                assert one == other, raw
        assert 0.02 * cases < fast(both) < 0.9 * cases
        await until_async(lambda: python.outcomes() == both.outcomes())


@pytest.mark.parametrize(("share", "recorded"), [(0.0, 0), (1.0, 1)])
async def test_servers_learn_alike_whether_a_request_is_recorded(share: float, recorded: int) -> None:
    from tests.gateway.test_tracing import traces

    seen = []
    for plane in ("off", "required"):
        made, kept = traces(share)
        async with upstream(answer) as server, harness.gateway(plane=plane, traces=made) as gate:
            gate.route(("rev", 100, [server.url]))
            for headers in ({}, {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, {"x-want": "404"}):
                await (await gate.post(headers=headers)).read()
            got = [request.headers["traceparent"] for request in server.seen]
            seen.append([one[3:35] == "a" * 32 for one in got])
            assert {one[-2:] for one in got} == {f"0{recorded}"}
            await until_async(lambda: sum(gate.outcomes().values()) == 3)
            names = sorted(span.name for span in kept.get_finished_spans())
            assert names == ["POST /v1/chat/completions"] * 3 * recorded + ["attempt"] * 3 * recorded, plane
            if plane == "required":
                assert fast(gate) == 1
    assert seen[0] == seen[1]


async def test_the_lane_chooses_no_more_requests_for_spans_than_so_many_a_second() -> None:
    from tests.gateway.test_tracing import traces

    made, kept = traces(1.0, most_per_s=1)
    async with upstream(answer) as server, harness.gateway(plane="required", traces=made) as gate:
        gate.route(("rev", 100, [server.url]))
        began_s = time.monotonic()
        for _ in range(20):
            await (await gate.post()).read()
        most = 2 + int(time.monotonic() - began_s)
        await until_async(lambda: sum(gate.outcomes().values()) == 20)
        recorded = [request.headers["traceparent"][-2:] for request in server.seen].count("01")
        assert 1 <= recorded <= most
        await until_async(lambda: len(kept.get_finished_spans()) == 2 * recorded)
        assert fast(gate) == 20
        whole, attempt = (
            next(one for one in kept.get_finished_spans() if one.kind is kind)
            for kind in (SpanKind.SERVER, SpanKind.CLIENT)
        )
        assert attempt.parent == whole.context and whole.parent is None
        assert whole.start_time <= attempt.start_time <= attempt.end_time <= whole.end_time
        assert any(f"-{attempt.context.span_id:016x}-01" in one.headers["traceparent"] for one in server.seen)
        await until_async(lambda: bool(gate.outcomes()))
        accepts = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with gate.client.get(gate.admin_url + "/metrics", headers=accepts) as page:
            assert f'# {{trace_id="{whole.context.trace_id:032x}"}}' in await page.text()


async def test_each_need_of_a_route_leaves_it_to_python() -> None:
    """What a route may have and the lane does not do: none of it is plain."""
    plain = harness.table(1, ("rev", 100, ["http://127.0.0.1:1"])).routes["default/chat"]
    assert why_python(plain) == ""
    needs = (
        {"asleep": True}, {"wake_s": 3}, {"mirror_routes": (MirrorRoute("m", "r", 10),)}, {"feedback": True},
        {"header_routes": (HeaderRoute("h", "r", ()),)}, {"predictions": True},
        {"inference_log": InferenceLogSample(10)}, {"slo": ServiceLevels()},
    )  # fmt: skip
    assert all(why_python(replace(plain, **need)) for need in needs)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"asleep": True}, "asleep"),
        ({"feedback": True}, "feedback"),
        ({"predictions": True}, "predictions"),
        ({"slo": ServiceLevels(latency_milliseconds=2000)}, "objectives"),
        ({"fallback": ("other",)}, "fallback"),
        ({"base": "default/base"}, "adapter"),
        ({"guards": (GuardSpec("words", ("Input",), failure_policy="Ignore"),)}, "guards"),
        ({"inference_log": InferenceLogSample(10)}, "inference_log"),
        ({"header_routes": (HeaderRoute("testers", "rev", (HeaderMatch("x-team", exact="qa"),)),)}, "header_routes"),
    ],
)
async def test_the_lane_knows_every_reason_why_a_route_is_pythons(changes: dict[str, Any], reason: str) -> None:
    async with two_lanes(hold_timeout_s=0.1) as (_, gate, server):
        table = harness.table(2, ("rev", 100, [server.url]))
        route = replace(table.routes["default/chat"], **changes)
        assert why_python(route, has_copies=False) == reason
        gate.balancer.publish(replace(table, routes={route.name: route}, models={"chat": route}))
        await gate.post()
        assert reasons(gate) == {reason: 1}


def affine(gate: Gateway, *servers: Upstream) -> None:
    """The route prefers endpoints that have seen the beginning of a prompt."""
    gate.generation += 1
    table = harness.table(gate.generation, ("rev", 100, [server.url for server in servers]))
    route = replace(table.routes["default/chat"], prefix_affinity=True)
    gate.balancer.publish(replace(table, routes={route.name: route}, models={"chat": route}))


def prompted(question: str, **fields: Any) -> dict[str, Any]:
    system = "You answer questions on the handbook of a shop. " * 60
    return {"model": "chat", "messages": [{"role": "system", "content": f"{system}{question}"}]} | fields


@contextlib.asynccontextmanager
async def three_endpoints() -> AsyncIterator[tuple[Gateway, Gateway, list[Upstream]]]:
    """A gateway in Python alone and one with the fast lane, of a route with prefix affinity."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(answer)) for _ in range(3)]
        gates = [await stack.enter_async_context(harness.gateway(plane=plane)) for plane in ("off", "required")]
        for gate in gates:
            affine(gate, *servers)
        yield gates[0], gates[1], servers


async def test_prompts_with_one_beginning_go_to_one_endpoint_from_both_lanes() -> None:
    """What came by Python is known to the fast lane, and the reverse: streams are Python's."""
    async with three_endpoints() as (_, gate, servers):
        for n in range(8):
            stream = n in (0, 3)
            want = {"x-want": "stream"} if stream else {}
            sent = await gate.post(prompted(f"{n}", stream=stream), headers={"X-Session-Id": f"s{n}", **want})
            await sent.read()
        assert sorted(len(server.seen) for server in servers) == [0, 0, 8]
        assert reasons(gate).pop("stream") == 2
        assert 0 < fast(gate) <= 6  # a busy machine may take longer than the lane waits


def prompts_counted(gate: Gateway) -> tuple[list[float | None], dict[str, int]]:
    """Bytes of prompts that were seen and not, and requests by stratum."""
    of_route = {"model": "chat", "revision": "rev"}
    value = gate.metrics.registry.get_sample_value
    seen = [value("slipway_gateway_prompt_bytes_total", of_route | {"seen": which}) for which in ("yes", "no")]
    (sample,) = report(gate)["samples"]
    return seen, sample["revisions"]["rev"]["slow"]["e2e"]


@pytest.mark.parametrize("want", ["", "slow", "long", "close"])
async def test_prompts_count_alike_in_both_lanes(want: str) -> None:
    """Also where Python goes on with a request: it counts a prompt once, and in the stratum in which it was sent."""
    async with three_endpoints() as (python, both, servers):
        made = []
        for gate in (python, both):
            for n in range(3):
                sent = await gate.post(prompted(f"{n}"), headers={"x-want": want if n else "", "X-Session-Id": f"s{n}"})
                await sent.read()
            await until_async(lambda gate=gate: sum(gate.outcomes().values()) == 3)  # type: ignore[misc]
            served = [len(server.seen) for server in servers]
            made.append((prompts_counted(gate), gate.balancer.prefixes.blocks, served))
            for server in servers:
                assert all(one.headers["Endpoint-Load-Metrics-Format"] == "TEXT" for one in server.seen)
                server.seen.clear()
        assert made[0] == made[1]
        assert made[1][0][1] == {"b<4k,whole": 1, "b<4k,whole,cached": 2}
        policy = both.balancer.prefixes.picker(PromptBlocks((), 0), LeastLoad())
        assert isinstance(policy, PrefixAffinity)
        assert policy.waiting == {}


async def test_choices_by_prompts_are_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and endpoint of each request; an endpoint that Python would not have chosen is found."""
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)
    async with three_endpoints() as (_, gate, _):
        for n in range(20):
            headers = {"Authorization": f"Bearer sk-{n % 2}"} if n % 3 else {"X-Session-Id": f"s{n}"}
            fields: dict[str, Any] = {"cache_salt": f"{n % 2}"} if n % 4 else {}
            await (await gate.post(prompted(f"{n}", **fields), headers=headers)).read()
        await until_async(lambda: recounts(gate) == {"same": fast(gate)} and fast(gate) > 0)
        monkeypatch.setattr("slipway_gateway.balancing.endpoint_picker.PrefixAffinity.pick", lambda *_: "another")
        before = fast(gate)
        while fast(gate) == before:
            await (await gate.post(prompted("last"))).read()
        await until_async(lambda: recounts(gate).get("endpoint") == 1)


async def test_an_endpoint_with_prompts_ahead_is_passed_over_in_both_lanes() -> None:
    """By what the lane itself has sent, and by what pods report with responses."""
    release = asyncio.Event()

    async def loaded(request: web.Request) -> web.StreamResponse:
        want = request.headers.get("x-want")
        if want == "hold":
            await release.wait()
        tokens = 9000 if want == "report" else 0
        headers = {"Endpoint-Load-Metrics": f"TEXT named_metrics.waiting_prompt_tokens={tokens}"}
        return web.json_response(ANSWER, headers=headers)

    async with upstream(loaded) as a, upstream(loaded) as b, harness.gateway(plane="required") as gate:
        affine(gate, a, b)
        await gate.post(prompted("first"))
        known, other = (a, b) if a.seen else (b, a)
        holding = asyncio.create_task(gate.post(prompted("second" * 2000), headers={"x-want": "hold"}))
        await until_async(lambda: len(known.seen) == 2)
        # Its prompt waits there, and costs more than to compute the beginning again.
        await gate.post(prompted("third"))
        assert len(other.seen) == 1
        release.set()
        assert (await holding).status == 200
        affine(gate, known)
        answered = await gate.post(prompted("fourth"), headers={"x-want": "report"})
        assert "Endpoint-Load-Metrics" not in answered.headers
        assert gate.edge.lane is not None
        _, waiting = gate.edge.lane.prefixes.known(b"", 0.0)
        assert waiting == {known.url: 36_000}


async def test_a_route_with_a_cache_is_pythons_where_the_lane_has_no_copies() -> None:
    async with two_lanes(cache_max_bytes=0) as (_, gate, server):
        table = harness.table(2, ("rev", 100, [server.url]))
        route = replace(table.routes["default/chat"], cache=ResponseCache(60))
        gate.balancer.publish(replace(table, routes={route.name: route}, models={"chat": route}))
        await gate.post()
        assert reasons(gate) == {"cache": 1}
