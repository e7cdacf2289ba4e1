"""An analysis counts the split requests that a gateway reports."""

import json
from dataclasses import replace
from typing import Any

import pytest

from slipway_contracts.api.times import parse_time
from slipway_contracts.counters import read_bounds
from slipway_contracts.route_table import Backend
from slipway_contracts.twin_shadow import MEASURES, TailThreshold, TwinLatency, TwinShadow
from slipway_gateway.judging import samples as gateway_samples
from slipway_gateway.judging.outcome import RequestOutcome
from slipway_gateway.routing.table import Route
from slipway_operator.api.v1alpha1 import analysis_run
from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.judging.verdict import judge
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec, MinSamples
from slipway_operator.model.analysis.template import BAD_EVENTS, BUILT_IN, DRIFT_EVENTS, slower
from slipway_operator.model.analysis.verdict import Reading
from slipway_operator.planning.analysis import counting
from tests.support.report import as_json, as_report

NOW = parse_time("2026-01-01T00:00:00Z")
PAIR = ("aaa", "bbb")
ROUTE = Route("default/chat", "u1", "chat", generation=41, backends=(Backend("aaa", 10), Backend("bbb", 90)))
SIDE = {
    "assigned": 125,
    "requests": 120,
    "units": 120,
    "events": {
        "errors": 3,
        "empty": 0,
        "truncated": 1,
        "repetition": 0,
        "non_finite": 0,
        "invalid_json": 0,
        "hung": 0,
        "blocked": 0,
        "redacted": 0,
        "bad": 3,
        "fell_back": 2,
    },
    "slow": {"ttft": {"b<4k,stream": [95, 20, 5]}, "itl": {}, "e2e": {}},
    "late": {"ttft": {"b<4k,stream": [0, 2, 0]}, "itl": {}, "e2e": {}},
}


def answer(requests: int, generation: int = 19) -> str:
    """The response of a gateway, with this many more requests to canary, all of them slow and with errors."""
    canary = json.loads(json.dumps(SIDE))
    canary["requests"] += requests
    canary["units"] += requests
    canary["assigned"] += requests + (2 if requests else 0)
    canary["events"]["errors"] += requests
    canary["slow"]["ttft"]["b<4k,stream"][2] += requests
    sample = {"generation": generation, "weights": {"aaa": 10, "bbb": 90}, "revisions": {"aaa": canary, "bbb": SIDE}}
    route = {"uid": "u1", "generation": generation, "revisions": {}, "samples": [sample]}
    bounds = {"ttft": [0.1, 0.2], "itl": [0.01, 0.02], "e2e": [1, 2]}
    return json.dumps({"incarnation": "i1", "bounds": bounds, "routes": {"default/chat": route}})


def parsed(text: str) -> list:
    reported = json.loads(text)
    bounds = read_bounds(reported["bounds"])
    return [
        Answer("gw", True, True, as_report(reported["routes"]), reported["incarnation"], bounds).about(
            "default", "chat", "u1"
        )
    ]


def test_counts_of_each_metric_come_from_the_counters_that_the_contract_names() -> None:
    spec = BUILT_IN["llm-default"].spec
    assert spec
    run = counting.begin(RunStatus("r", "llm-default", "", NOW, NOW, warm=True), spec, parsed(answer(0)), PAIR)
    run = counting.add(run, spec, parsed(answer(0)), PAIR, comparable=True, seconds=5.0)
    chosen = [(item.metric, item.seconds) for item in run.thresholds if not item.metric.endswith("/gross")]
    assert chosen == [("ttft", 0.2)], "p95 of 95 + 20 + 5"
    run = counting.add(run, spec, parsed(answer(7)), PAIR, comparable=True, seconds=60.0)
    epochs = {item.metric: item.epochs[0] for item in run.counts}
    assert (
        epochs["errors"].weight,
        epochs["errors"].canary_units,
        epochs["errors"].canary_bad,
        epochs["errors"].stable_units,
    ) == (10, 7, 7, 0)
    assert (epochs["ttft"].canary_units, epochs["ttft"].canary_bad) == (7, 7)
    assert (run.assigned[0].weight, run.assigned[0].canary_units, run.assigned[0].stable_units) == (10, 9, 0)
    assert (epochs["empty"].canary_units, epochs["empty"].canary_bad) == (7, 0)
    assert counting.add(run, spec, parsed(answer(7)), PAIR, comparable=True, seconds=60.0).counts == run.counts, (
        "nothing twice"
    )


