"""No client takes the places of all: requests in flight, bodies that are awaited, calls of gRPC, requests that wait."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import web

from slipway_contracts.route_table import Backend, MirrorRoute
from slipway_gateway.http2 import frames
from slipway_gateway.limits.budget import unlimited
from slipway_gateway.mirror.room import MirrorMemory
from slipway_gateway.routing.table import RevisionEndpoints, Route, RouteTable, build
from testkit.until import until_async

from .grpc_gateway import INFER, grpc_gateway, infer
from .grpc_gateway import echo as echo_message
from .harness import Gateway, drop, echo, gateway, upstream
from .tenants import PEPPER, bearer, make_key, tenant
from .test_http2 import HEAD, Client, connected

pytestmark = pytest.mark.attack_class(15)

ATTACKER, NEIGHBOUR = "127.0.0.2", "127.0.0.3"
BODY = json.dumps({"model": "chat"}).encode()


# -- HTTP/1.1


def head(headers: dict[str, str], length: int, path: str = "/v1/chat/completions") -> bytes:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    text = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *lines])
    return text.encode() + b"\r\n\r\n"


@contextlib.asynccontextmanager
async def connections(gate: Gateway, many: int, address: str, sent: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections of one address, on each of which the same bytes were sent."""
    port = int(gate.url.rpartition(":")[2])
    opened = [await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)) for _ in range(many)]
    for _, writer in opened:
        writer.write(sent)
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            await drop(writer)


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(30):
        return int((await reader.readline()).split()[1])


async def refusal_of(opened: list[asyncio.StreamReader]) -> bytes:
    """The answer on one of the connections that were refused."""
    # A request is counted before its response is read here.
    await until_async(lambda: any(one._buffer for one in opened))  # type: ignore[attr-defined]
    refused = next(one for one in opened if one._buffer)  # type: ignore[attr-defined]
    async with asyncio.timeout(30):
        return await refused.readuntil(b"}}")


async def ask(gate: Gateway, address: str, headers: dict[str, str] | None = None, *, late: bool = False) -> int:
    """The status of the answer to a request of an address. `late`: its body comes after its head."""
    async with connections(gate, 1, address, head(headers or {}, len(BODY)) + (b"" if late else BODY)) as opened:
        if late:
            await asyncio.sleep(0.05)
            transport = opened[0]._transport  # type: ignore[attr-defined]
            transport.write(BODY)
        return await status_of(opened[0])


@pytest.mark.finding("F2")
async def test_bodies_that_are_awaited_hold_no_place_of_a_request() -> None:
    async with upstream(echo) as server, gateway(max_inflight=16) as gate:
        gate.route(("r1", 100, [server.url]))
        async with connections(gate, 40, ATTACKER, head({}, 100) + b"{") as opened:
            # Half of the places for bodies is theirs. Each further one is refused, and learns whose limit it met.
            await until_async(lambda: gate.outcomes() == {"refused": 32})
            for late in (False, True):
                assert [await ask(gate, NEIGHBOUR, late=late) for _ in range(5)] == [200] * 5
            assert await ask(gate, ATTACKER) == 200, "its own requests that have arrived need no body"
            answer = await refusal_of(opened)
            assert b" 429 " in answer and b"Retry-After: 1" in answer and b"This client is at its share" in answer
        await until_async(lambda: gate.edge.running == 0)
        assert await ask(gate, ATTACKER, late=True) == 200


@pytest.mark.finding("F2")
async def test_a_tenant_that_sends_one_byte_of_each_body_leaves_others_their_places() -> None:
    keys = [make_key("aaaaaa"), make_key("bbbbbb")]
    tenants = [tenant("attacker", keys[0]), tenant("neighbour", keys[1])]
    async with upstream(echo) as server, gateway(tenants, PEPPER, max_inflight=16) as gate:
        gate.route(("r1", 100, [server.url]))
        async with connections(gate, 40, ATTACKER, head(bearer(keys[0]), 100) + b"{"):
            await until_async(lambda: gate.outcomes() == {"refused": 32})
            for late in (False, True):
                answers = [await ask(gate, ATTACKER, bearer(keys[1]), late=late) for _ in range(5)]
                assert answers == [200] * 5, "a tenant is known by its key, whatever its address"
            # In the fast lane a body may take a second, and has none of these places meanwhile.
            expected = 200 if gate.edge.lane else 429
            assert await ask(gate, NEIGHBOUR, bearer(keys[0]), late=True) == expected
        await until_async(lambda: gate.edge.running == 0)
        assert gate.outcomes()["ok"] == (11 if gate.edge.lane else 10)


