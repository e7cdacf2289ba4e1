"""Counts for spec.accuracy at a real gateway: late labels, and predictions in bins that all gateways share."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from aiohttp import web

from slipway_contracts import accuracy as contract
from slipway_contracts.accuracy import AccuracyCounting, PublishedBins
from slipway_gateway.balancing.accuracy import FREE_A_DAY, MAX_CLIENTS, MAX_REMEMBERED, Accuracy
from slipway_gateway.feedback.tokens import FeedbackTokens
from slipway_gateway.judging.predictions import LEARNED, OTHER, CommonBins, bins_to_publish
from slipway_gateway.routing.table import Route
from tests.support.report import route_reports

from .harness import Gateway, gateway, table, upstream
from .test_feedback import FEEDBACK, PREDICT, predict, predicting, rate, sample, statuses, with_feedback, write_keys

WEEKS = AccuracyCounting(feedback=True, max_age_seconds=40 * 86_400)
LABELS = PublishedBins(labels=(crc32(b"cat"), crc32(b"dog")))


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return write_keys(tmp_path / "keys.json", {"k1": b"a" * 32})


def serve(gate: Gateway, generation: int, *sides: Any, counting: AccuracyCounting = WEEKS) -> None:
    """The gateway has this table, of one route that is watched and that no analysis compares."""
    made = with_feedback(table(generation, *sides), feedback=False, accuracy=counting)
    gate.balancer.publish(made)


def counts(gate: Gateway) -> contract.AccuracyCounts:
    """As the operator reads the gateway's report."""
    return contract.read(route_reports(gate.balancer)["default/chat"]["accuracy"])


# -- labels


async def test_a_label_weeks_later_counts_for_the_revision_that_answered(keys: str) -> None:
    """At another gateway process, which never served that revision, and under other weights."""
    now_s = 1e9
    async with upstream(predicting("cat")) as old, upstream(predicting("dog")) as new:
        async with gateway(tenant_keys_file=keys) as gate:
            gate.edge.feedback._tokens.clock = lambda: now_s
            serve(gate, 1, ("r1", 100, [old.url]))
            seen = [(await predict(gate, headers={}))[0] for _ in range(3)]
        assert all(seen)
        async with gateway(tenant_keys_file=keys) as gate:
            gate.edge.feedback._tokens.clock = lambda: now_s
            serve(gate, 70, ("r2", 100, [new.url]))
            now_s += 39 * 86_400
            entries = [{"id": token, "label": label} for token, label in zip(seen, ("cat", "dog", "dog"), strict=True)]
            assert await statuses(gate, *entries[:2]) == ["accepted", "accepted"]
            assert counts(gate).labels == {"r1": (1, 1)}
            assert await statuses(gate, *entries[:2]) == ["duplicate", "duplicate"]
            now_s += 2 * 86_400
            assert await statuses(gate, entries[2]) == ["expired"]
            assert counts(gate).labels == {"r1": (1, 1)}
            assert sample(gate, "feedback_total", model="chat", revision="r1", result="wrong") == 1
            names = {"namespace": "default", "name": "chat", "revision": "r1", "outcome": "wrong"}
            assert gate.metrics.registry.get_sample_value("slipway_accuracy_labels_total", names) == 1


async def test_forged_and_foreign_tokens_count_nowhere(keys: str, tmp_path: Path) -> None:
    other = write_keys(tmp_path / "other.json", {"k1": b"b" * 32})
    async with upstream(predicting("cat")) as server, gateway(tenant_keys_file=keys) as gate:
        serve(gate, 1, ("r1", 100, [server.url]))
        token, _ = await predict(gate)
        head, key, statement, mac = token.split(".")
        gate.edge.feedback._tokens = FeedbackTokens(other)
        assert (await rate(gate, {"id": token, "correct": False}))[0] == 404
        gate.edge.feedback._tokens = FeedbackTokens(keys)
        changed = statement.replace(statement[8], "A" if statement[8] != "A" else "B", 1)
        assert (await rate(gate, {"id": f"{head}.{key}.{changed}.{mac}", "correct": False}))[0] == 404
        assert counts(gate).labels == {}


