"""Scorers of pairs: what they get, what counts of what they return, and when nothing is sent to them."""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.counters import ScoreCounts, zero
from slipway_contracts.tenants import SCORERS
from slipway_contracts.twin_shadow import TwinScorer, TwinShadow
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.mirror.scorer import PairScorer
from slipway_gateway.scorers import ballot
from slipway_gateway.scorers.ballot import MAX_TEXT_BYTES, PairScore
from slipway_gateway.scorers.client import ScorerClient
from slipway_gateway.scorers.hosts import ScorerHosts
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, Handler, Upstream, answering, upstream
from .loopback import Loopback
from .tenants import PEPPER, bearer, make_key, tenant
from .test_mirror import saying
from .test_twins import BODY, ask, counts, results, twins, until_results

HOST, CHAT = "scorer.test", "/v1/chat/completions"
GREEDY = BODY | {"prompt": "Count: ", "temperature": 0}


def rule(port: int, percentage: int = 100, timeout_s: int = 30) -> TwinScorer:
    return TwinScorer(f"http://{HOST}:{port}/score", percentage, 100, timeout_s)


def preferring(text: str, others: Any = 0.2, own: Any = 0.9) -> Handler:
    """Gives the response with this text the score `own`."""

    async def score(request: web.Request) -> web.StreamResponse:
        answers = (await request.json())["answers"]
        return web.json_response({"scores": [own if answer == text else others for answer in answers]})

    return score


def returning(result: Any, status: int = 200) -> Handler:
    async def score(request: web.Request) -> web.StreamResponse:
        return web.json_response(result, status=status)

    return score


@contextlib.asynccontextmanager
async def scored(
    scorer: Handler,
    canary: Handler | None = None,
    stable: Handler | None = None,
    *,
    percentage: int = 100,
    most: int = 8,
    hosts: Iterable[str] = (HOST,),
    **settings: Any,
) -> AsyncIterator[tuple[Gateway, Upstream]]:
    """A gateway with a scorer of its own name at this machine."""
    async with upstream(scorer) as rating:
        port = int(rating.url.rpartition(":")[2])
        shadow = TwinShadow("c", "s", 100, 1000, scorer=rule(port, percentage))
        async with twins(canary or saying("c"), stable or saying("s"), shadow, **settings) as (gate, *_):
            found = gate.edge._forwarding.twins
            client = ScorerClient(ScorerHosts(tuple(hosts), loopback=True), Loopback())
            found.scorer = PairScorer(client, most, found._memory, found._busy)
            yield gate, rating


def scores(gate: Gateway) -> dict[str, int]:
    return {name: count for name, count in counts(gate)["scores"].items() if count}


def scorer_results(gate: Gateway) -> dict[str, int]:
    samples = (one for family in gate.metrics.registry.collect() for one in family.samples)
    return {one.labels["result"]: int(one.value) for one in samples if one.name == "slipway_gateway_scorer_pairs_total"}


# -- what is sent, and what counts


@pytest.mark.parametrize(("favoured", "leg"), [("s", "canary_only"), ("c", "twin_only")])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_response_with_the_lower_score_is_counted_by_leg(favoured: str, leg: str, stream: bool) -> None:
    async with scored(preferring(favoured)) as (gate, rating):
        for _ in range(8):
            await ask(gate, GREEDY | {"stream": stream})
        await until_results(gate, 8)
        canary, twin = (900, 200) if favoured == "c" else (200, 900)
        means = {"canary_thousandths": 8 * canary, "twin_thousandths": 8 * twin}
        assert scores(gate) == {"scored": 8, "rated": 8, leg: 8} | means
        assert scorer_results(gate) == {"scored": 8} and len(rating.seen) == 8
        assert results(gate) == {"paired": 8} and counts(gate)["pairs"] == 8
        assert gate.budget.used_bytes == 0, "what was held for calls is given back"


async def test_a_call_has_the_prompt_and_both_responses_and_nothing_else() -> None:
    async with scored(preferring("s")) as (gate, rating):
        await ask(gate, GREEDY | {"metadata": {"secret": "x"}, "user": "someone"}, headers={"X-Trace": "1"})
        messages = [{"role": "user", "content": "Hi"}]
        await ask(gate, {"model": "chat", "messages": messages, "temperature": 0, "user": "other"}, CHAT)
        await until_results(gate, 2)
        calls = {call["request"]["path"]: call for call in map(json.loads, rating.bodies)}
        text, chat = calls["/v1/completions"], calls[CHAT]
        assert text.keys() == {"version", "id", "model", "request", "answers"} and text["model"] == "chat"
        assert sorted(text["answers"]) == ["c", "s"]
        assert text["request"] == {"path": "/v1/completions", "prompt": "Count: "}
        assert chat["request"] == {"path": CHAT, "messages": messages}
        sent = {name.lower() for request in rating.seen for name in request.headers} - {"connection"}
        assert sent == {"host", "content-type", "content-length", "accept", "accept-encoding", "user-agent"}


