"""Twin shadows of classic models: which requests are copied, and what both legs predict for them."""

import contextlib
import gzip
import json
import struct
import zlib
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.twin_shadow import PredictionTolerance, TwinLatency, TwinShadow
from slipway_gateway.wire.inference import PROTOBUF
from slipway_gateway.wire.predictions import MAX_BYTES
from testkit.until import until_async

from .grpc_gateway import INFER, grpc_gateway, infer, inferred
from .harness import Gateway, Handler, Upstream, answering, gateway, upstream
from .test_mirror import silent
from .test_twins import counts, events, results, shadowing, until_results

TOLERANCE = PredictionTolerance(1000, 1000)
SHADOW = TwinShadow("c", "s", 100, 1000, latencies=(TwinLatency("e2e", 15),), tolerance=TOLERANCE)
ROW = {"features": [1, 2]}
SIMPLE, NAMED, V1, V2 = (
    "/api/v1/predict",
    "/api/v1/models/chat/predict",
    "/v1/models/chat:predict",
    "/v2/models/chat/infer",
)
BODIES: dict[str, dict[str, Any]] = {
    SIMPLE: {"model": "chat", "input": ROW},
    NAMED: {"inputs": [ROW]},
    V1: {"instances": [ROW]},
    V2: {"inputs": [{"name": "i", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]},
}


def predicting(*values: Any) -> Handler:
    """A server that predicts the values in turn, in the shape of each path."""
    places = count()

    async def answer(request: web.Request) -> web.StreamResponse:
        value = values[next(places) % len(values)]
        if request.content_type == PROTOBUF:
            return web.Response(body=inferred(value), content_type=PROTOBUF)
        if request.path == SIMPLE:
            return web.json_response({"prediction": value})
        if request.path.endswith("/infer"):
            kind = "INT64" if isinstance(value, int) else "FP32"
            return web.json_response({"outputs": [{"name": "o", "datatype": kind, "shape": [1], "data": [value]}]})
        return web.json_response({"predictions": [value]})

    return answer


@contextlib.asynccontextmanager
async def twins(
    canary: Handler, twin: Handler, shadow: TwinShadow = SHADOW, **settings: Any
) -> AsyncIterator[tuple[Gateway, Upstream, Upstream]]:
    """A gateway whose clients are served by one pod of stable, and whose twin is a baseline pod."""
    async with (
        upstream(canary) as tested,
        upstream(twin) as beside,
        upstream(predicting(7)) as served,
        gateway(**settings) as gate,
    ):
        gate.balancer.publish(shadowing([tested.url], [served.url], shadow, baseline=[beside.url]))
        yield gate, tested, beside


async def predict(gate: Gateway, times: int = 1, path: str = SIMPLE, **headers: str) -> None:
    for _ in range(times):
        known = sum(results(gate).values())
        async with await gate.post(BODIES[path], path, headers=headers) as answer:
            assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, "s")
            assert b"7" in await answer.read(), "the client has stable's own response"
        await until_results(gate, known + 1)


def agreements(gate: Gateway) -> dict[str, int]:
    return {name: number for name, number in counts(gate)["agreements"].items() if number}


# -- which requests are copied


@pytest.mark.parametrize("path", BODIES)
async def test_requests_of_each_path_are_pairs_and_their_predictions_are_compared(path: str) -> None:
    async with twins(predicting(1, 1, 2), predicting(1)) as (gate, canary, twin):
        await predict(gate, 6, path)
        assert results(gate) == {"paired": 6} and counts(gate)["pairs"] == 6
        assert agreements(gate) == {"compared": 6, "disagreed": 2}
        assert events(gate) == {} and counts(gate)["latencies"]["e2e"]["pairs"] == 6
        assert [json.loads(one) for one in (*canary.bodies, *twin.bodies)] == [BODIES[path]] * 12, "byte for byte"
        for leg in (canary, twin):
            assert {one.path for one in leg.seen} == {path} and leg.seen[0].headers["X-Slipway-Shadow"] == "1"