async def test_of_a_conversation_one_label_counts_in_an_hour(keys: str) -> None:
    now_s = 1e9
    async with upstream(predicting("cat")) as server, gateway(tenant_keys_file=keys) as gate:
        gate.edge.feedback._tokens.clock = lambda: now_s
        serve(gate, 1, ("r1", 100, [server.url]))
        seen = [(await predict(gate, headers={"X-Session-Id": "s1"}))[0] for _ in range(4)]
        assert await statuses(gate, *({"id": one, "correct": False} for one in seen)) == ["accepted"] * 4
        assert counts(gate).labels == {"r1": (0, 1)}
        now_s += 3600
        later, _ = await predict(gate, headers={"X-Session-Id": "s1"})
        assert await statuses(gate, {"id": later, "correct": True}) == ["accepted"]
        assert counts(gate).labels == {"r1": (1, 1)}


async def test_a_client_with_one_key_has_each_of_its_labels_counted(keys: str) -> None:
    async with upstream(predicting("cat")) as server, gateway(tenant_keys_file=keys) as gate:
        serve(gate, 1, ("r1", 100, [server.url]))
        seen = [(await predict(gate, headers={"Authorization": "Bearer sk-mine"}))[0] for _ in range(4)]
        entries = [{"id": one, "correct": False} for one in seen]
        assert await statuses(gate, *entries, headers={"Authorization": "Bearer sk-mine"}) == ["accepted"] * 4
        assert counts(gate).labels == {"r1": (0, 4)}


async def test_without_spec_accuracy_there_are_no_tokens_and_no_counts(keys: str) -> None:
    async with upstream(predicting("cat")) as server, gateway(tenant_keys_file=keys) as gate:
        gate.balancer.publish(with_feedback(table(1, ("r1", 100, [server.url])), feedback=False))
        assert (await predict(gate))[0] == ""
        assert route_reports(gate.balancer)["default/chat"]["accuracy"] is None


def test_a_client_has_at_most_as_many_labels_as_all_others_together() -> None:
    now_s = 1e9
    counted, route = Accuracy(lambda: now_s), Route("n/m", "u", "m", accuracy=WEEKS)
    counted.follow({"n/m": route})

    def rate_times(client: bytes, times: int) -> int:
        before = sum(contract.read(counted.report(route)).labels.get("r", ()))
        for _ in range(times):
            counted.rated(route, "r", client, b"", now_s, wrong=True)
        return sum(contract.read(counted.report(route)).labels["r"]) - before

    assert rate_times(b"alone", 1000) == 1000, "the only one has no bound"
    now_s += 86_400
    assert rate_times(b"small", 10) == 10
    assert rate_times(b"large", 5000) == FREE_A_DAY
    assert rate_times(b"small", 300) == FREE_A_DAY - 10 and rate_times(b"large", 5000) == 0
    assert rate_times(b"third", 100) == 100 and rate_times(b"large", 5000) == 100
    for number in range(2 * MAX_CLIENTS):
        counted.rated(route, "r", number.to_bytes(4, "big"), b"", now_s, wrong=True)
    assert len(counted._routes["n/m", "u"].shares[b"label"].by_client) == MAX_CLIENTS


def test_conversations_of_one_model_make_none_of_another_count_twice() -> None:
    counted = Accuracy(lambda: 1e9)
    routes = {name: Route(name, "u", name, accuracy=WEEKS) for name in ("a/m", "b/m")}
    counted.follow(routes)
    counted.rated(routes["a/m"], "r", b"", b"quiet", 1e9, wrong=False)
    for number in range(MAX_REMEMBERED + 10):
        counted._is_first(routes["b/m"], b"label", number.to_bytes(4, "big"), 1e9)
    counted.rated(routes["a/m"], "r", b"", b"quiet", 1e9, wrong=False)
    assert contract.read(counted.report(routes["a/m"])).labels == {"r": (1, 0)}