def test_latency_limit_comes_from_requests_beside_the_canary_when_there_are_enough() -> None:
    """Requests of a rush before the run would make a limit that no request exceeds now."""
    spec = BUILT_IN["llm-default"].spec
    assert spec
    for beside, limit in ((100, 0.1), (99, 0.2)):
        reported = json.loads(answer(0))
        route = reported["routes"]["default/chat"]
        now = route["samples"][0]
        now["revisions"]["bbb"] = {**SIDE, "slow": {"ttft": {"b<4k,stream": [beside]}}}
        before = {**SIDE, "slow": {"ttft": {"b<4k,stream": [0, 500]}}}
        rush = {"generation": 18, "weights": {"bbb": 100}, "revisions": {"bbb": before}}
        route["samples"] = [rush, now]
        run = RunStatus("r", "llm-default", "", NOW, NOW)
        for warm, found in ((False, []), (True, [limit])):
            text = json.dumps(reported)
            run = counting.add(replace(run, warm=warm), spec, parsed(text), PAIR, comparable=False, seconds=5.0)
            assert [item.seconds for item in run.thresholds if item.metric == "ttft"] == found


def reported_by(counters: gateway_samples.Samples, route: Any) -> dict[str, Any]:
    """The `routes` of a gateway's report."""
    samples = as_json(counters.report(route, 0.0))
    return {"default/chat": {"uid": "u1", "generation": 41, "revisions": {}, "samples": samples}}


def test_counts_of_a_gateway_arrive_as_counted() -> None:
    counters = gateway_samples.Samples()
    epoch, at = counters.epoch(ROUTE), gateway_samples.stratum(100, stream=True)
    incarnation = "i1"

    def answers() -> list:
        routes = reported_by(counters, ROUTE)
        text = json.dumps({"incarnation": incarnation, "bounds": gateway_samples.BOUNDS, "routes": routes})
        return parsed(text)

    spec = BUILT_IN["llm-default"].spec
    assert spec

    def count(revision: str, key: str, outcome: RequestOutcome) -> None:
        counts = epoch.assign(revision, key, key, 0.0)
        epoch.count(epoch.begin(revision, key, at, stream=True, counts=counts), outcome)

    for number in range(200):
        count("bbb", f"session:{number}", RequestOutcome((), {"ttft": 0.1, "itl": 0.01, "e2e": 1.0}))
    run = counting.begin(RunStatus("r", "llm-default", "", NOW, NOW, warm=True), spec, answers(), PAIR)
    run = counting.add(run, spec, answers(), PAIR, comparable=True, seconds=5.0)
    for _ in range(7):
        count("aaa", "session:slow", RequestOutcome((), {"ttft": 60.0, "itl": 0.01, "e2e": 61.0}))
    for _ in range(7):
        count("aaa", "session:failed", RequestOutcome(("errors",)))
    run = counting.add(run, spec, answers(), PAIR, comparable=True, seconds=60.0)
    counted = {item.metric: item.epochs[0] for item in run.counts}
    assert (counted["errors"].weight, counted["errors"].canary_units, counted["errors"].canary_bad) == (10, 2, 1), (
        "sessions, not requests"
    )
    assert (counted["ttft"].canary_units, counted["ttft"].canary_bad) == (1, 1), (
        "a session is one, and one of those that are compared"
    )


ERRORS_ONLY = AnalysisSpec(
    metrics=(MetricSpec("errors", event="FirstAttemptError", share=1.0, ok_below=0.005),),
    min_samples=MinSamples(canary_requests=1, warmup_seconds=0),
)


