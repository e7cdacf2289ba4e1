"""Predictions of classic models at a gateway: which bin each gets, and what counts of it."""

import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from aiohttp import web

from slipway_gateway.judging.predictions import BINS, LEARNED, OTHER, PredictionBins
from slipway_gateway.routing.table import RouteTable
from tests.support.report import route_reports

from .grpc_gateway import INFER, echo, grpc_gateway, infer, inferring
from .harness import Gateway, Handler, gateway, table, upstream

PREDICT = {"model": "chat", "input": {"features": [1]}}
SIMPLE = "/api/v1/predict"


# -- bins


def bins(first: list[Any]) -> PredictionBins:
    made = PredictionBins()
    assert [made.place(one) for one in first] == [None] * LEARNED
    return made


@pytest.mark.parametrize(("middle", "width"), [(0.5, 0.1), (300.0, 2.0), (-1e9, 1.0), (1e-9, 1e-10)])
def test_numbers_of_any_unit_fill_ten_bins_evenly(middle: float, width: float) -> None:
    chance = Random(3)
    made = bins([chance.gauss(middle, width) for _ in range(LEARNED)])
    places = [made.place(chance.gauss(middle, width)) for _ in range(5000)]
    inner = [places.count(place) for place in range(1, 11)]
    assert sum(inner) > 4800 and max(inner) < 4 * min(inner)
    assert made.place(middle - 1000 * width) == 0 and made.place(middle + 1000 * width) == 11


def test_a_number_that_is_frequent_has_a_bin_of_its_own() -> None:
    made = bins([0.0, 0.0, 0.5, 1.0] * (LEARNED // 4))
    found = [made.place(number) for number in (-1, 0.0, 0.2, 0.5, 0.7, 1.0, 1.1)]
    assert None not in found and sorted(set(found)) == found  # type: ignore[type-var]


@pytest.mark.parametrize("odd", [math.nan, math.inf, "text", 10**19 * 1.0e300])
def test_what_is_no_finite_number_is_other(odd: object) -> None:
    assert bins([Random(1).random() for _ in range(LEARNED)]).place(odd) == OTHER  # type: ignore[arg-type]


def test_labels_have_bins_and_rare_ones_share_one() -> None:
    made = bins([place % 20 if place % 2 else 3 for place in range(LEARNED)])
    assert made.place(3) == made.place("3") != OTHER
    assert made.place(99) == OTHER and made.place(0.5) == OTHER
    assert all(0 <= (made.place(label) or 0) < BINS for label in range(20))


def test_gateways_that_know_the_same_labels_agree_whatever_is_most_frequent() -> None:
    labels = [f"label-{number}" for number in range(16)]
    one, other = (
        bins([Random(seed).choice(labels) if n > 16 else labels[n % 16] for n in range(LEARNED)]) for seed in (1, 2)
    )
    assert [one.place(label) for label in labels] == [other.place(label) for label in labels]
    assert sorted(one.place(label) or 0 for label in labels) == list(range(16))


def test_bins_hold_no_long_text() -> None:
    made = bins(["a" * 60_000] * LEARNED)
    assert all(len(label) <= 256 for label in made._labels or ())
    assert made.place("a" * 50_000) == made.place("a" * 60_000)


# -- a gateway


def predicting(value: object) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"prediction": value, "confidence": 0.9})

    return answer


def compared(made: RouteTable, *, predictions: bool = True) -> RouteTable:
    """The table of one route, with predictions."""
    ((name, route),) = made.routes.items()
    changed = replace(route, predictions=predictions, digest=f"{route.generation:064x}")
    return replace(made, routes={name: changed}, models=dict.fromkeys(made.models, changed))


