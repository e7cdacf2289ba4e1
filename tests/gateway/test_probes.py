"""Probes: an owner's prompts as pairs at a canary pod and its twin, where clients give too few."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from slipway_contracts.twin_shadow import TwinProbes, TwinShadow
from slipway_gateway.balancing.published_table import PublishedTable
from slipway_gateway.mirror.probes import Probes, ProbeSchedule, make_probe
from slipway_gateway.routing.routes_file import parse
from slipway_gateway.routing.table import Problem, Route, RouteTable, parse_route
from slipway_gateway.upstream.exchange import UpstreamRequest
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, answering, upstream
from .test_mirror import saying
from .test_twins import ask, counts, events, results, shadowing, twins, until_results

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RULE = TwinProbes(CHAT, ("one", "two", "three"), 600, 5, 32)
SHADOW = TwinShadow("c", "s", 100, 1000, probes=RULE)


def probing(**changes: Any) -> TwinShadow:
    return replace_rule(SHADOW, **changes)


def replace_rule(shadow: TwinShadow, **changes: Any) -> TwinShadow:
    assert shadow.probes
    return replace(shadow, probes=replace(shadow.probes, **changes))


# -- when one is due (pure)


@pytest.mark.parametrize(
    ("last_s", "sent", "now_s", "expected"),
    [(10.0, 0, 10.0, 0.1), (10.0, 4, 10.06, 0.04), (10.0, 0, 10.1, 0.0), (10.0, 0, 99.0, 0.0), (10.0, 5, 99.0, None)],
)
def test_the_next_probe_is_due_one_interval_after_the_last_pair_until_all_are_sent(
    last_s: float, sent: int, now_s: float, expected: float | None
) -> None:
    found = ProbeSchedule(("a",), 0, last_s, sent).wait_s(RULE, now_s)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_prompts_take_turns() -> None:
    schedule = ProbeSchedule(("a",), 2, 0.0)
    found = []
    for _ in range(4):
        found.append(schedule.prompt(RULE))
        schedule.sent += 1
    assert found == ["three", "one", "two", "three"]


def test_a_probe_is_a_stream_with_a_limit_of_tokens_that_excuses_truncated_text() -> None:
    route = Route("default/chat", "u1", "org/chat")
    for path, field in ((CHAT, {"messages": [{"role": "user", "content": "one"}]}), (TEXT, {"prompt": "one"})):
        made = make_probe(route, replace(RULE, path=path), "one", "abc")
        wanted = {"model": "org/chat", **field, "max_tokens": 32, "stream": True}
        assert (made.path, json.loads(made.body), made.stream) == (path, wanted, True)
        assert made.excused == {"truncated"} and made.route == "default/chat" and made.meter is None


class Recorded:
    """Routes at a moment, and what was sent then."""

    def __init__(self, shadow: TwinShadow | None = SHADOW, *, sends: bool = True) -> None:
        self.now_s, self.sends = 100.0, sends
        self.bodies: list[str] = []
        self.published = PublishedTable()
        self.probes = Probes(self.published, lambda: self.now_s, self._send)
        self.route = Route("default/chat", "u1", "chat", twin_shadow=shadow, salt="one")
        self.publish()

    def publish(self, **changes: Any) -> None:
        self.route = replace(self.route, **changes)
        self.published.publish(RouteTable({self.route.name: self.route}, {}, {}))

    def run(self, seconds: float) -> None:
        """As often as it wants to, and as the loop does."""
        ends_s = self.now_s + seconds
        while (wait_s := self.probes.send_due()) + self.now_s <= ends_s:
            self.now_s += wait_s
        self.now_s = ends_s

    def _send(self, route: Route, shadow: TwinShadow, probe: UpstreamRequest, request_id: str) -> bool:
        self.bodies.append(json.loads(probe.body)["messages"][0]["content"])
        return self.sends


def test_probes_have_a_rate_and_a_total() -> None:
    slow = Recorded(probing(pairs_per_minute=60, max_pairs=100))
    slow.run(10.5)
    assert len(slow.bodies) == 10 and set(slow.bodies) == set(RULE.prompts)
    few = Recorded(probing(pairs_per_minute=600, max_pairs=5))
    few.run(60)
    assert len(few.bodies) == 5


def test_pairs_of_clients_take_the_place_of_probes() -> None:
    found = Recorded(probing(pairs_per_minute=60, max_pairs=100))
    found.probes.send_due()
    for _ in range(20):
        found.run(0.9)
        found.probes.paired(found.route)
    assert found.bodies == []
    found.run(2.5)
    assert len(found.bodies) == 2


def test_probe_that_is_withheld_waits_and_counts_for_no_total() -> None:
    found = Recorded(probing(max_pairs=3), sends=False)
    found.run(1.05)
    assert len(found.bodies) == 10 and len(set(found.bodies)) == 1


def test_a_probe_that_fails_inside_of_the_gateway_ends_no_probes_of_other_routes() -> None:
    found = Recorded()
    broken = replace(found.route, name="a/broken", model="\ud800")  # no text that JSON can have
    found.published.publish(RouteTable({broken.name: broken, found.route.name: found.route}, {}, {}))
    found.run(1.05)
    assert len(found.bodies) == 5


@pytest.mark.parametrize("ends", [{"twin_shadow": None}, {"asleep": True}, {"twin_shadow": TwinShadow("c", "s", 9, 9)}])
def test_probes_end_with_the_twin_shadow_and_in_sleep(ends: dict[str, Any]) -> None:
    found = Recorded(probing(max_pairs=1000))
    found.run(1.05)
    sent = len(found.bodies)
    found.publish(**ends)
    found.run(100)
    assert sent == 10 and len(found.bodies) == sent


def test_another_attempt_has_a_total_of_its_own_and_another_table_has_not() -> None:
    found = Recorded(probing(max_pairs=2))
    found.run(60)
    found.publish(generation=2, twin_shadow=probing(max_pairs=2))
    found.run(60)
    assert len(found.bodies) == 2
    found.publish(salt="two")
    found.run(60)
    assert len(found.bodies) == 4


# -- through a real gateway


async def until_probed(gate: Gateway, result: str, wanted: int) -> None:
    await until_async(lambda: results(gate).get(result, 0) >= wanted)


async def test_without_any_client_both_legs_get_the_owners_prompts_as_pairs() -> None:
    async with twins(saying("c"), answering(500), SHADOW) as (gate, canary, twin, served):
        await until_probed(gate, "probed", 5)
        assert sorted(canary.bodies) == sorted(twin.bodies) and not served.bodies
        first, second = (json.loads(body) for body in canary.bodies[:2])
        assert first["messages"][0]["content"] != second["messages"][0]["content"] and first["seed"] != second["seed"]
        for leg in (canary, twin):
            assert all(request.headers["X-Slipway-Shadow"] == "1" for request in leg.seen)
            assert {request.path for request in leg.seen} == {CHAT}
        found = counts(gate)
        assert found["probes"] == {"pairs": 5, "canary_only": 0, "twin_only": 5, "both": 0}
        assert (found["pairs"], found["open"], events(gate)["bad"]) == (5, 0, {"twin_only": 5})
        await asyncio.sleep(0.25)
        assert results(gate) == {"probed": 5}, "no more than max_pairs"


async def test_no_counter_of_clients_knows_of_probes_and_the_route_stays_idle() -> None:
    async with twins(saying("c"), saying("s"), SHADOW) as (gate, *_):
        await until_probed(gate, "probed", 5)
        report = route_reports(gate.balancer)["default/chat"]
        assert report["activity"]["last_request_s"] is None and report["activity"]["held"] == 0
        assert report["service"] == {"answered": 0, "refused": 0, "last": "", "unserved_s": None}
        for sample in report["samples"]:
            assert all(side["assigned"] == side["requests"] == 0 for side in sample["revisions"].values())
        assert all(side["inflight"] == side["requests"] == 0 for side in report["revisions"].values())
        assert gate.outcomes() == {} and not gate.metrics.ended


async def test_pairs_of_clients_are_counted_beside_probes() -> None:
    async with twins(answering(500), saying("s"), SHADOW) as (gate, *_):
        for _ in range(3):
            await ask(gate)
        await until_probed(gate, "probed", 5)
        await until_probed(gate, "paired", 3)
        assert counts(gate)["pairs"] == 8
        assert counts(gate)["probes"] == {"pairs": 5, "canary_only": 5, "twin_only": 0, "both": 0}
        assert events(gate)["bad"] == {"canary_only": 8}


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_probe_that_neither_side_answers_is_no_pair(status: int) -> None:
    async with twins(answering(status), answering(status), probing(max_pairs=2)) as (gate, *_):
        await until_probed(gate, "probe_failed", 2)
        assert counts(gate)["withheld"] == {"probe_failed": 2}
        assert (counts(gate)["pairs"], counts(gate)["open"], counts(gate)["probes"]["pairs"]) == (0, 0, 0)


async def test_probe_that_breaks_off_on_both_sides_is_a_pair() -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')
        assert request.transport
        request.transport.close()
        return response

    async with twins(breaks, breaks, probing(max_pairs=2)) as (gate, *_):
        await until_probed(gate, "probed", 2)
        assert counts(gate)["probes"] == {"pairs": 2, "canary_only": 0, "twin_only": 0, "both": 2}


async def test_probes_are_withheld_as_copies_are() -> None:
    async with twins(saying("c"), saying("s"), SHADOW) as (gate, canary, _, served):
        gate.balancer.publish(shadowing([], [served.url], SHADOW, generation=2))
        await until_probed(gate, "no_canary", 2)
        assert counts(gate)["withheld"]["no_canary"] >= 2 and not canary.seen


async def test_there_are_no_probes_where_pairs_are_off_or_the_gateway_ends() -> None:
    async with twins(saying("c"), saying("s"), SHADOW, twin_max_inflight=0) as (gate, canary, *_):
        await asyncio.sleep(0.3)
        assert results(gate) == {} and not canary.seen
    async with twins(saying("c"), saying("s"), probing(max_pairs=1000)) as (gate, canary, *_):
        await until_probed(gate, "probed", 1)
        await gate.edge.stop_mirroring()
        seen = len(canary.seen)
        await asyncio.sleep(0.3)
        assert len(canary.seen) == seen


async def test_a_probe_has_the_outcome_of_its_leg() -> None:
    async with upstream(saying("")) as empty, twins(saying("c"), saying("s"), SHADOW) as (gate, _, twin, served):
        gate.balancer.publish(shadowing([empty.url], [served.url], SHADOW, baseline=[twin.url], generation=2))
        await until_results(gate, 5)
        assert events(gate)["empty"] == {"canary_only": 5}


# -- the table


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "/v1/embeddings"},
        {"prompts": []},
        {"prompts": [""]},
        {"prompts": ["x" * 4097]},
        {"prompts": ["x"] * 33},
        {"pairsPerMinute": 0},
        {"pairsPerMinute": 601},
        {"maxPairs": 0},
        {"maxTokens": 0},
    ],
)
def test_a_table_with_probes_beyond_their_bounds_is_refused(fields: dict[str, Any]) -> None:
    probes: dict[str, Any] = {"path": CHAT, "prompts": ["x"], "pairsPerMinute": 60, "maxPairs": 9, "maxTokens": 8}
    shadow = {"revision": "c", "twin": "s", "percentage": 5, "maxPairsPerSecond": 5}

    def read(found: dict[str, Any]) -> Route | Problem:
        traffic = {"generation": 1, "model": "chat", "twinShadow": shadow | {"probes": found}}
        return parse_route({"metadata": {"namespace": "a", "name": "b"}, "status": {"traffic": traffic}})

    good = read(probes)
    assert isinstance(good, Route) and good.twin_shadow and good.twin_shadow.probes
    assert good.twin_shadow.probes.prompts == ("x",)
    assert isinstance(read(probes | fields), Problem)


def test_a_routes_file_may_have_probes() -> None:
    lines = """
    models:
      chat:
        backends: [{revision: c, weight: 0, endpoints: []}, {revision: s, weight: 100, endpoints: []}]
        twinShadow: {revision: c, twin: s, percentage: 10, maxPairsPerSecond: 5, probes:
          {path: /v1/completions, prompts: [one, two], pairsPerMinute: 30, maxPairs: 100, maxTokens: 16%s}}
    """

    found = parse(lines % "", 1)
    assert isinstance(found, RouteTable)
    shadow = found.models["chat"].twin_shadow
    wanted = TwinProbes(TEXT, ("one", "two"), 30, 100, 16)
    assert shadow and shadow.probes and msgspec.to_builtins(shadow.probes) == msgspec.to_builtins(wanted)
    unknown = parse(lines % ", temperature: 1", 1)
    assert isinstance(unknown, Problem) and "temperature" in unknown.text
