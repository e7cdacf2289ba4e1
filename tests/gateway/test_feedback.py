"""POST /v1/feedback at a real gateway: what counts, once, and for which tenant."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import HeaderMatch, HeaderRoute, InferenceLogSample
from slipway_gateway.feedback.entries import MAX_BODY_BYTES, MAX_ENTRIES
from slipway_gateway.feedback.memory import CLAIMED, RATED, FeedbackMemory
from slipway_gateway.feedback.tokens import FeedbackTokens, Statement
from slipway_gateway.judging.outcome import AnswerOrigin
from slipway_gateway.routing.table import RouteTable
from slipway_gateway.sharing.counters import CountersAway
from slipway_gateway.telemetry.inference_log import Exchanged, InferenceLog
from tests.support.report import route_reports

from .grpc_gateway import INFER, echo, grpc_gateway, infer
from .harness import Gateway, Handler, gateway, table, upstream
from .tenants import PEPPER, bearer, make_key, tenant

PREDICT = {"model": "chat", "input": {"features": [1]}}
FEEDBACK = "X-Slipway-Feedback"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return write_keys(tmp_path / "keys.json", {"k1": b"a" * 32})


def write_keys(path: Path, keys: dict[str, bytes]) -> str:
    listed = [{"id": name, "key": base64.urlsafe_b64encode(key).decode()} for name, key in keys.items()]
    path.write_text(json.dumps({"keys": listed}))
    return str(path)


def predicting(value: object) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"prediction": value, "confidence": 0.9})

    return answer


def with_feedback(made: RouteTable, **changes: Any) -> RouteTable:
    """The table of one route, with feedback."""
    ((name, route),) = made.routes.items()
    changed = replace(route, digest=f"{route.generation:064x}", **{"feedback": True} | changes)
    return replace(made, routes={name: changed}, models=dict.fromkeys(made.models, changed))


@contextlib.asynccontextmanager
async def rated(keys: str, *, weight: int = 50, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway whose canary predicts cat, and its stable dog."""
    async with (
        upstream(predicting("cat")) as canary,
        upstream(predicting("dog")) as stable,
        gateway(tenant_keys_file=keys, **settings) as gate,
    ):
        made = table(1, ("canary", weight, [canary.url]), ("stable", 100 - weight, [stable.url]))
        gate.balancer.publish(with_feedback(made))
        yield gate


async def predict(gate: Gateway, **options: Any) -> tuple[str, str]:
    """The token of a prediction, and its revision. By itself it is of a session that canary gets at a weight of 99."""
    options.setdefault("headers", {"X-Session-Id": "s1"})
    async with await gate.post(PREDICT, "/api/v1/predict", **options) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers.get(FEEDBACK, ""), answer.headers["X-Slipway-Revision"]


async def rate(gate: Gateway, body: object, **options: Any) -> tuple[int, Any]:
    async with await gate.post(body, "/v1/feedback", **options) as answer:
        return answer.status, await answer.json()


async def statuses(gate: Gateway, *entries: dict[str, Any], **options: Any) -> list[str]:
    status, body = await rate(gate, list(entries), **options)
    assert status == 200, body
    assert [one["index"] for one in body["data"]] == list(range(len(entries)))
    return [one["status"] for one in body["data"]]


def counted(gate: Gateway) -> dict[str, tuple[int, int]]:
    """Sessions with feedback, and those with a wrong answer, by revision."""
    epochs = route_reports(gate.balancer)["default/chat"]["samples"]
    return {name: (one["rated"], one["wrong"]) for name, one in epochs[-1]["revisions"].items()}


def sample(gate: Gateway, name: str, **labels: str) -> float | None:
    return gate.metrics.registry.get_sample_value(f"slipway_gateway_{name}", labels)


# -- what counts


async def test_feedback_counts_for_the_revision_that_answered(keys: str) -> None:
    async with rated(keys) as gate:
        seen = [await predict(gate, headers={}) for _ in range(40)]
        entries = [{"id": token, "correct": revision == "stable"} for token, revision in seen]
        assert await statuses(gate, *entries) == ["accepted"] * 40
        by_revision = {name: sum(revision == name for _, revision in seen) for name in ("canary", "stable")}
        assert counted(gate) == {
            "canary": (by_revision["canary"], by_revision["canary"]), "stable": (by_revision["stable"], 0),
        }  # fmt: skip
        assert min(by_revision.values()) > 0


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"correct": True}, 0), ({"correct": False}, 1), ({"score": 0.5}, 0), ({"score": 0.49}, 1), ({"score": 1}, 0),
        ({"label": "cat"}, 0), ({"label": "dog"}, 1), ({"label": "Cat"}, 1), ({"label": ""}, 1),
        ({"correct": None, "label": "cat"}, 0),
    ],
)  # fmt: skip
async def test_each_kind_of_feedback_counts(keys: str, entry: dict[str, Any], wrong: int) -> None:
    async with rated(keys, weight=99) as gate:
        token, revision = await predict(gate, headers={"X-Session-Id": "s1"})
        assert revision == "canary"
        assert await rate(gate, {"id": token, **entry}) == (200, {"object": "feedback", "status": "accepted"})
        assert counted(gate)["canary"] == (1, wrong)


