"""gRPC at the gateway: each call is one request, with the limits, the counts and the errors of one."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc import aio

from slipway_contracts import protobuf
from slipway_gateway.grpc_api import health, statuses
from slipway_gateway.grpc_api.streams import MAX_RUNNING
from testkit.until import until_async

from .grpc_gateway import INFER, PROTOBUF, STREAM, GrpcGateway, echo, grpc_gateway, infer
from .harness import refused_url, upstream
from .tenants import PEPPER, make_key, tenant

LEFT, RIGHT = "aaaaaaaaaa", "bbbbbbbbbb"
HEALTH = "/grpc.health.v1.Health/"


async def hang(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_call_reaches_a_server_as_the_same_bytes_and_is_one_request() -> None:
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        call = made.channel.unary_unary(INFER)(infer(payload=b"\0\xff"), metadata=(("x-request-id", "mine"),))
        assert await call == infer(payload=b"\0\xff")
        trailing = dict(await call.trailing_metadata())
        assert (trailing["x-request-id"], trailing["x-slipway-revision"]) == ("mine", LEFT)
        (seen,) = server.seen
        assert (seen.method, seen.path, seen.headers["Content-Type"]) == ("POST", "/v2/models/chat/infer", PROTOBUF)
        assert made.gate.outcomes() == {"ok": 1}


async def test_calls_of_one_channel_are_split_by_weight() -> None:
    async with upstream(echo) as left, upstream(echo) as right, grpc_gateway() as made:
        made.gate.route((RIGHT, 30, [right.url]), (LEFT, 70, [left.url]))
        revisions: Counter[str] = Counter()
        infers = made.channel.unary_unary(INFER)
        calls = [infers(infer(), metadata=(("x-session-id", f"s{number}"),)) for number in range(200)]
        for call in calls:
            await call
            revisions[dict(await call.trailing_metadata())["x-slipway-revision"]] += 1
        assert revisions == {LEFT: len(left.seen), RIGHT: len(right.seen)}
        # The split of these session ids is fixed: the hash has no chance in it.
        assert abs(revisions[RIGHT] - 60) < 20


async def test_a_version_pins_the_revision_and_another_one_is_not_found() -> None:
    async with upstream(echo) as left, upstream(echo) as right, grpc_gateway() as made:
        made.gate.route((RIGHT, 0, [right.url]), (LEFT, 100, [left.url]))
        for _ in range(3):
            await made.call("ModelInfer", infer(version=RIGHT))
        assert (len(left.seen), len(right.seen)) == (0, 3)
        code, text = await made.failure("ModelInfer", infer(version="v9"))
        assert code == "NOT_FOUND" and "'v9'" in text


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INVALID_ARGUMENT"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"), (413, "RESOURCE_EXHAUSTED"),
        (422, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL"), (501, "UNIMPLEMENTED"),
        (502, "UNAVAILABLE"), (503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED"), (418, "INTERNAL"),
    ],
)  # fmt: skip
async def test_an_error_of_a_server_has_its_status_and_its_text(status: int, code: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": "the reason", "code": "c"}, status=status, headers={"Retry-After": "7"})

    async with upstream(refuse) as server, grpc_gateway(max_attempts=1) as made:
        made.gate.route((LEFT, 100, [server.url]))
        call = made.channel.unary_unary(INFER)(infer())
        with pytest.raises(aio.AioRpcError) as raised:
            await call
        assert (raised.value.code().name, raised.value.details()) == (code, "the reason")
        assert dict(raised.value.trailing_metadata())["retry-after"] == "7"


async def test_an_error_has_no_message_before_its_status() -> None:
    """Also for clients that take the method as a stream."""
    expected = {INFER: grpc.StatusCode.NOT_FOUND, f"{HEALTH}Nothing": grpc.StatusCode.UNIMPLEMENTED}
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        for method, code in expected.items():
            call = made.channel.unary_stream(method)(infer("absent"))
            with pytest.raises(aio.AioRpcError) as failed:
                await call.read()
            assert failed.value.code() is code
        assert not server.seen


async def test_errors_of_the_gateway_itself_have_a_text_too() -> None:
    async with grpc_gateway() as made:
        code, text = await made.failure("ModelInfer", infer())
        assert code == "UNAVAILABLE" and "no routes" in text
        made.gate.route((LEFT, 100, [refused_url()]))
        assert await made.failure("ModelInfer", infer(model="n")) == ("NOT_FOUND", "The model 'n' does not exist.")
        code, text = await made.failure("ModelInfer", infer(model=""))
        assert code == "INVALID_ARGUMENT" and "no name of a model" in text
        code, text = await made.failure("ModelInfer", b"\x0b")
        assert code == "INVALID_ARGUMENT" and "wire type 3" in text
        assert (await made.failure("ModelInfer", infer()))[0] == "UNAVAILABLE"
        assert sum(made.gate.outcomes().values()) == 5


async def test_methods_that_are_not_there_say_what_is() -> None:
    async with grpc_gateway() as made:
        for method in ("ModelConfig", "/other.Service/Method", "/grpc.reflection.v1.ServerReflection/X"):
            code, text = await made.failure(method)
            assert code == "UNIMPLEMENTED" and "ModelInfer" in text
        assert made.gate.outcomes() == {"client_error": 3}


async def test_a_server_of_another_format_is_named() -> None:
    async def answer_json(_: web.Request) -> web.Response:
        return web.json_response({"outputs": []})

    async with upstream(answer_json) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        code, text = await made.failure("ModelInfer", infer())
        assert code == "UNAVAILABLE" and "protobuf" in text


async def test_internal_headers_and_those_of_http_do_not_pass() -> None:
    forged = {
        "x-slipway-tenant": "someone", "x-slipway-shadow": "1", "x-slipway-tenant-proof": "p", "content-encoding": "br",
        "host": "elsewhere", "inference-header-content-length": "3", "last-event-id": "x",
        "authorization": "Bearer secret", "traceparent": "00-1-2-03",
        "x-bytes-bin": b"AA",
    }  # fmt: skip
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        await made.call("ModelInfer", infer(), metadata=tuple(forged.items()))
        headers = {name.lower(): value for name, value in server.seen[0].headers.items()}
    passed = {name for name, value in forged.items() if headers.get(name) == value}
    assert passed == {"traceparent"}, headers


async def test_metadata_of_http_1_ends_its_call_alone() -> None:
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        code, _ = await made.failure("ModelInfer", infer(), metadata=(("transfer-encoding", "chunked"),))
        assert code == "INTERNAL" and not server.seen
        assert await made.call("ModelInfer", infer()) == infer(), "the connection goes on"


async def test_a_key_in_the_metadata_authenticates_and_models_of_others_do_not_exist() -> None:
    mine, other = make_key("mine01"), make_key("other1")
    tenants = (tenant("team-a", mine, models=("chat",)), tenant("team-b", other, models=("n",)))
    async with upstream(echo) as server, grpc_gateway(tenants, PEPPER, auth_mode="required") as made:
        made.gate.route((LEFT, 100, [server.url]))
        code, text = await made.failure("ModelInfer", infer())
        assert code == "UNAUTHENTICATED" and "API key" in text
        bearer = (("authorization", f"Bearer {other}"),)
        assert (await made.failure("ModelInfer", infer(), metadata=bearer))[0] == "NOT_FOUND"
        bearer = (("authorization", f"Bearer {mine}"),)
        assert await made.call("ModelInfer", infer(), metadata=bearer) == infer()
        assert await made.call("RepositoryIndex", metadata=bearer) != b""
        assert await made.failure("ServerLive") == ("UNAUTHENTICATED", text)
        # Load balancers have no keys.
        assert await made.call(HEALTH + "Check") == b"\x08\x01"


async def test_a_cancelled_call_is_cancelled_at_its_server() -> None:
    async with upstream(hang) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        call = made.channel.unary_unary(INFER)(infer())
        await until_async(lambda: server.seen)
        call.cancel()
        await until_async(lambda: server.cancelled)
        await until_async(lambda: made.gate.outcomes() == {"client_closed": 1})


async def test_the_deadline_of_a_call_ends_it_and_its_server_knows_it() -> None:
    async with upstream(hang) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        assert (await made.failure("ModelInfer", infer(), timeout=3.0))[0] == "DEADLINE_EXCEEDED"
        await until_async(lambda: server.cancelled)
        left = server.seen[0].headers["grpc-timeout"]
        # gRPC writes a deadline with few digits, and rounds it up.
        assert left.endswith("m") and 0 < int(left[:-1]) <= 3300


async def test_a_retry_goes_to_another_endpoint() -> None:
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [refused_url(), server.url]))
        for _ in range(4):
            assert await made.call("ModelInfer", infer()) == infer()


async def test_messages_are_bounded_in_both_directions() -> None:
    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(200_000), content_type=PROTOBUF)

    async with upstream(large) as server, grpc_gateway(max_body_bytes=100_000) as made:
        made.gate.route((LEFT, 100, [server.url]))
        code, text = await made.failure("ModelInfer", infer(payload=bytes(100_001)))
        assert code == "RESOURCE_EXHAUSTED" and not server.seen
        code, text = await made.failure("ModelInfer", infer(payload=bytes(90_000)))
        assert code == "RESOURCE_EXHAUSTED" and "longer" in text
        await until_async(lambda: made.gate.budget.used_bytes == 0)


async def test_compressed_messages_are_refused_because_they_may_be_bombs() -> None:
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        code, _ = await made.failure("ModelInfer", infer(payload=bytes(9000)), compression=grpc.Compression.Gzip)
        assert code == "UNIMPLEMENTED" and not server.seen


async def test_calls_above_the_limit_in_flight_are_refused() -> None:
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return await echo(request)

    async with upstream(wait) as server, grpc_gateway(max_inflight=4) as made:
        made.gate.route((LEFT, 100, [server.url]))
        calls = [made.channel.unary_unary(INFER)(infer()) for _ in range(2)]
        await until_async(lambda: len(server.seen) == 2)
        assert (await made.failure("ModelInfer", infer()))[0] == "RESOURCE_EXHAUSTED"
        going_on.set()
        assert [await call for call in calls] == [infer(), infer()]


async def test_health_readiness_and_descriptions() -> None:
    described = {
        "name": "chat", "versions": ["v1"], "platform": "onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], "outputs": [],
    }  # fmt: skip

    async def describe(request: web.Request) -> web.Response:
        return web.json_response(described if request.path == "/v2/models/chat" else {"ready": True})

    async with upstream(describe) as server, grpc_gateway() as made:
        assert await made.call("ServerLive") == b"\x08\x01" and await made.call(HEALTH + "Check") == b"\x08\x02"
        assert (await made.failure("ServerReady"))[0] == "UNAVAILABLE"
        made.gate.route((LEFT, 100, [server.url]))
        assert await made.call("ServerReady") == b"\x08\x01"
        name = protobuf.text_field(1, "chat")
        assert await made.call("ModelReady", name) == b"\x08\x01"
        tensor = protobuf.text_field(1, "x") + protobuf.text_field(2, "FP32") + protobuf.packed_field(3, [-1, 2])
        assert await made.call("ModelMetadata", name) == b"".join(
            [name, protobuf.text_field(2, "v1"), protobuf.text_field(3, "onnx"), protobuf.bytes_field(4, tensor)]
        )
        assert protobuf.texts(await made.call("ServerMetadata"), 1)[1] == "slipway-gateway"
        assert (
            await made.call(HEALTH + "Check", protobuf.text_field(1, "inference.GRPCInferenceService")) == b"\x08\x01"
        )
        assert (await made.failure(HEALTH + "Check", protobuf.text_field(1, "other")))[0] == "NOT_FOUND"


async def test_a_model_that_is_not_there_is_not_ready() -> None:
    async with grpc_gateway() as made:
        made.gate.route((LEFT, 100, []))
        for model in ("n", "chat"):
            assert await made.call("ModelReady", protobuf.text_field(1, model)) == b""


async def test_a_watch_of_the_health_sees_the_change_and_the_end() -> None:
    async with grpc_gateway(grpc_connection_age_s=0.2) as made:
        watch = made.channel.unary_stream(HEALTH + "Watch")(b"")
        assert await watch.read() == b"\x08\x02"
        made.gate.route((LEFT, 100, []))
        assert await watch.read() == b"\x08\x01"
        draining = asyncio.create_task(made.server.drain())
        with pytest.raises(aio.AioRpcError) as raised:
            await watch.read()
        assert raised.value.code().name == "UNAVAILABLE"
        await draining


@pytest.mark.finding("F2")
async def test_watches_of_one_address_leave_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_WATCHES", 4)
    async with grpc_gateway() as made:
        watches = [made.channel.unary_stream(HEALTH + "Watch")(b"") for _ in range(2)]
        assert [await watch.read() for watch in watches] == [b"\x08\x02"] * 2
        with pytest.raises(aio.AioRpcError) as raised:
            await made.channel.unary_stream(HEALTH + "Watch")(b"").read()
        assert raised.value.code().name == "RESOURCE_EXHAUSTED"
        watches[0].cancel()
        await until_async(lambda: watches[0].done())
        async with asyncio.timeout(10):
            while True:  # until the server has seen the cancellation
                with contextlib.suppress(aio.AioRpcError):
                    assert await made.channel.unary_stream(HEALTH + "Watch")(b"").read() == b"\x08\x02"
                    break


async def stream(made: GrpcGateway, messages: list[bytes], **options: Any) -> list[bytes]:
    call = made.channel.stream_stream(STREAM)(**options)
    for message in messages:
        await call.write(message)
    await call.done_writing()
    return [answer async for answer in call]


async def test_messages_of_a_stream_are_calls_and_their_answers_come_in_order() -> None:
    async def slow_first(request: web.Request) -> web.Response:
        body = await request.read()
        await asyncio.sleep(0.2 if body.endswith(b"0") else 0)
        return web.Response(body=body, content_type=PROTOBUF)

    async with upstream(slow_first) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        sent = [infer(payload=b"%d" % number) for number in range(20)]
        assert await stream(made, sent) == [protobuf.bytes_field(2, message) for message in sent]
        assert made.gate.outcomes() == {"ok": 20} and made.gate.budget.used_bytes == 0


async def test_an_error_in_a_stream_is_one_answer_of_it() -> None:
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        first, second = await stream(made, [infer(model="n", request_id="7"), infer()])
        error = protobuf.text_field(1, "The model 'n' does not exist.")
        assert first == error + protobuf.bytes_field(2, protobuf.text_field(3, "7"))
        assert second == protobuf.bytes_field(2, infer())


async def test_a_stream_without_a_key_ends_before_it_is_read() -> None:
    key = make_key("mine01")
    async with grpc_gateway((tenant("team-a", key),), PEPPER, auth_mode="required") as made:
        with pytest.raises(aio.AioRpcError) as raised:
            await stream(made, [])
        assert raised.value.code().name == "UNAUTHENTICATED"
        assert made.gate.outcomes() == {"unauthenticated": 1}


async def test_a_stream_that_is_left_ends_its_calls() -> None:
    async with upstream(hang) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        call = made.channel.stream_stream(STREAM)()
        for _ in range(3):
            await call.write(infer())
        await until_async(lambda: len(server.seen) == 3)
        call.cancel()
        await until_async(lambda: server.cancelled == 3)
        await until_async(lambda: made.gate.outcomes() == {"client_closed": 3})
        assert made.gate.budget.used_bytes == 0


async def test_a_stream_that_is_left_while_it_is_full_ends_the_call_that_waits_for_its_turn() -> None:
    async with upstream(hang) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        call = made.channel.stream_stream(STREAM)()
        for _ in range(MAX_RUNNING + 2):
            await call.write(infer())
        await until_async(lambda: len(server.seen) == MAX_RUNNING + 2)
        call.cancel()
        await until_async(lambda: server.cancelled == MAX_RUNNING + 2)
        await until_async(lambda: made.gate.budget.used_bytes == 0)


async def test_a_drain_ends_running_calls_well_and_streams_after_what_was_read() -> None:
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return await echo(request)

    async with upstream(wait) as server, grpc_gateway(grpc_connection_age_s=0.2) as made:
        made.gate.route((LEFT, 100, [server.url]))
        running = made.channel.unary_unary(INFER)(infer())
        streaming = made.channel.stream_stream(STREAM)()
        await streaming.write(infer())
        await until_async(lambda: len(server.seen) == 2)
        draining = asyncio.create_task(made.server.drain())
        await asyncio.sleep(0)
        going_on.set()
        assert await running == infer()
        assert await streaming.read() == protobuf.bytes_field(2, infer())
        with pytest.raises(aio.AioRpcError) as raised:
            await streaming.read()
        assert raised.value.code().name == "UNAVAILABLE"
        await draining


async def test_a_call_that_outlasts_the_drain_ends_with_a_status() -> None:
    async with upstream(hang) as server, grpc_gateway(grpc_connection_age_s=0.2) as made:
        made.gate.route((LEFT, 100, [server.url]))
        running = made.channel.unary_unary(INFER)(infer())
        await until_async(lambda: server.seen)
        draining = asyncio.create_task(made.server.drain())
        await asyncio.sleep(0.1)
        made.gate.edge.cut()
        with pytest.raises(aio.AioRpcError) as raised:
            await running
        assert raised.value.code().name == "UNAVAILABLE" and "shutting down" in str(raised.value.details())
        assert made.gate.outcomes() == {"drained": 1}
        await draining


async def test_a_broken_response_is_no_answer() -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": PROTOBUF})
        response.content_length = 3 << 20
        await response.prepare(request)
        await response.write(bytes(2 << 20))
        assert request.transport
        request.transport.abort()
        return response

    async with upstream(break_off) as server, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [server.url]))
        code, text = await made.failure("ModelInfer", infer())
        assert code == "UNAVAILABLE" and "went away" in text
        assert made.gate.outcomes() == {"upstream_error": 1} and made.gate.budget.used_bytes == 0


async def test_a_retry_after_a_crash_reaches_the_other_server_once() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": "no", "code": "draining"}, status=503)

    async with upstream(refuse) as first, upstream(echo) as second, grpc_gateway() as made:
        made.gate.route((LEFT, 100, [first.url, second.url]))
        for number in range(4):
            assert await made.call("ModelInfer", infer(payload=b"%d" % number)) == infer(payload=b"%d" % number)
        assert [body[-1:] for body in second.bodies] == [b"0", b"1", b"2", b"3"]


def test_what_is_left_of_a_deadline_has_at_most_eight_digits() -> None:
    assert [statuses.timeout_header(s) for s in (0.0, 1.5, 99_999.9, 100_000.0, 1e12)] == [
        "1m", "1500m", "99999900m", "100000S", "99999999S",
    ]  # fmt: skip