def judged(
    failing_sessions: int, requests_each: int, share_that_fails: float, sound_sessions: int
) -> analysis_run.Outcome:
    """The verdict on a canary of whose requests these failed, by all that lies between the gateway and the judge."""
    counters = gateway_samples.Samples()
    epoch = counters.epoch(ROUTE)
    at = gateway_samples.stratum(100, stream=False)

    def answers() -> list:
        routes = reported_by(counters, ROUTE)
        return parsed(json.dumps({"incarnation": "i1", "bounds": gateway_samples.BOUNDS, "routes": routes}))

    def request(revision: str, key: str, *, fails: bool) -> None:
        counts = epoch.assign(revision, key, key, 0.0)
        attempt = epoch.begin(revision, key, at, stream=False, counts=counts)
        epoch.count(attempt, RequestOutcome(("errors",) if fails else ()))

    run = counting.begin(RunStatus("r", "mine", "", NOW, NOW, warm=True), ERRORS_ONLY, answers(), PAIR)
    request("bbb", "session:first", fails=False)
    run = counting.add(run, ERRORS_ONLY, answers(), PAIR, comparable=True, seconds=1.0)
    for session in range(failing_sessions):
        for number in range(requests_each):
            request("aaa", f"key:{session}", fails=number < share_that_fails * requests_each)
    for session in range(sound_sessions):
        for _ in range(requests_each):
            request("aaa", f"session:{session}", fails=False)
    for session in range(9 * (failing_sessions + sound_sessions)):
        request("bbb", f"session:stable-{session}", fails=False)
    run = counting.add(run, ERRORS_ONLY, answers(), PAIR, comparable=True, seconds=60.0)
    return judge(ERRORS_ONLY, Reading(run.counts, 60.0, assigned=run.assigned)).outcome


@pytest.mark.finding(27)
def test_a_key_of_which_a_third_fails_does_not_pass_as_one_event_of_many_requests() -> None:
    """safety 27: events are counted by session, so they are a part of sessions and not of requests."""
    assert judged(1, 2000, 0.3, sound_sessions=0) is not analysis_run.Outcome.PASS


@pytest.mark.finding(27)
def test_sessions_that_share_a_fate_do_not_pass_at_the_limit_that_they_break() -> None:
    """safety 27: 2 % of the sessions fail whole; by requests of six each that would be a third of a percent."""
    assert judged(20, 6, 1.0, sound_sessions=980) is not analysis_run.Outcome.PASS


def test_a_canary_without_errors_passes() -> None:
    assert judged(0, 1, 0.0, sound_sessions=2000) is analysis_run.Outcome.PASS


def test_counts_of_mirrored_pairs_arrive_as_counted() -> None:
    counters = gateway_samples.Samples()
    route = Route("default/chat", "u1", "chat", generation=41, backends=(Backend("aaa", 0), Backend("bbb", 100)))
    epoch = counters.epoch(route)

    def answers() -> list:
        routes = reported_by(counters, route)
        return parsed(json.dumps({"incarnation": "i1", "bounds": gateway_samples.BOUNDS, "routes": routes}))

    spec = BUILT_IN["llm-shadow-drift"].spec
    assert spec
    epoch.compared("aaa", gateway_samples.TEXT, 1, 0)
    run = counting.begin(RunStatus("r", "llm-shadow-drift", "", NOW, NOW), spec, answers(), PAIR)
    for canary, second in ((1, 0), (1, 0), (0, 1), (0, 0), (1, None)):
        epoch.compared("aaa", gateway_samples.TEXT, canary, second)
    epoch.compared("aaa", gateway_samples.TOKENS, 5, 2)
    assert counting.has_requests(answers(), PAIR)
    run = counting.add(run, spec, answers(), PAIR, comparable=False, seconds=60.0)
    counted = {item.metric: item.epochs[0] for item in run.counts}
    found = {
        name: (one.weight, one.canary_units, one.stable_units, one.canary_bad, one.stable_bad)
        for name, one in counted.items()
    }
    assert found == {
        "drift": (50, 4, 4, 2, 1),
        "flips": (50, 1, 1, 1, 0),
        "drift/no-floor": (50, 1, 1, 1, 0),
        "flips/no-floor": (50, 0, 0, 0, 0),
    }
    assert counting.add(run, spec, answers(), PAIR, comparable=False, seconds=60.0).counts == run.counts, (
        "nothing twice"
    )