async def test_a_token_counts_once(keys: str) -> None:
    async with rated(keys, weight=99) as gate:
        token, _ = await predict(gate)
        wrong = {"id": token, "correct": False}
        assert await statuses(gate, wrong, wrong) == ["accepted", "duplicate"]
        assert (await rate(gate, {"id": token, "correct": True}))[1]["status"] == "duplicate"
        assert counted(gate)["canary"] == (1, 1)


async def test_a_session_counts_once(keys: str) -> None:
    async with rated(keys, sticky_by="session") as gate:
        seen = [await predict(gate, headers={"X-Session-Id": "s1"}) for _ in range(4)]
        (revision,) = {revision for _, revision in seen}
        entries = [{"id": token, "correct": place == 0} for place, (token, _) in enumerate(seen)]
        assert await statuses(gate, *entries) == ["accepted"] * 4
        assert counted(gate)[revision] == (1, 1)


async def test_feedback_on_what_weights_did_not_choose_is_accepted_and_not_compared(keys: str) -> None:
    async with rated(keys) as gate:
        ((_, route),) = gate.balancer.published.current.routes.items()
        rule = HeaderRoute("qa", "canary", (HeaderMatch("x-team", exact="qa"),))
        changed = replace(route, header_routes=(rule,))
        known = gate.balancer.published.current
        gate.balancer.publish(replace(known, routes={route.name: changed}, models=dict.fromkeys(known.models, changed)))
        token, revision = await predict(gate, headers={"X-Team": "qa"})
        assert revision == "canary"
        assert await statuses(gate, {"id": token, "correct": False}) == ["accepted"]
        assert counted(gate)["canary"] == (0, 0)
        assert sample(gate, "feedback_total", model="chat", revision="canary", result="wrong") == 1


async def test_without_feedback_in_the_table_no_response_has_a_token(keys: str) -> None:
    async with upstream(predicting("cat")) as server, gateway(tenant_keys_file=keys) as gate:
        gate.route(("canary", 100, [server.url]))
        assert (await predict(gate))[0] == ""


async def test_a_token_of_the_server_does_not_reach_the_client(keys: str) -> None:
    async def forging(request: web.Request) -> web.StreamResponse:
        return web.json_response({"prediction": 1}, headers={FEEDBACK: "fb1.k1.forged.forged"})

    async with upstream(forging) as server, gateway(tenant_keys_file=keys) as gate:
        gate.route(("canary", 100, [server.url]))
        assert (await predict(gate))[0] == ""