@pytest.mark.finding("F2")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/feedback"])
async def test_a_tenants_concurrency_bounds_its_awaited_bodies_too(path: str) -> None:
    keys = [make_key("aaaaaa"), make_key("bbbbbb")]
    limited = tenant("limited", keys[0])
    limited = replace(limited, policy=replace(limited.policy, limits=replace(limited.policy.limits, concurrency=1)))
    async with upstream(echo) as server, gateway([limited, tenant("neighbour", keys[1])], PEPPER) as gate:
        gate.route(("r1", 100, [server.url]))
        async with connections(gate, 10, ATTACKER, head(bearer(keys[0]), 100, path) + b"{") as opened:
            await until_async(lambda: gate.outcomes() == {"refused": 9})
            answer = await refusal_of(opened)
            assert b" 429 " in answer and b"rate_limit" in answer and b"1 concurrent requests" in answer
            assert await ask(gate, ATTACKER, bearer(keys[1]), late=True) == 200
            assert await ask(gate, ATTACKER, bearer(keys[0])) == 200, "an awaited body is not a running request"
        await until_async(lambda: gate.edge.running == 0)
        assert await ask(gate, ATTACKER, bearer(keys[0]), late=True) == 200
        assert gate.admission.report(limited).refused == {"concurrency": 9}


@pytest.mark.finding("F2")
async def test_requests_in_flight_have_a_share_for_each_client() -> None:
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        await going_on.wait()
        return await echo(request)

    async with upstream(wait) as server, gateway(max_inflight=8) as gate:
        gate.route(("r1", 100, [server.url]))
        async with connections(gate, 10, ATTACKER, head({}, len(BODY)) + BODY) as opened:
            await until_async(lambda: gate.outcomes() == {"refused": 6} and len(server.seen) == 4)
            answer = await refusal_of(opened)
            assert b"Retry-After: 1" in answer and b"This client is at its share" in answer
            neighbours = [asyncio.create_task(ask(gate, f"127.0.0.{n}")) for n in (3, 3, 4)]
            await until_async(lambda: len(server.seen) == 7)
            going_on.set()
            assert await asyncio.gather(*neighbours) == [200] * 3
        await until_async(lambda: gate.edge.running == 0)
        assert await ask(gate, ATTACKER) == 200


# -- gRPC


@contextlib.asynccontextmanager
async def heads_alone(port: int, connections: int, each: int) -> AsyncIterator[list[Client]]:
    """Connections of one address, each with heads of calls that have no message."""
    clients: list[Client] = []
    try:
        for _ in range(connections):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ATTACKER, 0))
            client = Client(reader, writer)
            clients.append(client)
            client.send(frames.PREFACE, frames.settings(()))
            client.send(*[client.head(1 + 2 * n) for n in range(each)])
            await writer.drain()
        yield clients
    finally:
        for client in clients:
            await drop(client.writer)


@pytest.mark.finding("F2")
@pytest.mark.timeout(300)  # 5,100 calls, on a busy machine too
async def test_heads_of_grpc_calls_without_a_message_hold_no_place_of_a_request() -> None:
    async with upstream(echo_message) as server, grpc_gateway() as made:
        gate = made.gate
        gate.route(("r1", 100, [server.url]))
        async with heads_alone(made.server.port, 5, 1020) as clients:
            await until_async(lambda: gate.outcomes().get("refused", 0) + made.server.running == 5100, within_s=200)
            refused = gate.outcomes()["refused"]
            assert refused >= 5100 - 4096 // 2 - 1, "half of the places of awaited messages is theirs"
            assert [await ask(gate, NEIGHBOUR, late=late) for late in (False, True)] == [200, 200]
            assert await made.call("ModelInfer", infer()) == infer()
            assert gate.outcomes() == {"refused": refused, "ok": 3}
            assert clients
        await until_async(lambda: not made.server.running and not gate.edge.running)
        assert gate.budget.used_bytes == 0
        assert await made.call("ModelInfer", infer()) == infer()


@pytest.mark.finding("F2")
async def test_streams_of_one_address_over_many_connections_are_bounded_together() -> None:
    async with upstream(echo_message) as server, grpc_gateway(max_connections=40, max_inflight=4096) as made:
        made.gate.route(("r1", 100, [server.url]))
        async with heads_alone(made.server.port, 3, 30) as clients:
            # Streams may be as many as connections: an address has half of them, whatever it opens.
            await until_async(lambda: made.gate.outcomes().get("refused") == 70)
            answer = await clients[2].ended(59)
            assert b"grpc-status\x018" in answer[-1].payload and b"share" in answer[-1].payload
            assert await made.call("ModelInfer", infer()) == infer()


async def test_a_call_whose_message_is_late_is_served() -> None:
    async with upstream(echo_message) as server, grpc_gateway() as made, connected(made) as client:
        made.gate.route(("r1", 100, [server.url]))
        client.send(client.head(1, HEAD))
        await until_async(lambda: made.server.running == 1)
        client.send(frames.frame(frames.DATA, frames.END_STREAM, 1, b"\0" + len(infer()).to_bytes(4) + infer()))
        assert b"grpc-status\x010" in (await client.ended(1))[-1].payload
        assert INFER in dict(HEAD)[":path"]