async def test_the_order_of_the_responses_is_chance() -> None:
    async with scored(preferring("s")) as (gate, rating):
        for _ in range(64):
            await ask(gate, GREEDY)
        await until_results(gate, 64)
        first = [json.loads(body)["answers"][0] for body in rating.bodies]
        # One order alone has a chance of 2 in 2^64.
        assert set(first) == {"c", "s"} and scores(gate)["canary_only"] == 64


async def test_equal_responses_are_a_tie_that_needs_no_call() -> None:
    async with scored(preferring("s"), saying("same"), saying("same")) as (gate, rating):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert scores(gate) == {"scored": 1} and not rating.seen and scorer_results(gate) == {"equal": 1}


# -- what has no result


@pytest.mark.parametrize(
    ("scorer", "found"),
    [
        (returning({"scores": [0.5, 1.5]}), "invalid"),
        (returning({"scores": [0.5]}), "invalid"),
        (returning({"preference": "canary"}), "invalid"),
        (returning({}), "invalid"),
        (returning("x" * 5000), "invalid"),
        (returning({"scores": [0.1, 0.2]}, 201), "invalid"),
        (answering(500), "invalid"),
        (answering(302), "invalid"),
    ],
)
async def test_a_failure_of_the_scorer_is_no_failure_of_either_side(scorer: Handler, found: str) -> None:
    async with scored(scorer) as (gate, _):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert scores(gate) == {found: 1} and scorer_results(gate) == {found: 1}
        events = counts(gate)["events"].values()
        assert counts(gate)["pairs"] == 1 and not any(count for event in events for count in event.values())


async def test_a_scorer_that_is_gone_gives_no_result() -> None:
    async with scored(preferring("s")) as (gate, rating):
        await rating.stop()
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert scores(gate) == {"unanswered": 1}


@pytest.mark.parametrize("bad", [answering(500), saying("")])
async def test_a_pair_with_a_bad_leg_is_not_scored(bad: Handler) -> None:
    async with scored(preferring("s"), bad) as (gate, rating):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert scores(gate) == {} and not rating.seen


async def test_a_response_that_is_too_long_to_rate_does_not_hide() -> None:
    long = "word and another word " * (MAX_TEXT_BYTES // 20)
    async with scored(preferring("s"), saying(long)) as (gate, rating):
        await ask(gate, GREEDY | {"logit_bias": {"1": 1}})
        await until_results(gate, 1)
        assert scores(gate) == {"invalid": 1} and not rating.seen


# -- what is not sent


async def test_a_host_that_no_administrator_listed_gets_nothing() -> None:
    async with scored(preferring("s"), hosts=("other.test", "*.scorer.test")) as (gate, rating):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert scores(gate) == {"blocked": 1} and not rating.seen


async def test_without_a_list_no_host_gets_anything() -> None:
    async with scored(preferring("s"), hosts=()) as (gate, rating):
        assert not gate.edge._forwarding.twins.scorer._client.may_call(f"http://{HOST}/")
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert scores(gate) == {"blocked": 1} and not rating.seen


async def test_of_a_tenant_contents_are_sent_only_with_its_consent() -> None:
    keys = [make_key("allowed1"), make_key("silent11")]
    known: list[KnownTenant] = [
        replace(tenant("allowed", keys[0]), content_capture=SCORERS),
        tenant("silent", keys[1]),
    ]
    async with scored(preferring("s"), tenants=known, pepper=PEPPER) as (gate, rating):
        for key in keys:
            await ask(gate, GREEDY, headers=bearer(key))
        await until_results(gate, 2)
        assert counts(gate)["pairs"] == 2 and len(rating.seen) == 1 and scores(gate)["scored"] == 1


@pytest.mark.parametrize("fields", [{"prompt": "x" * (MAX_TEXT_BYTES + 1)}, {"input": "x"}])
async def test_a_long_prompt_and_what_has_no_text_is_not_scored(fields: dict[str, Any]) -> None:
    path = "/v1/embeddings" if "input" in fields else "/v1/completions"
    async with scored(preferring("s")) as (gate, rating):
        await ask(gate, {"model": "chat", "temperature": 0} | fields, path)
        await until_results(gate, 1)
        assert scores(gate) == {} and not rating.seen and counts(gate)["pairs"] == 1


async def test_calls_are_bounded_and_hold_no_client_and_no_pair_open() -> None:
    release, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(request: web.Request) -> web.StreamResponse:
        begun.release()
        await release.wait()
        return web.json_response({"preference": "tie"})

    async with scored(slow, most=2) as (gate, rating):
        for _ in range(2):
            await ask(gate, GREEDY)
        for _ in range(2):
            await begun.acquire()
        await ask(gate, GREEDY)
        await until_async(lambda: scores(gate).get("dropped") == 1)
        assert scores(gate) == {"open": 2, "dropped": 1} and len(rating.seen) == 2
        assert counts(gate)["pairs"] == 3 and counts(gate)["open"] == 0
        release.set()
        await until_results(gate, 3)
        assert scores(gate) == {"dropped": 1, "scored": 2}


async def test_a_gateway_that_ends_waits_for_no_scorer() -> None:
    begun = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        begun.set()
        await until_async(lambda: request.transport is None or request.transport.is_closing())
        return web.json_response({"preference": "tie"})

    async with scored(slow) as (gate, _):
        await ask(gate, GREEDY)
        await begun.wait()
        await gate.edge.stop_mirroring()
        assert results(gate) == {"paired": 1} and scores(gate) == {} and scorer_results(gate) == {"cancelled": 1}


async def test_contents_are_in_no_log_and_no_report(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="slipway_gateway")
    async with scored(returning({"scores": ["private words"]}), saying("private words"), saying("own words")) as (
        gate,
        _,
    ):
        await ask(gate, GREEDY | {"prompt": "private prompt"})
        await until_results(gate, 1)
        report = json.dumps(route_reports(gate.balancer))
        assert scores(gate) == {"invalid": 1}
        assert not [word for word in ("private", "own words", HOST) if word in report or word in caplog.text]


async def test_a_bug_in_a_comparison_leaves_the_pair_counted_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ballot, "prompt_of", fail)
    async with scored(preferring("s")) as (gate, _):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert (counts(gate)["pairs"], counts(gate)["open"]) == (1, 0) and results(gate) == {"paired": 1}
        assert "responses of a pair could not be compared" in caplog.text


