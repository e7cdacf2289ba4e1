"""Mirrored requests of classic models: whether canary predicts what stable did, and what counts of it."""

import contextlib
import json
import math
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.counters import Agreement
from slipway_contracts.route_table import MirrorRoute
from slipway_contracts.twin_shadow import PredictionTolerance
from slipway_gateway.judging.agreement import compare
from slipway_gateway.routing.table import RouteTable
from slipway_gateway.wire.predictions import MAX_BYTES, MAX_ROWS, Predictions, read_predictions
from testkit.until import until_async
from tests.support.report import route_reports

from .grpc_gateway import INFER, echo, grpc_gateway, infer, inferred, inferring
from .harness import Gateway, Handler, answering, gateway, table, upstream
from .test_mirror import results, silent

TOLERANCE = PredictionTolerance(1000, 1000)  # a thousandth, and a millionth
PREDICT = {"model": "chat", "input": {"features": [1]}}
SIMPLE, V1, V2 = "/api/v1/predict", "/v1/models/chat:predict", "/v2/models/chat/infer"
AGREED, DISAGREED, UNREAD = Agreement.AGREED, Agreement.DISAGREED, Agreement.UNREAD


# -- two responses


def rows(*values: Any) -> Predictions | None:
    return read_predictions(V1, {}, json.dumps({"predictions": list(values)}).encode())


@pytest.mark.parametrize(
    ("stable", "canary", "found"),
    [
        (rows("cat"), rows("cat"), AGREED),
        (rows("cat"), rows("dog"), DISAGREED),
        (rows("2"), rows(2), AGREED),
        (rows(True), rows("true"), AGREED),
        (rows(2), rows(3), DISAGREED),
        (rows(10**15), rows(10**15 + 1), DISAGREED),
        (rows(2.5), rows(2.5), AGREED),
        (rows(1000.0), rows(1000.9), AGREED),
        (rows(1000.0), rows(1002.0), DISAGREED),
        (rows(3), rows(3.0), AGREED),
        (rows(0.0), rows(0.0000009), AGREED),
        (rows(0.0), rows(0.000002), DISAGREED),
        (rows(-1.0), rows(1.0), DISAGREED),
        (rows("1.5"), rows(1.5), DISAGREED),
        (rows([0.1, 0.9]), rows([0.4, 0.6]), AGREED),
        (rows([0.1, 0.9]), rows([0.6, 0.4]), DISAGREED),
        (rows("a", "b", "c"), rows("a", "b", "c"), AGREED),
        (rows("a", "b", "c"), rows("a", "b", "x"), DISAGREED),
        (rows("a", "b"), rows("a"), DISAGREED),
        (rows(None), rows(None), AGREED),
        (rows(None), rows(1.0), DISAGREED),
        (rows(1.0), rows(None), DISAGREED),
        (rows("a"), None, DISAGREED),
        (rows("a"), rows({}), DISAGREED),
        (rows({}), rows("a"), UNREAD),
        (rows({}), rows({}), UNREAD),
        (None, rows("a"), UNREAD),
        (None, None, UNREAD),
    ],
)
def test_two_responses_agree_where_all_rows_do(stable: Any, canary: Any, found: Agreement) -> None:
    assert compare(stable, canary, TOLERANCE) is found