# -- predictions


async def test_predictions_make_bins_and_are_counted_in_those_that_are_published(keys: str) -> None:
    chance = Random(3)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"prediction": chance.choice(("cat", "cat", "dog"))})

    async with upstream(answer) as server, gateway(tenant_keys_file=keys) as gate:
        learning = AccuracyCounting(revision="r1")
        serve(gate, 1, ("r1", 100, [server.url]), counting=learning)
        for _ in range(LEARNED):
            async with await gate.post(PREDICT, "/api/v1/predict") as response:
                assert response.status == 200 and FEEDBACK not in response.headers
        found = counts(gate)
        assert found.bins == {"r1": LABELS} and found.predictions == {}
        published = replace(learning, bins=LABELS)
        serve(gate, 2, ("r1", 100, [server.url]), counting=published)
        for _ in range(30):
            async with await gate.post(PREDICT, "/api/v1/predict") as response:
                assert response.status == 200
        ((name, tally),) = counts(gate).predictions.items()
        assert name == f"r1/{LABELS.id}" and sum(tally) == 30 == sum(tally[:2]) and tally[0] > tally[1] > 0


def test_bins_of_numbers_are_the_same_at_each_gateway_and_have_all_numbers() -> None:
    chance = Random(5)
    numbers = [chance.gauss(293, 2) for _ in range(LEARNED)]
    published = bins_to_publish(numbers)
    assert contract.is_sound(published) and len(published.cuts) >= 10
    one, other = CommonBins(published), CommonBins(contract.read({"bins": {"r": vars_of(published)}}).bins["r"])
    later = [chance.gauss(293, 2) for _ in range(1000)]
    places = [one.place(number) for number in later]
    assert places == [other.place(number) for number in later]
    assert max(map(places.count, set(places))) < 200, "each has about a tenth"
    assert one.place("a text") == OTHER == one.place(float("nan"))


def vars_of(bins: PublishedBins) -> dict[str, Any]:
    return {"cuts": list(bins.cuts), "labels": list(bins.labels)}


def test_a_label_is_published_as_its_checksum_alone() -> None:
    published = bins_to_publish(["a name of someone"] * LEARNED)
    assert published.labels == (crc32(b"a name of someone"),) and "name" not in str(published)


@pytest.mark.parametrize(
    "reported",
    [
        None, 7, [], {"labels": 3}, {"labels": {"r": [1, 2, 3]}}, {"labels": {"r": [-1, 0]}},
        {"labels": {"r": [True, 0]}}, {"labels": {"a b": [1, 0]}}, {"labels": {"": [1, 0]}},
        {"labels": {"r": [1 << 60, 0]}}, {"predictions": {"r": [0] * 18}}, {"bins": {"r": 3}},
        {"bins": {"r": {"cuts": ["2", "1"], "labels": []}}}, {"bins": {"r": {"cuts": ["x"], "labels": []}}},
        {"bins": {"r": {"cuts": ["nan"], "labels": []}}}, {"bins": {"r": {"cuts": [], "labels": [1, 1]}}},
        {"bins": {"r": {"cuts": ["1"], "labels": [1]}}}, {"bins": {"r": {"cuts": [], "labels": [1 << 40]}}},
    ],
)  # fmt: skip
def test_a_malformed_report_counts_nothing(reported: Any) -> None:
    found = contract.read(reported)
    assert (found.labels, found.predictions, found.bins) == ({}, {}, {})


def test_memory_is_bounded_and_many_revisions_forget_the_first() -> None:
    counted = Accuracy()
    route = Route("n/m", "u", "m", accuracy=WEEKS)
    counted.follow({"n/m": route})
    for number in range(40):
        counted.rated(route, f"r{number}", b"", number.to_bytes(8, "big"), 1e9, wrong=False)
    found = contract.read(counted.report(route))
    assert len(found.labels) == contract.MOST_REVISIONS and "r39" in found.labels
    assert MAX_REMEMBERED * 120 < 16 << 20
    counted.follow({})
    assert counted.report(route) is None