# -- results (pure)


@pytest.mark.parametrize(
    ("written", "swapped", "found"),
    [
        ({"scores": [0.2, 0.9]}, False, PairScore(1, (0.2, 0.9))),
        ({"scores": [0.2, 0.9]}, True, PairScore(-1, (0.9, 0.2))),
        ({"scores": [0.5, 0.6]}, False, PairScore(0, (0.5, 0.6))),
        ({"scores": [0.5, 0.61]}, False, PairScore(1, (0.5, 0.61))),
        ({"scores": [0, 1]}, False, PairScore(1, (0.0, 1.0))),
        ({"preference": 0}, False, PairScore(-1)),
        ({"preference": 0}, True, PairScore(1)),
        ({"preference": 1}, False, PairScore(1)),
        ({"preference": "tie"}, True, PairScore(0)),
        ({"preference": "tie", "scores": [0.1, 0.2]}, False, None),
        ({"preference": True}, False, None),
        ({"preference": 2}, False, None),
        ({"preference": "0"}, False, None),
        ({"scores": [-0.1, 0.2]}, False, None),
        ({"scores": [0.1, 1.1]}, False, None),
        ({"scores": [True, False]}, False, None),
        ({"scores": {"0": 1, "1": 0}}, False, None),
        ([0.1, 0.2], False, None),
        ({}, False, None),
    ],
)
def test_a_result_is_two_scores_or_a_preference(written: Any, swapped: bool, found: PairScore | None) -> None:
    assert ballot.read(json.dumps(written).encode(), swapped=swapped, margin=0.1) == found


@pytest.mark.parametrize(
    "response", [b"", b"{", b"\xff", b"[" * 4000, b'{"scores": [NaN, 0]}', b'{"scores": [1e999, 0]}']
)
def test_what_is_no_json_is_no_result(response: bytes) -> None:
    assert ballot.read(response, swapped=False, margin=0.0) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"prompt": 1}', b'{"messages": null}', b"\xff", b"[" * 4000])
def test_a_request_without_a_prompt_is_not_scored(body: bytes) -> None:
    assert ballot.prompt_of("/v1/completions", body) is None


def test_sums_of_scores_are_whole_thousandths() -> None:
    counted = zero(ScoreCounts)
    for _ in range(1000):
        counted.count(0, (0.1234, math.nextafter(1, 0)))
    assert (counted.rated, counted.canary_thousandths, counted.twin_thousandths) == (1000, 123_000, 1_000_000)


def test_a_prompt_that_is_nested_too_deeply_to_be_written_is_no_error() -> None:
    prompt: Any = []
    for _ in range(100_000):
        prompt = [prompt]
    assert ballot.write("id", "chat", {"path": "/", "prompt": prompt}, ("a", "b")) is None