async def test_a_grpc_call_has_its_token_in_the_metadata_and_no_label(keys: str) -> None:
    async with upstream(echo) as server, grpc_gateway(tenant_keys_file=keys) as made:
        split = table(1, ("canary", 99, [server.url]), ("stable", 1, [server.url]))
        made.gate.balancer.publish(with_feedback(split))
        call = made.channel.unary_unary(INFER)(infer(), metadata=(("x-session-id", "s1"),))
        await call
        token = dict(await call.trailing_metadata())[FEEDBACK.lower()]
        found = await statuses(made.gate, {"id": token, "label": "cat"}, {"id": token, "correct": False})
        assert found == ["no_label", "accepted"] and counted(made.gate)["canary"] == (1, 1)


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_has_no_token(keys: str, status: int) -> None:
    async def failing(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    async with upstream(failing) as server, gateway(tenant_keys_file=keys) as gate:
        gate.balancer.publish(with_feedback(table(1, ("canary", 100, [server.url]))))
        async with await gate.post(PREDICT, "/api/v1/predict") as answer:
            assert answer.status == status and FEEDBACK not in answer.headers


# -- what does not count


async def test_invented_changed_and_foreign_tokens_are_unknown(keys: str) -> None:
    async with rated(keys, weight=99) as gate:
        token, _ = await predict(gate)
        head, key, statement, mac = token.split(".")
        swapped = statement.replace(statement[10], "A" if statement[10] != "A" else "B", 1)
        unknown = [
            "x", "fb1", "fb1.k1..", "é", "x" * 4000, f"{head}.k2.{statement}.{mac}", f"{head}.{key}.{swapped}.{mac}",
            f"{head}.{key}.{statement}.{mac[:-2]}", f"fb2.{key}.{statement}.{mac}", f"{token}.", f"{token}=",
        ]  # fmt: skip
        assert await statuses(gate, *({"id": one, "correct": False} for one in unknown)) == ["unknown"] * len(unknown)
        for one in unknown:
            status, body = await rate(gate, {"id": one, "correct": False})
            assert (status, body["error"]["code"], body["error"]["param"]) == (404, "feedback_not_found", "id")
        assert counted(gate)["canary"] == (0, 0)


async def test_a_token_of_another_tenant_is_unknown(keys: str) -> None:
    mine, other = make_key("mine01"), make_key("other1")
    tenants = (tenant("team-a", mine), tenant("team-b", other))
    async with rated(keys, weight=99, tenants=tenants, pepper=PEPPER, auth_mode="required") as gate:
        token, _ = await predict(gate, headers=bearer(mine))
        entry = {"id": token, "correct": False}
        assert (await rate(gate, entry, headers=bearer(other)))[0] == 404
        assert (await rate(gate, entry))[0] == 401
        assert (await rate(gate, entry, headers=bearer(mine)))[1]["status"] == "accepted"


async def test_feedback_expires_with_its_age_and_with_its_generation(keys: str) -> None:
    async with rated(keys, weight=99, feedback_max_age_s=100) as gate:
        now_s = 1e9
        tokens = FeedbackTokens(keys, lambda: now_s)
        gate.edge.feedback._tokens = tokens
        ((_, route),) = gate.balancer.published.current.routes.items()

        def made(generation: int = 1, digest: str = route.digest, name: str = route.name) -> dict[str, Any]:
            origin = AnswerOrigin(name, generation, digest, "canary")
            return {"id": tokens.make(origin, "canary", "", "", None), "correct": False}

        now, later = made(), made()
        others = [made(generation=2), made(digest="f" * 64), made(name="default/gone")]
        now_s += 99
        assert await statuses(gate, now, *others) == ["accepted", "expired", "expired", "expired"]
        now_s += 2
        assert await statuses(gate, later) == ["expired"]
        now_s -= 300
        assert await statuses(gate, later) == ["expired"], "it is from the future"
        assert counted(gate)["canary"] == (1, 1)


async def test_feedback_on_a_former_generation_counts_there_while_it_is_reported(keys: str) -> None:
    async with rated(keys, weight=99) as gate:
        seen = [(await predict(gate, headers={"X-Session-Id": name}))[0] for name in ("s1", "s2")]
        made = gate.balancer.published.current
        ((_, route),) = made.routes.items()
        for generation in range(2, 6):
            changed = replace(route, generation=generation, digest=f"{generation:064x}")
            gate.balancer.publish(
                replace(made, routes={route.name: changed}, models=dict.fromkeys(made.models, changed))
            )
            if generation == 4:
                assert await statuses(gate, {"id": seen[0], "correct": False}) == ["accepted"]
                first = route_reports(gate.balancer)["default/chat"]["samples"][0]
                assert first["generation"] == 1 and first["revisions"]["canary"]["wrong"] == 1
        assert await statuses(gate, {"id": seen[1], "correct": False}) == ["expired"]


async def test_a_label_of_a_response_without_one_counts_nothing(keys: str) -> None:
    async with upstream(predicting(2.5)) as server, gateway(tenant_keys_file=keys) as gate:
        gate.balancer.publish(with_feedback(table(1, ("canary", 50, [server.url]), ("stable", 50, [server.url]))))
        token, revision = await predict(gate)
        assert await statuses(gate, {"id": token, "label": "2.5"}, {"id": token, "correct": True}) == [
            "no_label", "accepted",
        ]  # fmt: skip
        assert counted(gate)[revision] == (1, 0)


# -- bodies


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None), ({"id": "x"}, "correct"), ({"id": "x", "correct": True, "score": 1}, "correct"),
        ({"id": 3, "correct": True}, "id"), ({"id": "", "correct": True}, "id"),
        ({"id": "x", "correct": "yes"}, "correct"), ({"id": "x", "score": 1.5}, "score"),
        ({"id": "x", "score": -0.1}, "score"), ({"id": "x", "label": []}, "label"),
        ({"id": "x", "label": "a" * 1025}, "label"), ({"id": "x", "correct": True, "more": 1}, None),
        ([], None), ([{"id": "x", "correct": True}, {"id": "y", "score": 2}], "[1].score"),
        ([{"id": "x", "correct": True}, {"id": "y"}], "[1]"), ([3], "[0]"), ("x", None), (b"null", None),
        ([{"id": "x", "correct": True}] * (MAX_ENTRIES + 1), None),
    ],
)  # fmt: skip
async def test_a_bad_body_names_the_field_and_counts_nothing(keys: str, body: object, param: str | None) -> None:
    async with gateway(tenant_keys_file=keys) as gate:
        status, answer = await rate(gate, body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        found = answer["error"]["param"]
        assert found == param or (param == "[0]" and found == "[...]") or (param or "") in answer["error"]["message"]


async def blanks() -> AsyncIterator[bytes]:
    for _ in range(MAX_BODY_BYTES // 65_536 + 1):
        yield b" " * 65_536


async def test_what_is_no_json_and_what_is_too_long_is_refused(keys: str) -> None:
    async with gateway(tenant_keys_file=keys) as gate:
        for body in (b"", b"{", b"\xff", b'[{"id'):
            status, answer = await rate(gate, body)
            assert (status, answer["error"]["code"]) == (400, "invalid_json"), body[:20]
        async with await gate.post(path="/v1/feedback", json=None, data=blanks()) as answer:
            assert answer.status == 413
        async with gate.client.get(gate.url + "/v1/feedback") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_a_request_counts_once_whatever_it_has_in_it(keys: str) -> None:
    async with rated(keys, weight=99) as gate:
        token, _ = await predict(gate)
        await statuses(gate, {"id": token, "correct": True}, {"id": token, "correct": True}, {"id": "x", "score": 1})
        assert sample(gate, "requests_total", model="unknown", revision="", code="200", outcome="ok") == 1
        results = {"correct": 1, "duplicate": 1}
        for result, count in results.items():
            assert sample(gate, "feedback_total", model="chat", revision="canary", result=result) == count
        assert sample(gate, "feedback_total", model="unknown", revision="", result="unknown") == 1


# -- the release's keys


async def test_another_gateway_of_the_release_counts_it_and_one_of_another_release_does_not(
    keys: str, tmp_path: Path
) -> None:
    rotated = write_keys(tmp_path / "rotated.json", {"k2": b"b" * 32, "k1": b"a" * 32})
    other = write_keys(tmp_path / "other.json", {"k1": b"c" * 32})
    async with rated(keys, weight=99) as gate, rated(rotated, weight=99) as second, rated(other, weight=99) as foreign:
        entry = {"id": (await predict(gate))[0], "correct": False}
        assert await statuses(second, entry) == ["accepted"] and counted(second)["canary"] == (1, 1)
        assert await statuses(foreign, entry) == ["unknown"]


async def test_without_keys_there_are_no_tokens() -> None:
    async with rated("", weight=99) as gate:
        assert (await predict(gate))[0] == ""
        assert (await rate(gate, {"id": "fb1.k1.x.x", "correct": True}))[0] == 404


def test_a_token_names_neither_tenant_nor_session(keys: str) -> None:
    made = FeedbackTokens(keys).make(AnswerOrigin("n/m", 1, "ab" * 32, "r"), "r", "team-a", "user-7", "cat")
    statement = made.split(".")[2]
    written = base64.urlsafe_b64decode(statement + "=" * (-len(statement) % 4))
    assert b"team-a" not in written and b"user-7" not in written and b"cat" not in written
    assert FeedbackTokens(keys).read(made, "team-a").states.route == "n/m"
    assert isinstance(FeedbackTokens(keys).read(made, "team-a").states, Statement)


# -- memory


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    memory = FeedbackMemory(limit=100)
    names = [place.to_bytes(4, "big") for place in range(1000)]
    assert all(memory.first("n/m", name, CLAIMED) for name in names) and len(memory) == 100
    assert not any(memory.first("n/m", name, CLAIMED) for name in names[-100:])
    assert memory.first("n/m", names[-1], RATED) and not memory.first("n/m", names[-1], RATED)
    assert memory.first("n/m", names[0], CLAIMED), "it was forgotten"
    memory.forget("n/m", names[-1])
    assert memory.first("n/m", names[-1], CLAIMED)


class Logged(InferenceLog):
    """An inference log that keeps what would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[object] = []
        self.ids: list[str] = []

    @property
    def is_on(self) -> bool:
        return True

    def inferred(self, found: Exchanged, *_: object) -> None:
        self.ids.append(found.feedback_id)

    def rated(self, owner: str, feedback_id: str, correct: object, score: object, label: object) -> None:
        assert not self.ids or feedback_id in self.ids
        self.labels.append(label if label is not None else correct)


async def test_feedback_is_logged_only_of_routes_that_ask_for_it_and_tenants_that_allow_it(keys: str) -> None:
    def sender(capture: str) -> Any:
        return SimpleNamespace(name="", tenant=SimpleNamespace(content_capture=capture))

    async with rated(keys) as gate:
        log = gate.edge.feedback._inference_log = Logged()
        bodies = [json.dumps({"id": (await predict(gate))[0], "correct": bool(n % 2)}).encode() for n in range(4)]
        assert json.loads(await gate.edge.feedback.rate(bodies[0], None))["status"] == "accepted"
        assert log.labels == [], "the route has no inference log"
        table = gate.balancer.published.current
        assert table
        for route in table.routes.values():
            object.__setattr__(route, "inference_log", InferenceLogSample(100))
        for body, who in zip(bodies[1:], (sender("None"), sender("All"), None), strict=True):
            assert json.loads(await gate.edge.feedback.rate(body, who))["status"] == "accepted"
        assert log.labels == [False, True]


@contextlib.asynccontextmanager
async def logging_gateway(keys: str, percentage: int, **settings: Any) -> AsyncIterator[tuple[Gateway, Logged]]:
    """A gateway with an inference log and without an analysis."""
    async with upstream(predicting(0.25)) as stable, gateway(tenant_keys_file=keys, **settings) as gate:
        made, rule = table(1, ("stable", 100, [stable.url])), InferenceLogSample(percentage)
        gate.balancer.publish(with_feedback(made, feedback=False, inference_log=rule))
        log = gate.edge._proxy._inference_log = gate.edge.feedback._inference_log = Logged()
        yield gate, log


async def test_feedback_on_a_logged_response_is_logged_while_no_analysis_compares_it(keys: str) -> None:
    async with logging_gateway(keys, 100, feedback_max_age_s=100) as (gate, log):
        tokens = [(await predict(gate))[0] for _ in range(3)]
        assert all(tokens) and len(set(log.ids)) == 3
        # The gateway knows no label of a prediction that is a number with decimals.
        entries: list[dict[str, Any]] = [{"id": tokens[0], "label": "7"}, {"id": tokens[1], "correct": False}]
        assert await statuses(gate, *entries, *entries) == ["accepted"] * 2 + ["duplicate"] * 2
        assert log.labels == ["7", False]
        labels = {"model": "chat", "revision": "stable"}
        assert [sample(gate, "feedback_total", **labels, result=one) for one in ("no_label", "wrong")] == [1, 1]
        gate.edge.feedback._tokens.clock = lambda: 4e9
        assert await statuses(gate, {"id": tokens[2], "correct": True}) == ["expired"]
        assert log.labels == ["7", False]


async def test_what_the_inference_log_does_not_take_has_no_token(keys: str) -> None:
    async with logging_gateway(keys, 0) as (gate, log):
        assert await predict(gate) == ("", "stable") and log.ids == []
    mine, other = make_key("mine01"), make_key("other1")
    tenants = (tenant("team-a", mine), replace(tenant("team-b", other), content_capture="InferenceLog"))
    async with logging_gateway(keys, 100, tenants=tenants, pepper=PEPPER, auth_mode="required") as (gate, log):
        assert await predict(gate, headers=bearer(mine)) == ("", "stable")
        token, _ = await predict(gate, headers=bearer(other))
        assert log.ids == ["", FeedbackTokens(keys).id_of(token)]
        assert (await rate(gate, {"id": token, "correct": True}, headers=bearer(other)))[1]["status"] == "accepted"
        assert log.labels == [True]


async def test_a_client_that_leaves_during_the_claim_may_send_it_again(keys: str) -> None:
    async with rated(keys, weight=99) as gate:
        body = json.dumps({"id": (await predict(gate))[0], "correct": False}).encode()
        gate.edge.feedback.shared = Claims(asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await gate.edge.feedback.rate(body, None)
        gate.edge.feedback.shared = Claims(CountersAway())
        assert json.loads(await gate.edge.feedback.rate(body, None))["status"] == "accepted", "once at this gateway"
        gate.edge.feedback.shared = Claims()
        assert json.loads(await gate.edge.feedback.rate(body, None))["status"] == "duplicate"
        assert counted(gate)["canary"] == (1, 1)


class Claims:
    """Shared claims that fail in one way, or know every token already."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self._failure = failure

    async def claim(self, ids: Sequence[bytes], seconds: float) -> list[bool]:
        if self._failure:
            raise self._failure
        return [False] * len(ids)

    async def close(self) -> None:
        """Nothing is open."""
