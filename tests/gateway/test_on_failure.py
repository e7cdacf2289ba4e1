"""Twin shadows without a twin: canary alone gets the copies, and a pod of stable only those that canary failed."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.twin_shadow import TwinProbes, TwinShadow
from slipway_gateway.judging.outcome import RequestOutcome
from slipway_gateway.judging.pairs import TwinTally
from slipway_gateway.mirror import twins as room
from testkit.until import until_async

from .harness import Gateway, Handler, Upstream, answering, gateway, upstream
from .test_mirror import saying
from .test_twins import BODY, ask, counts, events, results, shadowing, until_results

ALONE = TwinShadow("c", "s", 100, 1000, reference="OnFailure")
GOOD, EMPTY, ERROR = RequestOutcome(), RequestOutcome(("empty",)), RequestOutcome(("errors",))


def is_copy(request: web.Request) -> bool:
    return "X-Slipway-Shadow" in request.headers


def stable(to_clients: Handler, to_copies: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (to_copies if is_copy(request) else to_clients)(request)

    return answer


def copies(server: Upstream) -> list[bytes]:
    return [body for body, request in zip(server.bodies, server.seen, strict=True) if is_copy(request)]


async def run(
    canary: Handler, served: Handler, body: dict[str, Any] = BODY, requests: int = 1, shadow: TwinShadow = ALONE
) -> tuple[dict[str, dict[str, int]], Upstream, Upstream, dict[str, Any]]:
    """Events of the pairs, both servers, and the counts."""
    async with upstream(canary) as tested, upstream(served) as own, gateway(max_attempts=1) as gate:
        gate.balancer.publish(shadowing([tested.url], [own.url], shadow))
        for n in range(requests):
            await ask(gate, body)
            await until_results(gate, n + 1)
        return events(gate), tested, own, counts(gate)


# -- what is sent


@pytest.mark.parametrize("stream", [True, False])
async def test_what_canary_answers_well_costs_stable_nothing(stream: bool) -> None:
    found, canary, served, counted = await run(saying("c"), saying("s"), BODY | {"stream": stream}, 3)
    assert found == {} and len(canary.bodies) == 3 and copies(served) == []
    assert (counted["pairs"], counted["open"], counted["latencies"]) == (3, 0, {})


async def test_what_canary_fails_is_repeated_at_stable_with_the_same_bytes() -> None:
    found, canary, served, _ = await run(answering(500), saying("s"), BODY | {"temperature": 0.7})
    assert found == {"bad": {"canary_only": 1}, "errors": {"canary_only": 1}}
    assert copies(served) == canary.bodies and "seed" in json.loads(canary.bodies[0])


async def test_what_stable_fails_too_is_no_evidence() -> None:
    found, *_ = await run(answering(500), stable(saying("s"), answering(500)))
    assert found == {"bad": {"both": 1}, "errors": {"both": 1}}


async def test_what_stable_failed_for_its_client_and_canary_did_not_counts_for_stable() -> None:
    found, _, served, _ = await run(saying("c"), stable(answering(500), saying("s")))
    assert found == {"bad": {"twin_only": 1}, "errors": {"twin_only": 1}} and copies(served) == []


async def test_kinds_of_failure_are_compared_one_by_one() -> None:
    found, *_ = await run(saying(""), stable(saying("s"), answering(500)))
    assert found == {"bad": {"both": 1}, "empty": {"canary_only": 1}}


async def test_stable_without_room_is_no_outcome_of_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_REPEAT_AFTER_S", 0.01)
    found, _, served, counted = await run(answering(500), stable(saying("s"), answering(429)))
    assert found == {"bad": {"unanswered": 1}, "errors": {"unanswered": 1}} and counted["pairs"] == 1
    assert 1 <= len(copies(served)) <= room.REPEATS


@pytest.mark.finding("F1")
@pytest.mark.parametrize("long", [False, True])
async def test_a_copy_that_ends_canary_is_repeated_at_stable_only_if_it_is_short_and_stable_answered_it(
    long: bool,
) -> None:
    body = BODY | {"prompt": "a" * (100_000 if long else 10)}
    found, canary, served, _ = await run(ends, saying("s"), body)
    assert len(canary.bodies) == 1 and len(copies(served)) == (not long)
    assert found["errors"] == {"unanswered" if long else "canary_only": 1}


async def ends(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


async def test_request_whose_client_left_is_no_pair() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        seen.append(request)
        await until_async(lambda: request.transport is None or request.transport.is_closing())
        return response

    seen: list[web.Request] = []
    async with upstream(saying("c")) as canary, upstream(endless) as served, gateway() as gate:
        gate.balancer.publish(shadowing([canary.url], [served.url], ALONE))
        answer = await gate.post(BODY | {"stream": True}, "/v1/completions")
        await until_async(lambda: bool(seen))
        answer.close()
        await until_results(gate, 1)
        assert results(gate) == {"abandoned": 1} and not canary.seen
        assert counts(gate).get("withheld", {}) == {}


async def test_further_requests_of_a_session_warm_canary_and_are_repeated_nowhere() -> None:
    async with upstream(answering(500)) as canary, upstream(saying("s")) as served, gateway() as gate:
        gate.balancer.publish(shadowing([canary.url], [served.url], ALONE))
        for n in range(3):
            await ask(gate, headers={"X-Session-Id": "one"})
            await until_results(gate, n + 1)
        assert results(gate) == {"paired": 1, "uncounted": 2}
        assert len(canary.bodies) == 3 and len(copies(served)) == 1


async def until_pairs(gate: Gateway, wanted: int) -> None:
    await until_async(lambda: counts(gate).get("pairs", 0) == wanted)


async def test_probes_go_to_both_sides() -> None:
    rule = TwinProbes("/v1/completions", ("one",), 600, 3, 32)
    shadow = TwinShadow("c", "s", 100, 1000, probes=rule, reference="OnFailure")
    async with upstream(saying("c")) as canary, upstream(answering(500)) as served, gateway() as gate:
        gate.balancer.publish(shadowing([canary.url], [served.url], shadow))
        await until_pairs(gate, 3)
        assert len(canary.bodies) == len(copies(served)) == 3
        assert events(gate)["bad"] == {"twin_only": 3}


# -- what counts (pure)


@pytest.mark.parametrize(
    ("canary", "own", "again", "expected"),
    [
        (GOOD, GOOD, None, {}),
        (ERROR, GOOD, GOOD, {"bad": "canary_only", "errors": "canary_only"}),
        (ERROR, ERROR, GOOD, {"bad": "canary_only", "errors": "canary_only"}),
        (ERROR, GOOD, ERROR, {"bad": "both", "errors": "both"}),
        (ERROR, GOOD, None, {"bad": "unanswered", "errors": "unanswered"}),
        (ERROR, EMPTY, GOOD, {"bad": "canary_only", "errors": "canary_only", "empty": "twin_only"}),
        (GOOD, EMPTY, None, {"bad": "twin_only", "empty": "twin_only"}),
    ],
)
def test_each_kind_counts_once_in_a_pair(
    canary: RequestOutcome, own: RequestOutcome, again: RequestOutcome | None, expected: dict[str, str]
) -> None:
    counted = TwinTally.begun()
    counted.begin()
    counted.end_on_failure(canary, own, again)
    shown = {name: {leg: n for leg, n in legs.items() if n} for name, legs in asdict(counted)["events"].items()}
    assert {name: legs for name, legs in shown.items() if legs} == {name: {leg: 1} for name, leg in expected.items()}
    assert (counted.open, counted.pairs) == (0, 1)