# -- requests that wait for an endpoint


def sleeping(*routes: tuple[str, float], urls: dict[str, str] | None = None) -> RouteTable:
    """Routes by name with the seconds that their requests wait; those in `urls` are ready, the others never are."""
    ready = urls or {}
    made = [
        Route(name, name, name.replace("/", "-"), "2026-01-01T00:00:00Z", 1 + len(ready), "salt",
              (Backend("r1", 100),), hold_s=hold_s, asleep=name not in ready)
        for name, hold_s in routes
    ]  # fmt: skip
    return build(made, [RevisionEndpoints(name, "r1", (url,)) for name, url in ready.items()])


@pytest.mark.finding("F7")
async def test_requests_to_one_model_that_is_never_ready_leave_places_to_others() -> None:
    models = (("evil/a", 60.0), ("evil/b", 60.0), ("team/chat", 60.0))
    async with upstream(echo) as server, gateway(max_held=24) as gate:
        gate.balancer.publish(sleeping(*models))
        waiting = [asyncio.create_task(gate.post({"model": "evil-a"})) for _ in range(24)]
        await until_async(lambda: gate.held() + sum(one.done() for one in waiting) == 24)
        assert gate.held() == 12 and gate.outcomes() == {"no_endpoint": 12}
        waiting += [asyncio.create_task(gate.post({"model": "evil-b"})) for _ in range(24)]
        await until_async(lambda: gate.held() + sum(one.done() for one in waiting) == 48)
        assert gate.held() == 16, "all models of a namespace have two thirds of the places, and one has half"
        honest = asyncio.create_task(gate.post({"model": "team-chat"}))
        await until_async(lambda: gate.held() == 17)
        gate.balancer.publish(sleeping(*models, urls={"team/chat": server.url}))
        async with await honest as answer:
            assert answer.status == 200
        assert gate.held() == 16
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until_async(lambda: gate.edge.running == 0)
        assert gate.held() == 0


@pytest.mark.finding("F7")
async def test_one_client_cannot_take_all_places_by_models_of_many_namespaces() -> None:
    models = [(f"n{n}/m", 60.0) for n in range(12)]
    async with gateway(max_held=24) as gate:
        gate.balancer.publish(sleeping(*models))
        bodies = [json.dumps({"model": f"n{n}-m"}).encode() for n in range(12)]
        async with contextlib.AsyncExitStack() as stack:
            for body in bodies:
                await stack.enter_async_context(connections(gate, 2, ATTACKER, head({}, len(body)) + body))
            await until_async(lambda: gate.held() + gate.outcomes().get("no_endpoint", 0) == 24)
            assert gate.held() == 18
            await stack.enter_async_context(connections(gate, 1, NEIGHBOUR, head({}, len(bodies[0])) + bodies[0]))
            await until_async(lambda: gate.held() == 19)


# -- mirrored requests


@pytest.mark.finding("F7")
async def test_copies_for_a_slow_canary_of_one_namespace_leave_turns_to_others() -> None:
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await echo(request)

    async with upstream(echo) as pod, upstream(slow) as stuck, upstream(echo) as canary, \
            gateway(mirror_max_inflight=4, mirror_max_queue=4) as gate:  # fmt: skip
        routes, endpoints = [], []
        for name, url in (("evil/m", stuck.url), ("team/m", canary.url)):
            mirrors = (MirrorRoute("copy", "c", 100),)
            backends = (Backend("c", 0), Backend("s", 100))
            routes.append(Route(name, name, name.replace("/", "-"), "2026-01-01T00:00:00Z", 1, "salt", backends,
                                mirror_routes=mirrors))  # fmt: skip
            endpoints += [RevisionEndpoints(name, "c", (url,)), RevisionEndpoints(name, "s", (pod.url,))]
        gate.balancer.publish(build(routes, endpoints))
        for _ in range(12):
            (await gate.post({"model": "evil-m"})).close()
        await until_async(lambda: len(stuck.seen) == 3)
        (await gate.post({"model": "team-m"})).close()
        await until_async(lambda: canary.finished == 1)
        assert len(stuck.seen) == 3
        release.set()


def test_bytes_of_copies_have_a_share_for_each_namespace() -> None:
    memory = MirrorMemory(unlimited(), 1000)
    while memory.has_room("evil/a", 10):
        memory.force("evil/a", 10)
    assert not memory.has_room("evil/b", 10) and memory.has_room("team/m", 100)
    memory.shrink("evil/a", 500)
    assert memory.has_room("evil/b", 10)