@contextlib.asynccontextmanager
async def compares(handler: Handler, *, weight: int = 50, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway whose canary predicts what the handler does, and its stable dog."""
    async with upstream(handler) as canary, upstream(predicting("dog")) as stable, gateway(**settings) as gate:
        gate.balancer.publish(
            compared(table(1, ("canary", weight, [canary.url]), ("stable", 100 - weight, [stable.url])))
        )
        yield gate


async def predict(gate: Gateway, times: int = 1, status: int = 200, **headers: str) -> None:
    for _ in range(times):
        async with await gate.post(PREDICT, SIMPLE, headers=headers) as answer:
            assert answer.status == status, await answer.text()


def counted(gate: Gateway) -> dict[str, Any]:
    epochs = route_reports(gate.balancer)["default/chat"]["samples"]
    return {name: one["predictions"] for name, one in epochs[-1]["revisions"].items()}


async def test_predictions_count_after_the_first_ones_made_bins() -> None:
    async with compares(predicting("cat")) as gate:
        await predict(gate, LEARNED)
        assert counted(gate) == {name: {"bins": [], "unread": 0} for name in ("canary", "stable")}
        await predict(gate, 60)
        canary, stable = (counted(gate)[name]["bins"] for name in ("canary", "stable"))
        assert sum(canary) + sum(stable) == 60 and min(sum(canary), sum(stable)) > 0
        assert max(canary) == sum(canary) and max(stable) == sum(stable), "each side predicts one label"
        assert canary.index(max(canary)) != stable.index(max(stable))


async def test_scores_of_a_reranker_are_predictions() -> None:
    chance = Random(7)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"results": [{"index": 0, "relevance_score": chance.random()}]})

    body = {"model": "chat", "query": "a", "documents": ["b"]}
    async with compares(answer, weight=99) as gate:
        for _ in range(LEARNED + 20):
            async with await gate.post(body, "/v1/rerank") as found:
                assert found.status == 200
        sides = counted(gate).values()
        # Stable's response is none of a reranker.
        assert 0 < sum(sum(side["bins"]) for side in sides) <= 20 and sum(side["unread"] for side in sides) < LEARNED


async def test_a_session_counts_once_and_bins_stay_in_the_next_generation() -> None:
    async with compares(predicting("cat"), sticky_by="session") as gate:
        for number in range(LEARNED):
            await predict(gate, **{"X-Session-Id": str(number)})
        await predict(gate, 5, **{"X-Session-Id": "a"})
        assert sum(sum(side["bins"]) for side in counted(gate).values()) == 1
        known = gate.balancer.published.current
        assert known
        ((name, route),) = known.routes.items()
        changed = replace(route, generation=2, digest="2" * 64)
        gate.balancer.publish(replace(known, routes={name: changed}, models=dict.fromkeys(known.models, changed)))
        await predict(gate, **{"X-Session-Id": "a"})
        assert route_reports(gate.balancer)["default/chat"]["samples"][-1]["generation"] == 2
        assert sum(sum(side["bins"]) for side in counted(gate).values()) == 1


async def test_what_cannot_be_read_counts_as_unread_and_errors_count_not_at_all() -> None:
    places = count()

    async def answer(request: web.Request) -> web.StreamResponse:
        if next(places) % 2:
            return web.json_response({"error": "no"}, status=400)
        return web.Response(body=b"\x00\x01", content_type="application/octet-stream")

    async with compares(answer, weight=99) as gate:
        for number in range(6):
            async with await gate.post(PREDICT, SIMPLE, headers={"X-Session-Id": str(number)}) as found:
                await found.read()
        unread = sum(side["unread"] for side in counted(gate).values())
        assert unread == 3 and not any(side["bins"] for side in counted(gate).values())


async def test_grpc_calls_have_predictions_and_one_without_outputs_is_unread() -> None:
    async with upstream(inferring(3)) as server, grpc_gateway() as made:
        made.gate.balancer.publish(compared(table(1, ("canary", 99, [server.url]), ("stable", 1, [server.url]))))
        for _ in range(LEARNED + 5):
            await made.channel.unary_unary(INFER)(infer())
        found = counted(made.gate).values()
        assert sum(sum(side["bins"]) for side in found) == 5 and not any(side["unread"] for side in found)
    async with upstream(echo) as server, grpc_gateway() as made:
        made.gate.balancer.publish(compared(table(1, ("canary", 99, [server.url]), ("stable", 1, [server.url]))))
        await made.channel.unary_unary(INFER)(infer())
        assert sum(side["unread"] for side in counted(made.gate).values()) == 1


async def test_without_predictions_in_the_table_nothing_is_read_and_bins_are_forgotten() -> None:
    async with compares(predicting("cat")) as gate:
        await predict(gate, LEARNED + 10)
        assert sum(sum(side["bins"]) for side in counted(gate).values()) == 10
        known = gate.balancer.published.current
        assert known
        gate.balancer.publish(compared(known, predictions=False))
        await predict(gate, 10)
        assert sum(sum(side["bins"]) for side in counted(gate).values()) == 10
        gate.balancer.publish(compared(known))
        await predict(gate, 10)
        assert sum(sum(side["bins"]) for side in counted(gate).values()) == 10, "new bins are made"