async def test_embeddings_are_pairs_without_predictions() -> None:
    async with twins(answering(200), answering(200)) as (gate, _, _):
        async with await gate.post({"model": "chat", "input": "x"}, "/v1/embeddings") as answer:
            assert answer.status == 200
        await until_results(gate, 1)
        assert results(gate) == {"paired": 1} and agreements(gate) == {}


async def test_binary_requests_are_copied_as_they_are() -> None:
    def predicting_binary(*numbers: float) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            assert (await request.read()).endswith(b"\xff\xfe\0\0")
            described = {"name": "o", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
            head = json.dumps({"outputs": [described]}).encode()
            headers = {"Inference-Header-Content-Length": str(len(head))}
            return web.Response(body=head + struct.pack("<2f", *numbers), headers=headers, content_type="application/x")

        return answer

    head = b'{"inputs": []}'
    for canary, disagreed in (((0.3, 0.7), {}), ((0.7, 0.3), {"disagreed": 1})):
        async with twins(predicting_binary(*canary), predicting_binary(0.2, 0.8)) as (gate, tested, _):
            headers = {"Inference-Header-Content-Length": str(len(head))}
            async with await gate.post(head + b"\xff\xfe\0\0", V2, headers=headers) as answer:
                assert answer.status == 200
            await until_results(gate, 1)
            assert agreements(gate) == {"compared": 1} | disagreed
            assert tested.seen[0].headers["Inference-Header-Content-Length"] == str(len(head))


async def test_grpc_calls_are_pairs_and_their_predictions_are_compared() -> None:
    async with (
        upstream(predicting(1, 2)) as canary,
        upstream(predicting(1)) as twin,
        upstream(predicting(7)) as served,
        grpc_gateway() as made,
    ):
        made.gate.balancer.publish(shadowing([canary.url], [served.url], SHADOW, baseline=[twin.url]))
        for number in range(1, 5):
            assert await made.channel.unary_unary(INFER)(infer()) == inferred(7)
            await until_results(made.gate, number)
        assert results(made.gate) == {"paired": 4} and agreements(made.gate) == {"compared": 4, "disagreed": 2}
        assert set(canary.bodies) == {infer()} and {one.content_type for one in canary.seen} == {PROTOBUF}


@pytest.mark.parametrize(
    ("encoding", "pack"), [("", bytes), ("identity", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_a_request_of_a_sequence_is_not_copied_and_any_other_is(encoding: str, pack: Any) -> None:
    headers = {"Content-Encoding": encoding} if encoding else {}
    async with twins(predicting(1), predicting(1)) as (gate, canary, _):
        for number, more in enumerate(({}, {"parameters": {"sequence_id": 5}}), 1):
            body = pack(json.dumps(BODIES[V2] | more).encode())
            async with await gate.post(body, V2, headers=headers) as answer:
                assert answer.status == 200
            await until_results(gate, number)
        assert results(gate) == {"paired": 1, "side_effects": 1} and len(canary.seen) == 1
        assert canary.seen[0].headers.get("Content-Encoding", "") == encoding


PACKED = gzip.compress(b"{}", mtime=0)  # else the names of the tests would have the time in them
PACKED_BLANKS = gzip.compress(b" " * (2 << 20), mtime=0)


@pytest.mark.parametrize("body", [b"no gzip", PACKED_BLANKS, PACKED[:-4]])
async def test_a_body_that_cannot_be_read_for_that_is_not_copied(body: bytes) -> None:
    async with twins(predicting(1), predicting(1)) as (gate, canary, _):
        async with await gate.post(body, V2, headers={"Content-Encoding": "gzip"}) as answer:
            await answer.read()
        await until_results(gate, 1)
        assert results(gate) == {"side_effects": 1} and not canary.seen


async def test_a_pinned_version_is_no_pair() -> None:
    async with twins(predicting(1), predicting(1)) as (gate, canary, _):
        async with await gate.post(BODIES[V2], "/v2/models/chat/versions/s/infer") as answer:
            assert answer.status == 200
        await predict(gate)
        assert results(gate) == {"paired": 1} and len(canary.seen) == 1


# -- what counts


async def test_a_session_gives_one_comparison() -> None:
    async with twins(predicting(1, 2), predicting(1), sticky_by="session") as (gate, _, _):
        await predict(gate, 4, **{"X-Session-Id": "a"})
        assert results(gate) == {"paired": 1, "uncounted": 3} and agreements(gate) == {"compared": 1}


@pytest.mark.parametrize("canary", [answering(500), answering(400), answering(429), silent()])
async def test_what_canary_fails_is_an_error_and_no_agreement(canary: Handler) -> None:
    async with twins(canary, predicting(1), mirror_timeout_s=0.3) as (gate, _, _):
        await predict(gate)
        assert agreements(gate) == {"failed": 1}
        assert events(gate) == {"bad": {"canary_only": 1}, "errors": {"canary_only": 1}}


async def test_what_its_twin_fails_or_cannot_be_read_is_unread() -> None:
    for twin in (answering(500), predicting([[1, 2], [3, 4]]), predicting("a" * (MAX_BYTES // 2))):
        async with twins(predicting(1), twin) as (gate, _, _):
            await predict(gate)
            assert agreements(gate) == {"unread": 1}


@pytest.mark.parametrize("value", [[[1, 2], [3, 4]], "a" * MAX_BYTES, "a" * (3 << 20)])
async def test_what_cannot_be_read_of_canary_disagrees(value: Any) -> None:
    async with twins(predicting(value), predicting(1)) as (gate, _, _):
        await predict(gate)
        assert agreements(gate) == {"compared": 1, "disagreed": 1} and events(gate) == {}


async def test_canarys_response_may_be_longer_than_its_twins_for_the_same_rows() -> None:
    async with twins(predicting([1.25] * 6000), predicting([1.0] * 6000)) as (gate, _, _):
        await predict(gate)
        assert agreements(gate) == {"compared": 1}


@pytest.mark.parametrize("path", BODIES)
async def test_a_prediction_that_is_no_number_is_a_bad_response_of_its_leg(path: str) -> None:
    async with twins(predicting(None, None, 0.5), predicting(0.5, None, 0.5)) as (gate, _, _):
        await predict(gate, 3, path)
        both = {"canary_only": 1, "both": 1}
        assert events(gate) == {"bad": both, "non_finite": both}
        assert agreements(gate) == {"compared": 3, "disagreed": 1}


async def test_numbers_count_in_neither_leg_where_one_cannot_be_read() -> None:
    async with twins(predicting(None), predicting([[1, 2], "a"])) as (gate, _, _):
        await predict(gate)
        assert events(gate) == {}


async def test_without_a_tolerance_in_the_table_pairs_are_not_compared() -> None:
    async with twins(predicting(1), predicting(2), TwinShadow("c", "s", 100, 1000)) as (gate, _, _):
        await predict(gate, 2)
        assert results(gate) == {"paired": 2} and agreements(gate) == {}


async def test_without_a_twin_failures_count_and_predictions_are_not_compared() -> None:
    shadow = TwinShadow("c", "s", 100, 1000, reference="OnFailure", tolerance=TOLERANCE)
    async with twins(answering(500), predicting(1), shadow) as (gate, _, _):
        await predict(gate)
        assert events(gate) == {"bad": {"canary_only": 1}, "errors": {"canary_only": 1}} and agreements(gate) == {}


async def test_a_pair_has_room_for_both_responses_from_its_start() -> None:
    room = 3 * MAX_BYTES
    async with twins(predicting(1), predicting(1), mirror_max_bytes=room) as (gate, _, _):
        await predict(gate)
        assert results(gate) == {"paired": 1} and agreements(gate) == {"compared": 1}
    async with twins(predicting(1), predicting(1), mirror_max_bytes=2 * MAX_BYTES) as (gate, canary, _):
        await predict(gate)
        assert results(gate) == {"too_large": 1} and not canary.seen


async def test_the_memory_of_pairs_is_given_back() -> None:
    async with twins(predicting("a" * 9000), predicting("a" * 9000)) as (gate, _, _):
        await predict(gate, 5)
        assert sum(results(gate).values()) == 5
        await until_async(lambda: gate.budget.used_bytes == 0)