def test_counts_of_pairs_arrive_as_counted() -> None:
    """From the outcomes of both legs at a gateway to the counts of an analysis, with stable's rates before it."""
    counters = gateway_samples.Samples()
    route = Route("default/chat", "u1", "chat", generation=41, backends=(Backend("aaa", 0), Backend("bbb", 100)))
    epoch, stratum = counters.epoch(route), gateway_samples.stratum(100, stream=True)
    assert epoch
    latency = TwinLatency("ttft", 15, (TailThreshold(stratum, 400_000),))
    shadow = TwinShadow("aaa", "bbb", 100, 10, latencies=(latency,))

    def answers() -> list:
        routes = reported_by(counters, route)
        return parsed(json.dumps({"incarnation": "i1", "bounds": gateway_samples.BOUNDS, "routes": routes}))

    def leg(seconds: float, *bad: str) -> RequestOutcome:
        return RequestOutcome(bad, {} if bad else {"ttft": seconds})

    assert BUILT_IN["llm-release"].spec
    spec = BUILT_IN["llm-release"].spec.part(paired=True)
    counts = epoch.twins("aaa")
    run = counting.begin(RunStatus("r", "llm-release", "", NOW, NOW), spec, answers(), PAIR)
    assert not counting.has_requests(answers(), PAIR)
    pairs = (
        (leg(0.2, "errors"), leg(0.2)),
        (leg(0.2), leg(0.2, "empty")),
        (leg(0.2, "truncated"), leg(0.2)),
        (leg(0.5), leg(0.3)),
        (leg(0.3), leg(0.3)),
        (leg(0.3, "errors"), leg(0.3, "hung", "errors")),
    )
    for canary, twin in pairs:
        counts.begin()
        counts.end(shadow, stratum, canary, twin, probe=canary.bad == ("errors",))
    counts.begin()
    counts.begin()
    counts.drop()
    counts.withhold("busy")
    counts.withheld["rate"] = 2
    assert counting.has_requests(answers(), PAIR)
    run = counting.add(run, spec, answers(), PAIR, comparable=True, seconds=60.0)
    counted = {item.metric: item.epochs[0] for item in run.counts}
    found = {
        name: (one.weight, one.canary_units, one.stable_units, one.canary_bad, one.stable_bad)
        for name, one in counted.items()
    }
    assert found == {
        "bad": (50, 6, 6, 1, 1),
        "truncated": (50, 6, 6, 1, 0),
        "ttft": (50, 2, 2, 1, 0),
        "itl": (50, 0, 0, 0, 0),
        "ttft/tail": (50, 2, 2, 1, 0),
        "itl/tail": (50, 0, 0, 0, 0),
        "bad/withheld": (50, 10, 10, 1, 1),
        "bad/probes": (50, 2, 2, 1, 0),
    }
    assert counting.add(run, spec, answers(), PAIR, comparable=True, seconds=60.0).counts == run.counts, "nothing twice"


def test_every_comparison_of_the_contract_is_one_of_a_template() -> None:
    assert set(DRIFT_EVENTS.values()) == set(gateway_samples.COMPARISONS)


def test_every_event_of_the_contract_is_one_of_a_template() -> None:
    assert set(BAD_EVENTS.values()) == set(SIDE["events"])  # type: ignore[arg-type]
    kinds = {slower(f"Slower({kind}, stable.p95)").kind for kind in SIDE["slow"]}  # type: ignore[union-attr, attr-defined]
    assert kinds == set(MEASURES)
