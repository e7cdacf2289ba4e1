"""Streams of tokens by WebSocket, with the client `websockets`: each request is one of the API, whatever comes."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from websockets.exceptions import ConnectionClosed, InvalidStatus

from slipway_gateway.quotas.policy import Policy
from slipway_gateway.quotas.tenant import Limits
from slipway_plane import NATIVE
from testkit.until import until_async

from .harness import Gateway, Upstream, gateway, upstream
from .tenants import PEPPER, bearer, make_key, tenant
from .test_mirror import mirroring
from .token_streams import (
    GENERATE,
    closed,
    code_of,
    event,
    frame,
    generating,
    raw_socket,
    receive,
    send,
    socket_of,
    stream_requests,
    text_of,
    until_last,
)

A, B = make_key("aaaaaa"), make_key("bbbbbb")


def routed(gate: Gateway, *servers: Upstream) -> None:
    gate.route(("v1", 100, [server.url for server in servers]))


async def close_code(socket: Any) -> tuple[int, str]:
    """How the gateway closes the connection; messages before that are dropped."""
    async with asyncio.timeout(20):
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()
    return socket.close_code, socket.close_reason


# -- requests


async def test_a_stream_is_one_message_for_each_event_and_one_request_of_the_api() -> None:
    async with upstream(generating("In", " the", " \u00e9")) as server, gateway() as gate:
        routed(gate, server)
        async with socket_of(gate) as socket:
            assert socket.subprotocol == "slipway.v1"
            await send(socket, GENERATE | {"id": "r-1", "max_tokens": 3})
            assert await until_last(socket) == [
                {"type": "token", "id": "r-1", "token": "In"},
                {"type": "token", "id": "r-1", "token": " the"},
                {"type": "token", "id": "r-1", "token": " \u00e9"},
                {"type": "done", "id": "r-1", "usage": {"input_tokens": 3, "output_tokens": 3},
                 "finish_reason": "stop"},
            ]  # fmt: skip
            await send(socket, {"type": "generate", **GENERATE, "stream": True})
            server_made = await until_last(socket)
            assert len({message["id"] for message in server_made}) == 1 and len(server_made[0]["id"]) == 32
        [first, _] = server.seen
        assert (first.method, first.path, first.headers["X-Request-Id"]) == ("POST", "/v1/generate", "r-1")
        assert json.loads(server.bodies[0]) == GENERATE | {"max_tokens": 3, "stream": True}
        assert not [name for name in first.headers if name.lower().startswith(("sec-", "upgrade"))]
        assert gate.outcomes() == {"ok": 2} and stream_requests(gate) == {"ok": 2}
        await until_async(lambda: closed(gate) == {"client": 1})


async def test_requests_of_a_connection_run_beside_one_another_and_each_can_be_cancelled() -> None:
    opened = asyncio.Event()
    async with (
        upstream(generating("a", "b", gate=opened)) as server,
        gateway(websocket_max_requests=3) as gate,
        socket_of(gate) as socket,
    ):
        routed(gate, server)
        for number in range(3):
            await send(socket, GENERATE | {"id": f"r{number}"})
        assert {(await receive(socket))["id"] for _ in range(3)} == {"r0", "r1", "r2"}
        await send(socket, GENERATE | {"id": "r1"})
        assert code_of(await receive(socket)) == (400, "duplicate_id")
        await send(socket, GENERATE | {"id": "r3"})
        assert code_of(await receive(socket)) == (429, "overloaded")
        await send(socket, {"type": "cancel", "id": "unknown"})
        await send(socket, {"type": "cancel", "id": "r1"})
        cancelled = await receive(socket)
        assert (cancelled["id"], code_of(cancelled)) == ("r1", (499, "cancelled"))
        await until_async(lambda: server.cancelled == 1)
        opened.set()
        rest = [await receive(socket) for _ in range(4)]
        assert sorted((one["id"], one["type"]) for one in rest) == [
            ("r0", "done"), ("r0", "token"), ("r2", "done"), ("r2", "token"),
        ]  # fmt: skip
        await until_async(lambda: gate.outcomes() == {"ok": 2, "client_closed": 1, "client_error": 1, "refused": 1})
        assert stream_requests(gate) == gate.outcomes()


async def test_a_client_that_leaves_cancels_all_that_ran() -> None:
    async with upstream(generating("a", "b", gate=asyncio.Event())) as server, gateway() as gate:
        routed(gate, server)
        async with socket_of(gate) as socket:
            for _ in range(5):
                await send(socket, GENERATE)
                await receive(socket)
            socket.transport.abort()
        await until_async(lambda: server.cancelled == 5)
        await until_async(lambda: gate.outcomes() == {"client_closed": 5})
        assert gate.budget.used_bytes < 64 << 10, "what is left is remembered for clients that come back"


async def test_errors_of_servers_and_of_the_gateway_are_messages_with_their_status() -> None:
    async def refuse(request: web.Request) -> web.Response:
        error = {"message": "no", "type": "invalid_request_error", "param": "top_k", "code": 7}
        return web.json_response({"error": error}, status=422, headers={"Retry-After": "2"})

    async with upstream(refuse) as server, gateway() as gate, socket_of(gate) as socket:
        routed(gate, server)
        await send(socket, GENERATE | {"id": "a"})
        assert await receive(socket) == {
            "type": "error", "id": "a", "status": 422, "retry_after_ms": 2000,
            "error": {"message": "no", "type": "invalid_request_error", "param": "top_k", "code": "7"},
        }  # fmt: skip
        await send(socket, GENERATE | {"id": "b", "model": "absent"})
        assert code_of(await receive(socket)) == (404, "model_not_found")


BROKEN = (
    b"data: [1]\n\n", b"data: {\n\n", b'data: {"type": "token", "token": 7}\n\n', b'data: {"type": "tok\xff"}\n\n',
    b'data: {"type": "done", "usage": {"input_tokens": -1}}\n\n', b"data: " + b"x" * (300 << 10),
    b'data: {"type": "token", "token": "a"}\n\n', b"",
)  # fmt: skip


async def test_what_a_server_sends_in_place_of_events_ends_with_an_error_of_the_server() -> None:
    bodies = list(BROKEN)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=bodies.pop(0), content_type="text/event-stream")

    async with upstream(answer) as server, gateway(consecutive_5xx=0) as gate, socket_of(gate) as socket:
        routed(gate, server)
        for body in BROKEN:
            await send(socket, GENERATE)
            assert code_of((await until_last(socket))[-1]) == (502, "invalid_response"), body[:40]
        assert stream_requests(gate) == {"upstream_error": len(BROKEN)}


async def test_events_of_other_types_and_comments_are_left_out_and_nothing_follows_the_last_event() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        parts = [b": c\n\n", event({"type": "new"}), b'data:{"type":"token",\r\ndata:"token":"a"}\r\n\r\n']
        done = {"type": "done", "finish_reason": None}
        return web.Response(body=b"".join([*parts, event(done), event(done)]), content_type="text/event-stream")

    async with upstream(answer) as server, gateway() as gate, socket_of(gate) as socket:
        routed(gate, server)
        await send(socket, GENERATE)
        assert [message["type"] for message in await until_last(socket)] == ["token", "done"]
        await send(socket, GENERATE | {"id": "next"})
        assert (await receive(socket))["id"] == "next"


async def test_a_server_that_dies_in_a_stream_ends_it_with_an_error_and_the_connection_stays() -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(event({"type": "token", "token": "a"}))
        assert request.transport
        request.transport.abort()
        return out

    async with upstream(die) as server, gateway() as gate, socket_of(gate) as socket:
        routed(gate, server)
        for _ in range(2):
            await send(socket, GENERATE)
            last = (await until_last(socket))[-1]
            assert last["type"] == "error" and last["error"]["code"] == "upstream_died"
        assert stream_requests(gate) == {"upstream_error": 2}


async def test_limits_the_judge_and_mirrors_take_each_message_as_a_request() -> None:
    limited = replace(tenant("team-a", A), policy=Policy(Limits(requests_per_minute=2)))
    async with (
        upstream(generating("a")) as stable,
        upstream(generating("b")) as canary,
        gateway([limited], PEPPER) as gate,
        socket_of(gate, key=A) as socket,
    ):
        gate.balancer.publish(mirroring([canary.url], [stable.url]))
        for _ in range(2):
            await send(socket, GENERATE)
            assert text_of(await until_last(socket)) == "a"
        await send(socket, GENERATE)
        refused_ = await receive(socket)
        assert code_of(refused_) == (429, "rate_limit_exceeded") and refused_["retry_after_ms"] > 0
        await until_async(lambda: len(canary.seen) == 2)
        assert {request.headers["X-Slipway-Shadow"] for request in canary.seen} == {"1"}
        [report] = gate.balancer.report().values()
        [sample] = report.samples
        assert sum(one.requests for one in sample.revisions.values()) == 2, "first attempts, for the judge"
        assert gate.outcomes() == stream_requests(gate) == {"ok": 2, "refused": 1}


# -- who may connect


async def refused(gate: Gateway, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as error:
        async with socket_of(gate, **options):
            pass
    answer = error.value.response
    return answer.status_code, json.loads(answer.body or b"{}")["error"]["code"]


async def test_a_key_comes_in_a_header_or_in_a_subprotocol_and_goes_no_further(tmp_path: Path) -> None:
    lines = tmp_path / "access.log"
    async with (
        upstream(generating("a")) as server,
        gateway([tenant("team-a", A)], PEPPER, access_log=str(lines)) as gate,
    ):
        routed(gate, server)
        assert await refused(gate) == (401, "missing_api_key")
        assert await refused(gate, key=B) == (401, "invalid_api_key")
        assert await refused(gate, headers={"Authorization": "Bearer slw_x"}) == (401, "invalid_api_key")
        for options in ({"key": A}, {"headers": bearer(A)}):
            async with socket_of(gate, **options) as socket:
                assert socket.subprotocol == "slipway.v1"
                await send(socket, GENERATE)
                assert text_of(await until_last(socket)) == "a"
        assert A not in str([dict(request.headers) for request in server.seen])
        await gate.edge.access_log.close()
        logged = [json.loads(line) for line in lines.read_text().splitlines()]
        assert [(line["path"], line["status"], line.get("tenant", "")) for line in logged] == [
            ("/v1/stream", 401, ""), ("/v1/stream", 401, ""), ("/v1/stream", 401, ""),
            ("/v1/stream", 200, "team-a"), ("/v1/stream", 200, "team-a"),
        ]  # fmt: skip
        assert A not in lines.read_text()


async def test_a_key_that_is_taken_away_ends_an_open_connection_at_its_next_message() -> None:
    async with (
        upstream(generating("a")) as server,
        gateway([tenant("team-a", A)], PEPPER) as gate,
        socket_of(gate, key=A) as socket,
    ):
        routed(gate, server)
        await send(socket, GENERATE)
        await until_last(socket)
        gate.known.publish([tenant("team-b", B)])
        await send(socket, GENERATE)
        assert code_of(await receive(socket)) == (401, "invalid_api_key")
        assert await close_code(socket) == (1008, "credentials")


async def test_pages_of_other_origins_connect_only_where_they_are_allowed() -> None:
    async with gateway(allowed_origins=("https://app.example.com",)) as gate:
        own = gate.url
        for origin in ("https://evil.example.com", "null", "https://app.example.com.evil.com", "http://[", ""):
            assert await refused(gate, headers={"Origin": origin}) == (403, "origin_not_allowed")
        for origin in ("https://app.example.com", own):
            async with socket_of(gate, headers={"Origin": origin}):
                pass
        assert stream_requests(gate) == {"forbidden": 5}
    async with gateway(allowed_origins=("*",)) as gate, socket_of(gate, headers={"Origin": "null"}):
        pass


HANDSHAKES: tuple[tuple[dict[str, str], tuple[int, str]], ...] = (
    ({"Upgrade": "h2c"}, (426, "upgrade_required")),
    ({"Sec-WebSocket-Version": "12"}, (400, "invalid_handshake")),
    ({"Sec-WebSocket-Key": "c2hvcnQ="}, (400, "invalid_handshake")),
    ({"Sec-WebSocket-Key": "\u00e9"}, (400, "invalid_handshake")),
    ({"Connection": "keep-alive"}, (400, "invalid_handshake")),
    ({"Sec-WebSocket-Protocol": f"bearer.{A}"}, (400, "invalid_handshake")),
)


async def test_what_is_no_handshake_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    head = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    async with gateway() as gate:
        for changes, expected in HANDSHAKES:
            async with gate.client.get(gate.url + "/v1/stream", headers=head | changes) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == expected
        async with gate.client.post(gate.url + "/v1/stream", json=GENERATE) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    assert A not in caplog.text


async def test_without_websocket_the_path_is_unknown() -> None:
    async with gateway(websocket_max_requests=0) as gate:
        assert await refused(gate) == (404, "unknown_url")


# -- messages that are none


BAD: tuple[tuple[str, str | None], ...] = (
    ("", None), ("{", None), ("[]", None), ('"x"', None), ("{}", "model"), ("[" * 100_000, None),
    ('{"type":"nothing"}', "type"), ('{"type":7}', "type"), ('{"id":"a b"}', "id"), ('{"id":["x"]}', "id"),
    (json.dumps({"id": "x" * 129}), "id"), ('{"type":"cancel"}', "id"), ('{"type":"resume","id":"a"}', "from"),
    ('{"type":"resume","id":"a","from":-1}', "from"), ('{"type":"resume","id":"a","from":1e3}', "from"),
    ('{"type":"resume","id":"a","from":0,"model":"m"}', "model"), ('{"type":"cancel","id":"a","x":1}', "x"),
    ('{"model":"chat","stream":false}', "stream"), ('{"model":"chat","resumable":1}', "resumable"),
    ('{"model":"chat","last_event_id":7}', "last_event_id"), (json.dumps([[]] * 70_000), None),
)  # fmt: skip


async def test_a_message_that_is_none_is_an_error_that_names_the_field() -> None:
    async with gateway() as gate, socket_of(gate) as socket:
        gate.route(("v1", 100, []))
        for message, param in BAD:
            await socket.send(message)
            answer = await receive(socket)
            assert (answer["type"], answer["status"], answer["error"]["param"]) == ("error", 400, param), message[:80]
        assert gate.outcomes() == stream_requests(gate) == {"client_error": len(BAD)}
        await send(socket, GENERATE | {"id": "next"})
        assert code_of(await receive(socket)) == (503, "model_not_ready")


async def test_messages_that_are_too_long_binary_or_no_text_close_the_connection() -> None:
    async with gateway(websocket_max_message_bytes=4096) as gate:
        async with socket_of(gate) as socket:
            await socket.send("x" * 5000)
            assert (await close_code(socket))[0] == 1009
        async with socket_of(gate) as socket:
            await socket.send(["x" * 50] * 100)  # in fragments
            assert (await close_code(socket))[0] == 1009
        async with socket_of(gate) as socket:
            await socket.send(b"{}")
            assert await close_code(socket) == (1003, "binary")
        async with socket_of(gate) as socket:
            await socket.send(b"\xff\xfe", text=True)
            assert (await close_code(socket))[0] == 1007
        await until_async(lambda: closed(gate) == {"too_large": 2, "binary": 1, "invalid_text": 1})


async def test_a_message_in_fragments_with_pings_among_them_is_one_message() -> None:
    async with upstream(generating("a")) as server, gateway() as gate, socket_of(gate) as socket:
        routed(gate, server)
        text = json.dumps(GENERATE | {"id": "r"})

        async def parts() -> Any:
            for char in text:
                yield char
                if char == "{":
                    await (await socket.ping(b"among"))

        await socket.send(parts())
        assert text_of(await until_last(socket)) == "a"


async def test_a_flood_of_messages_closes_its_own_connection_and_disturbs_no_other() -> None:
    async with (
        upstream(generating(*"abc")) as server,
        gateway(websocket_messages_per_second=20) as gate,
        socket_of(gate) as flooding,
        socket_of(gate) as other,
    ):
        routed(gate, server)
        with pytest.raises(ConnectionClosed):
            for _ in range(60):
                await flooding.send('{"type":"cancel","id":"a"}')
            await close_code(flooding)
            raise flooding.protocol.close_exc
        assert (flooding.close_code, flooding.close_reason) == (1008, "rate")
        await send(other, GENERATE)
        assert text_of(await until_last(other)) == "abc"
        async with socket_of(gate) as pinging:
            with pytest.raises(ConnectionClosed):
                for _ in range(60):
                    await pinging.ping()
                await close_code(pinging)
                raise pinging.protocol.close_exc
            assert pinging.close_reason == "rate"


# -- clients that do not read, or are gone


def pouring(sent: list[int]) -> Any:
    async def pour(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for _ in range(100_000):
            part = event({"type": "token", "token": "x" * 1000})
            await out.write(part)
            sent.append(len(part))
        return out

    return pour


async def test_a_client_that_does_not_read_holds_its_server_back_and_is_closed_and_no_neighbour_waits() -> None:
    sent: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        pours = b"pour" in await request.read()
        found: web.StreamResponse = await (pouring(sent) if pours else generating("a"))(request)
        return found

    async with upstream(answer) as server, gateway(stall_timeout_s=1.5, websocket_ping_interval_s=0.2) as gate:
        routed(gate, server)
        reader, writer = await raw_socket(gate)
        async with socket_of(gate) as other:
            writer.write(frame(json.dumps(GENERATE | {"prompt": "pour"}).encode()) * 3)
            await asyncio.sleep(0.8)  # the buffers fill up
            before = sum(sent)
            await send(other, GENERATE)
            assert text_of(await until_last(other)) == "a"
            assert sum(sent) - before < 1 << 20, "the servers wait"
            assert before < 40 << 20, "socket buffers alone; without back-pressure all 300 MB would be here"
            await until_async(lambda: gate.outcomes() == {"client_closed": 3, "ok": 1})
            async with asyncio.timeout(20):
                last = b""
                while data := await reader.read(1 << 16):
                    last = (last + data)[-100:]
            assert last.endswith(b"\x88\x09" + (1008).to_bytes(2) + b"stalled")
            writer.close()
        await until_async(lambda: server.cancelled == 3)
        assert closed(gate)["stalled"] == 1


async def test_a_client_that_answers_no_ping_is_gone_and_one_that_does_stays() -> None:
    async with gateway(websocket_ping_interval_s=0.2) as gate, socket_of(gate) as alive:
        reader, writer = await raw_socket(gate)
        async with asyncio.timeout(10):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                assert await reader.readexactly(2) == b"\x89\x00"  # a ping
                await reader.readexactly(1)
        assert closed(gate) == {"lost": 1}
        writer.close()
        await alive.ping()


async def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    opened = asyncio.Event()
    async with (
        upstream(generating("a", "b", gate=opened)) as server,
        gateway(websocket_idle_timeout_s=0.5) as gate,
        socket_of(gate) as socket,
    ):
        routed(gate, server)
        await send(socket, GENERATE)
        await receive(socket)
        await asyncio.sleep(0.8)
        opened.set()
        assert (await until_last(socket))[-1]["type"] == "done"
        assert await close_code(socket) == (1000, "idle")


async def test_a_drain_ends_what_runs_refuses_what_comes_and_closes_with_1001() -> None:
    opened = asyncio.Event()
    async with (
        upstream(generating("a", "b", gate=opened)) as server,
        gateway() as gate,
        socket_of(gate) as busy,
        socket_of(gate) as idle,
    ):
        routed(gate, server)
        await send(busy, GENERATE | {"id": "r"})
        await receive(busy)
        gate.edge.draining = True
        assert await close_code(idle) == (1001, "drained")
        await send(busy, GENERATE | {"id": "late"})
        assert code_of(await receive(busy)) == (503, "draining")
        assert (await refused(gate))[0] == 503
        opened.set()
        assert (await until_last(busy))[-1]["type"] == "done"
        assert await close_code(busy) == (1001, "drained")
        assert stream_requests(gate) == {"ok": 1, "drained": 2}


async def test_a_handshake_that_is_authenticated_while_the_drain_begins_is_refused() -> None:
    async with gateway() as gate:
        identify = gate.edge.identify

        async def slow(request: Any) -> Any:
            gate.edge.draining = True
            return await identify(request)

        gate.edge.identify = slow  # type: ignore[method-assign]
        assert (await refused(gate))[0] == 503


async def test_control_frames_leave_nothing_in_the_memory_of_a_message() -> None:
    bounds: dict[str, Any] = {"websocket_max_message_bytes": 1024, "websocket_messages_per_second": 100_000}
    async with gateway(**bounds) as gate, socket_of(gate) as socket:
        before = gate.edge.budget.used_bytes
        for _ in range(700):
            await (await socket.ping(b"x" * 100))
        assert gate.edge.budget.used_bytes == before


async def test_what_runs_at_the_end_of_the_grace_ends_with_an_error() -> None:
    async with upstream(generating("a", "b", gate=asyncio.Event())) as server, gateway() as gate:
        routed(gate, server)
        async with socket_of(gate) as socket:
            await send(socket, GENERATE)
            await receive(socket)
            gate.edge.draining = True
            gate.edge.cut()
            assert (await receive(socket))["error"]["code"] == "drained"
            assert await close_code(socket) == (1001, "drained")
        assert stream_requests(gate) == {"drained": 1}


# -- the compiled data plane


@pytest.mark.skipif(NATIVE is None, reason="the compiled data plane is not built")
async def test_the_compiled_lane_hands_a_handshake_over() -> None:
    async with upstream(generating("a")) as server, gateway(plane="required") as gate:
        routed(gate, server)
        async with socket_of(gate) as socket:
            await send(socket, GENERATE)
            assert text_of(await until_last(socket)) == "a"
        async with await gate.post(GENERATE, "/v1/stream") as answer:
            assert answer.status == 405
        head = {"Upgrade": "websocket", "Connection": "Upgrade"}
        async with await gate.post(GENERATE | {"stream": True}, "/v1/generate", headers=head) as answer:
            assert answer.status == 200, "another path ignores the upgrade, as HTTP has it"