def test_numbers_that_are_infinite_agree_with_themselves_alone() -> None:
    def number(value: float) -> Predictions | None:
        head = json.dumps(
            {"outputs": [{"datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}
        ).encode()
        return read_predictions(
            V2, {"Inference-Header-Content-Length": str(len(head))}, head + struct.pack("<f", value)
        )

    assert compare(number(math.inf), number(math.inf), TOLERANCE) is AGREED
    assert compare(number(math.inf), number(-math.inf), TOLERANCE) is DISAGREED
    assert compare(number(math.inf), number(1.0), TOLERANCE) is DISAGREED


def test_of_many_rows_the_first_ones_and_their_number_are_compared() -> None:
    many = [1] * (MAX_ROWS + 5)
    assert compare(rows(*many), rows(*many[:-1], 2), TOLERANCE) is AGREED
    assert compare(rows(*many), rows(*many, 1), TOLERANCE) is DISAGREED
    assert compare(rows(*many), rows(*many[: MAX_ROWS - 1], 2, *many[MAX_ROWS:]), TOLERANCE) is DISAGREED


def test_no_tolerance_means_equal_numbers() -> None:
    exact = PredictionTolerance(0, 0)
    assert compare(rows(1.5), rows(1.5), exact) is AGREED
    assert compare(rows(1.5), rows(1.5000001), exact) is DISAGREED


# -- a gateway


def predicting(*values: Any) -> Handler:
    """The values in turn."""
    places = count()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"prediction": values[next(places) % len(values)]})

    return answer


def mirrored(made: RouteTable, tolerance: PredictionTolerance | None = TOLERANCE) -> RouteTable:
    """The table of one route, all of whose requests are copied to canary."""
    ((name, route),) = made.routes.items()
    rule = MirrorRoute("m", "canary", 100, (), tolerance)
    changed = replace(route, mirror_routes=(rule,), digest=f"{route.generation:064x}")
    return replace(made, routes={name: changed}, models=dict.fromkeys(made.models, changed))


@contextlib.asynccontextmanager
async def mirrors(
    stable: Handler, canary: Handler, tolerance: PredictionTolerance | None = TOLERANCE, **settings: Any
) -> AsyncIterator[Gateway]:
    async with upstream(canary) as tested, upstream(stable) as pod, gateway(**settings) as gate:
        made = table(1, ("canary", 0, [tested.url]), ("stable", 100, [pod.url]))
        gate.balancer.publish(mirrored(made, tolerance))
        yield gate


async def predict(gate: Gateway, times: int = 1, path: str = SIMPLE, **headers: str) -> list[bytes]:
    """Sends requests one by one, until each copy has its result."""
    bodies = []
    for _ in range(times):
        known = sum(results(gate).values())
        async with await gate.post(PREDICT, path, headers=headers) as answer:
            assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, "stable")
            bodies.append(await answer.read())
        await until_async(lambda before=known: sum(results(gate).values()) > before)
    return bodies


def counted(gate: Gateway) -> dict[str, int]:
    """Counts of the last generation, without those that are 0."""
    epochs = route_reports(gate.balancer)["default/chat"]["samples"]
    return {name: number for name, number in epochs[-1]["agreements"].get("canary", {}).items() if number}


async def test_predictions_of_both_are_compared_and_clients_see_stables_alone() -> None:
    async with mirrors(predicting("cat"), predicting("cat", "cat", "dog")) as gate:
        bodies = await predict(gate, 9)
        assert {json.loads(body)["prediction"] for body in bodies} == {"cat"}
        assert counted(gate) == {"compared": 9, "disagreed": 3}
        assert results(gate) == {"agreed": 6, "disagreed": 3}
        revisions = route_reports(gate.balancer)["default/chat"]["samples"][-1]["revisions"]
        assert set(revisions) == {"stable"}, "no counter of clients' requests knows of canary"


