"""Streams of tokens by gRPC, with grpcio and the messages of contracts/proto: each call is one request of the API."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc import aio

from slipway_gateway.grpc_api.generation_messages import start_of
from slipway_gateway.wire.errors import RequestError
from testkit.until import until_async
from tests.server.http.inprocess import InProcess, model_of
from tests.support.proto_file import messages_of

from .grpc_gateway import GrpcGateway, grpc_gateway
from .harness import upstream
from .tenants import PEPPER, make_key, tenant
from .test_websocket import pouring
from .token_streams import generating, stream_requests

METHOD = "/slipway.v1.Generation/Stream"
PROTO = Path(__file__).parents[2] / "contracts" / "proto" / "slipway" / "v1" / "generation.proto"
M = messages_of(PROTO)
A, B = make_key("aaaaaa"), make_key("bbbbbb")


def generate(**fields: Any) -> Any:
    given = {"model": "chat", "prompt": "In the beginning"} | fields
    outer = {name: given.pop(name) for name in ("id", "resumable") if name in given}
    return M["StreamRequest"](generate=M["GenerateRequest"](**given), **outer)


def resume(id_: str, position: int) -> Any:
    return M["StreamRequest"](id=id_, resume={"from": position})


def call(made: GrpcGateway, message: Any, key: str = "", **options: Any) -> Any:
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    stream = made.channel.unary_stream(METHOD, response_deserializer=M["StreamEvent"].FromString)
    return stream(message.SerializeToString(), metadata=metadata, **options)


async def events_of(made: GrpcGateway, message: Any, key: str = "", **options: Any) -> list[Any]:
    async with asyncio.timeout(20):
        return [event async for event in call(made, message, key, **options)]


async def failure(made: GrpcGateway, message: Any, key: str = "", **options: Any) -> tuple[str, str]:
    with pytest.raises(aio.AioRpcError) as error:
        await events_of(made, message, key, **options)
    return error.value.code().name, error.value.details() or ""


def text_of(events: list[Any]) -> str:
    return "".join(event.token for event in events)


async def served(pod: InProcess, made: GrpcGateway) -> None:
    pod.engine.tokens = tuple(range(5, 45))
    made.gate.route(("v1", 100, [pod.url]))


async def test_a_stream_has_the_events_of_http_and_each_field_of_the_request_arrives() -> None:
    async with upstream(generating("In", " \u00e9")) as server, grpc_gateway() as made:
        made.gate.route(("v1", 100, [server.url]))
        fields = {"max_tokens": 3, "temperature": 0.0, "top_p": 0.7, "top_k": -1, "seed": -7, "stop": ["a", "b"],
                  "frequency_penalty": -0.5, "presence_penalty": 0.25, "ignore_eos": False, "priority": -3}  # fmt: skip
        running = call(made, generate(id="r-1", **fields))
        events = [event async for event in running]
        assert [event.WhichOneof("event") for event in events] == ["token", "token", "done"]
        assert text_of(events) == "In \u00e9" and {event.id for event in events} == {"r-1"}
        done = events[-1].done
        assert (done.usage.input_tokens, done.usage.output_tokens, done.finish_reason) == (3, 2, "stop")
        assert dict(await running.trailing_metadata())["x-request-id"] == "r-1"
        expected = {"model": "chat", "prompt": "In the beginning", **fields, "stream": True}
        assert json.loads(server.bodies[0]) == expected
        assert made.gate.outcomes() == {"ok": 1} == stream_requests(made.gate, "grpc")


async def test_it_is_resumed_by_id_by_event_and_by_another_gateway_and_by_its_own_tenant_alone() -> None:
    listed = [tenant("team-a", A), tenant("team-b", B)]
    async with (
        InProcess(model_of()) as pod,
        grpc_gateway(listed, PEPPER) as one,
        grpc_gateway(listed, PEPPER) as two,
    ):
        await served(pod, one)
        await served(pod, two)
        whole = await events_of(one, generate(max_tokens=40, id="r"), A)
        assert [event.position for event in whole] == list(range(1, 42))
        for seen in (0, 1, 17, 40):
            position = whole[seen - 1].position if seen else 0
            assert await events_of(one, resume("r", position), A) == whole[seen:]
        again = generate(max_tokens=40, id="r", last_event_id=whole[9].event_id)
        assert text_of(await events_of(two, again, A)) == text_of(whole[10:])
        assert (await failure(one, resume("r", 3), B))[0] == "NOT_FOUND"
        assert (await failure(one, resume("other", 3), A))[0] == "NOT_FOUND"
        assert (await failure(one, resume("r", 999), A))[0] == "INVALID_ARGUMENT"
        assert (await failure(one, generate(last_event_id="17"), A))[0] == "INVALID_ARGUMENT"


async def test_refusals_are_statuses_and_count_once() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"retry-after-ms": "1500"})

    async with upstream(refuse) as server, grpc_gateway([tenant("team-a", A)], PEPPER) as made:
        assert (await failure(made, generate()))[0] == "UNAUTHENTICATED"
        made.gate.route(("v1", 100, [server.url]))
        with pytest.raises(aio.AioRpcError) as error:
            await events_of(made, generate(), A)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.value.trailing_metadata())["retry-after-ms"] == "1500"
        assert await failure(made, generate(model="absent"), A) == ("NOT_FOUND", "The model 'absent' does not exist.")
        assert (await failure(made, M["StreamRequest"](), A))[0] == "INVALID_ARGUMENT"
        assert sum(made.gate.outcomes().values()) == 4 == sum(stream_requests(made.gate, "grpc").values())


async def test_a_cancel_a_deadline_and_a_death_end_the_request_at_its_server() -> None:
    async with upstream(generating("a", "b", gate=asyncio.Event())) as server, grpc_gateway() as made:
        made.gate.route(("v1", 100, [server.url]))
        running = call(made, generate())
        assert (await running.read()).token == "a"
        running.cancel()
        await until_async(lambda: server.cancelled == 1)
        assert (await failure(made, generate(), timeout=3.0))[0] == "DEADLINE_EXCEEDED"
        await until_async(lambda: server.cancelled == 2)
        await until_async(lambda: stream_requests(made.gate, "grpc") == {"client_closed": 2})

    async def die(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(b'data: {"type":"token","token":"a"}\n\n')
        assert request.transport
        request.transport.abort()
        return out

    async with upstream(die) as server, grpc_gateway() as made:
        made.gate.route(("v1", 100, [server.url]))
        assert (await failure(made, generate()))[0] == "UNAVAILABLE"


async def test_a_client_that_does_not_read_holds_its_server_back_and_is_ended() -> None:
    sent: list[int] = []
    async with upstream(pouring(sent)) as server, grpc_gateway(stall_timeout_s=1.0) as made:
        made.gate.route(("v1", 100, [server.url]))
        running = call(made, generate())
        assert (await running.read()).token
        await until_async(lambda: stream_requests(made.gate, "grpc") == {"client_closed": 1})
        assert sum(sent) < 40 << 20
        await until_async(lambda: server.cancelled == 1)
        with pytest.raises(aio.AioRpcError) as error:
            async with asyncio.timeout(20):
                while True:
                    await running.read()
        assert error.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@pytest.mark.parametrize(
    "message",
    [
        b"\x0b", b"\x0a\x01\x0b", b"\x0a\x02\x08\x01", b"\x0a\x03\x72\x01\x61", b"\x28\x01", b"\x12\x02\x08\x01",
        b"\x1a\x01 \x0a\x00", b"\x1a\x01\xff\x0a\x00", b"\x0a\x03\x0a\x01\xff", b"\x0a\x09\x21" + b"\xff" * 8, b"",
    ],
)  # fmt: skip
def test_a_message_that_is_none_is_refused_by_name(message: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        start_of(message)
    assert refused.value.status == 400