@pytest.mark.parametrize("path", [SIMPLE, "/api/v1/models/chat/predict", V1, V2])
async def test_each_path_of_predictions_is_compared(path: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        simple = {"prediction": 1} if request.path == SIMPLE else {"predictions": [1, 2]}
        tensor = {"name": "o", "datatype": "INT64", "shape": [2], "data": [1, 2]}
        return web.json_response({"outputs": [tensor]} if request.path.endswith("/infer") else simple)

    async with mirrors(answer, answer) as gate:
        await predict(gate, 2, path)
        assert counted(gate) == {"compared": 2}


async def test_binary_requests_and_responses_are_compared() -> None:
    places = count()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert (await request.read()).endswith(b"\xff\xfe\0\0"), "not JSON, and sent as it is"
        described = {"name": "o", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
        head = json.dumps({"outputs": [described]}).encode()
        numbers = struct.pack("<2f", 0.2, 0.1 + 0.2 * (next(places) % 4 == 3))
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return web.Response(body=head + numbers, headers=headers, content_type="application/octet-stream")

    async with mirrors(answer, answer) as gate:
        head = b'{"inputs": []}'
        for number in range(1, 3):
            headers = {"Inference-Header-Content-Length": str(len(head))}
            async with await gate.post(head + b"\xff\xfe\0\0", V2, headers=headers) as found:
                assert found.status == 200
            await until_async(lambda wanted=number: sum(results(gate).values()) == wanted)
        assert counted(gate) == {"compared": 2, "disagreed": 1}


async def test_a_session_counts_once() -> None:
    async with mirrors(predicting("cat"), predicting("cat", "dog"), sticky_by="session") as gate:
        await predict(gate, 5, **{"X-Session-Id": "a"})
        await predict(gate, 1, **{"X-Session-Id": "b"})
        assert counted(gate) == {"compared": 2, "disagreed": 1}


@pytest.mark.parametrize(
    ("canary", "result"), [(answering(500), "failed"), (answering(400), "failed"), (silent(), "timeout")]
)
async def test_what_canary_fails_is_no_comparison_and_counts_as_failed(canary: Handler, result: str) -> None:
    async with mirrors(predicting("cat"), canary, mirror_timeout_s=0.2) as gate:
        await predict(gate)
        assert (counted(gate), results(gate)) == ({"failed": 1}, {result: 1})


async def test_a_canary_without_room_has_no_outcome() -> None:
    async with mirrors(predicting("cat"), answering(429)) as gate:
        await predict(gate)
        assert (counted(gate), results(gate)) == ({}, {"refused": 1})


async def test_what_cannot_be_read_of_canary_disagrees_and_of_stable_is_unread() -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.json_response({"prediction": [[1, 2], [3, 4]]})

    async with mirrors(predicting("cat"), odd) as gate:
        await predict(gate)
        assert counted(gate) == {"compared": 1, "disagreed": 1}
    async with mirrors(odd, predicting("cat")) as gate:
        await predict(gate)
        assert (counted(gate), results(gate)) == ({"unread": 1}, {"answered": 1})


async def test_long_responses_are_not_compared_and_of_equal_rows_none_is_cut_by_its_length() -> None:
    half = MAX_BYTES // 2 - 100
    async with mirrors(predicting("a" * half, "a" * (half + 200)), predicting("a" * half)) as gate:
        await predict(gate, 2)
        assert counted(gate) == {"compared": 1, "unread": 1}
    # Canary's may be longer than is read of stable's, and is read.
    async with mirrors(predicting([1.0] * 6000), predicting([1.25] * 6000)) as gate:
        await predict(gate)
        assert counted(gate) == {"compared": 1}


async def test_a_canary_that_sends_megabytes_is_read_to_its_end_and_not_kept() -> None:
    async with mirrors(predicting("cat"), predicting("c" * (3 << 20))) as gate:
        await predict(gate)
        assert counted(gate) == {"compared": 1, "disagreed": 1}


async def test_without_a_tolerance_in_the_table_copies_are_sent_and_not_compared() -> None:
    async with mirrors(predicting("cat"), predicting("dog"), None) as gate:
        await predict(gate, 3)
        assert (counted(gate), results(gate)) == ({}, {"answered": 3})


async def test_grpc_calls_are_compared() -> None:
    async with upstream(inferring(1, 1, 2)) as canary, upstream(inferring(1)) as stable, grpc_gateway() as made:
        made.gate.balancer.publish(mirrored(table(1, ("canary", 0, [canary.url]), ("stable", 100, [stable.url]))))
        for number in range(1, 7):
            assert await made.channel.unary_unary(INFER)(infer()) == inferred(1)
            await until_async(lambda wanted=number: sum(results(made.gate).values()) == wanted)
        assert counted(made.gate) == {"compared": 6, "disagreed": 2}


async def test_a_grpc_call_whose_response_has_no_outputs_is_unread() -> None:
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.balancer.publish(mirrored(table(1, ("canary", 0, [server.url]), ("stable", 100, [server.url]))))
        await made.channel.unary_unary(INFER)(infer())
        await until_async(lambda: results(made.gate))
        assert counted(made.gate) == {"unread": 1}
