"""Twin shadows without a network: tables, copies, rates and counts."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from multidict import CIMultiDict

from slipway_contracts.route_table import Backend
from slipway_contracts.twin_shadow import TailThreshold, TwinLatency, TwinShadow
from slipway_gateway.judging.outcome import RequestOutcome
from slipway_gateway.judging.pairs import TwinTally
from slipway_gateway.judging.samples import Samples
from slipway_gateway.limits.rate import RateLimit
from slipway_gateway.mirror.shadow_request import ShadowRequest, make_pair_copy
from slipway_gateway.routing import routes_file
from slipway_gateway.routing.mirroring import is_paired
from slipway_gateway.routing.router import assign_revision
from slipway_gateway.routing.table import Problem, Route, parse_route

KEYS = [f"session:{n}" for n in range(4000)]
GOOD = RequestOutcome((), {"ttft": 0.1, "e2e": 1.0})
LIMITS = (TwinLatency("ttft", 15), TwinLatency("e2e", 15, (TailThreshold("b<4k,stream", 1_500_000),)))


def route(percentage: int, weight: int = 0) -> Route:
    backends = (Backend("c", weight), Backend("s", 100 - weight))
    return Route("d/m", "u", "m", salt="c.1", backends=backends, twin_shadow=TwinShadow("c", "s", percentage, 10))


# -- which sessions


@pytest.mark.parametrize("percentage", [0, 20, 100])
def test_a_share_of_sessions_is_copied_the_same_ones_each_time(percentage: int) -> None:
    taken = [key for key in KEYS if is_paired(route(percentage), key)]
    assert taken == [key for key in KEYS if is_paired(route(percentage), key)]
    # Five standard deviations of a binomial share of 4000.
    assert abs(len(taken) / 4000 - percentage / 100) <= 5 * (percentage * (100 - percentage) / 1e4 / 4000) ** 0.5


def test_copied_share_is_independent_of_the_split() -> None:
    shown = route(50, 50)
    both = [key for key in KEYS if is_paired(shown, key) and assign_revision(shown, key) == "c"]
    assert abs(len(both) / len(KEYS) - 0.25) < 0.035


def test_table_without_a_twin_shadow_copies_nothing() -> None:
    assert not is_paired(Route("d/m", "u", "m"), "k")


@pytest.mark.parametrize(
    "wrong",
    [
        {"percentage": 101},
        {"percentage": -1},
        {"maxPairsPerSecond": 0},
        {"epoch": -1},
        {"latencies": [{"measure": "size", "maxSlowdown": 1}]},
        {"latencies": [{"measure": "ttft", "maxSlowdown": -1}]},
        {"latencies": [{"measure": "ttft", "maxSlowdown": 1, "tail": [{"stratum": "x", "microseconds": 0}]}]},
    ],
)
def test_table_with_an_impossible_twin_shadow_is_a_problem(wrong: dict[str, Any]) -> None:
    shadow = {"revision": "c", "twin": "s", "percentage": 5, "maxPairsPerSecond": 1} | wrong
    traffic = {"generation": 1, "model": "m", "twinShadow": shadow}
    found = parse_route({"metadata": {"namespace": "d", "name": "m"}, "status": {"traffic": traffic}})
    assert isinstance(found, Problem) and "twinShadow" in found.text


FILE = {
    "backends": [
        {"revision": "c", "weight": 0, "endpoints": ["http://c:1"]},
        {"revision": "s", "weight": 100, "endpoints": ["http://s:1"]},
    ],
    "twinShadow": {"revision": "c", "twin": "s", "percentage": 25, "maxPairsPerSecond": 10},
}


def test_routes_file_has_a_twin_shadow() -> None:
    found = routes_file.parse(json.dumps({"models": {"m": FILE}}), 1)
    assert not isinstance(found, Problem) and found.models["m"].twin_shadow == TwinShadow("c", "s", 25, 10)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"revision": "x"}, "twinShadow.revision 'x'"),
        ({"twin": "x"}, "twinShadow.twin 'x'"),
        ({"twin": "c"}, "another revision"),
        ({"percent": 3}, "percent"),
    ],
)
def test_routes_file_with_another_revision_or_field_is_a_problem(wrong: dict[str, Any], named: str) -> None:
    found = routes_file.parse(json.dumps({"models": {"m": FILE | {"twinShadow": FILE["twinShadow"] | wrong}}}), 1)
    assert isinstance(found, Problem) and named in found.text


# -- the copy


def copy(fields: dict[str, Any], path: str = "/v1/completions", **headers: str) -> ShadowRequest | None:
    return make_pair_copy(ShadowRequest(path, CIMultiDict(headers), json.dumps({"model": "m"} | fields).encode()), "r")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/files", "/v1/completions/", "/v1/models/m", "/tokenize"])
def test_only_stateless_paths_are_copied(path: str) -> None:
    assert copy({}, path) is None


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions?x=1", "/v1/embeddings", "/v1/rerank", "/api/v1/models/a%2Fb/generate"]
)
def test_stateless_paths_are_copied(path: str) -> None:
    found = copy({"temperature": 0}, path)
    assert found and found.path_qs == path and json.loads(found.body) == {"model": "m", "temperature": 0}


@pytest.mark.parametrize("fields", [{"store": False}, {"store": None}, {}])
def test_body_that_stores_nothing_is_unchanged(fields: dict[str, Any]) -> None:
    found = copy(fields | {"seed": 4})
    assert found and json.loads(found.body) == {"model": "m", "seed": 4} | fields


@pytest.mark.parametrize("tools", ["all", {"type": "function"}, [3], [{"type": "code_interpreter"}]])
def test_tools_that_are_not_functions_of_the_client_opt_out(tools: Any) -> None:
    assert copy({"tools": tools}) is None


# -- rates


def test_rate_has_a_burst_of_one_second() -> None:
    limit = RateLimit(0.0, 3)
    assert [limit.take(0.0, 3) for _ in range(4)] == [True, True, True, False]
    assert [limit.take(1.0 / 3, 3), limit.take(0.4, 3)] == [True, False]
    assert sum(limit.take(100.0, 3) for _ in range(9)) == 3


def test_half_of_the_burst_is_kept_for_others() -> None:
    limit = RateLimit(0.0, 4)
    assert [limit.take(0.0, 4, spare=True) for _ in range(3)] == [True, True, False]
    assert limit.take(0.0, 4)


# -- counts


def test_pair_counts_when_both_legs_ended() -> None:
    counts = TwinTally.begun()
    counts.begin()
    assert (counts.open, counts.pairs) == (1, 0)
    counts.end(TwinShadow("c", "s", 100, 1), "b<4k,stream", RequestOutcome(("errors", "hung")), GOOD)
    assert (counts.open, counts.pairs) == (0, 1)
    report = asdict(counts)
    assert {name: legs["canary_only"] for name, legs in report["events"].items() if legs["canary_only"]} == {
        "bad": 1, "errors": 1, "hung": 1,
    }  # fmt: skip


def test_two_kinds_of_failure_are_one_bad_pair_of_both() -> None:
    counts = TwinTally.begun()
    counts.end(
        TwinShadow("c", "s", 100, 1), "x", RequestOutcome(("empty",)), RequestOutcome(("repetition", "truncated"))
    )
    found = {name: one for name, one in asdict(counts)["events"].items() if any(one.values())}
    assert found["bad"] == {"canary_only": 0, "twin_only": 0, "both": 1, "unanswered": 0}
    assert found["empty"]["canary_only"] == found["repetition"]["twin_only"] == found["truncated"]["twin_only"] == 1


@pytest.mark.parametrize(
    ("canary_s", "twin_s", "over", "tail"),
    [
        (1.15, 1.0, 0, (0, 0, 0)),
        (1.16, 1.0, 1, (0, 0, 0)),
        (1.6, 1.0, 1, (1, 0, 0)),
        (1.0, 1.6, 0, (0, 1, 0)),
        (1.6, 1.6, 0, (0, 0, 1)),
    ],
)
def test_canary_is_over_when_it_is_slower_by_more_than_the_slowdown(
    canary_s: float, twin_s: float, over: int, tail: tuple[int, int, int]
) -> None:
    counts, shadow = TwinTally.begun(), TwinShadow("c", "s", 100, 1, 0, LIMITS)
    legs = (RequestOutcome((), {"e2e": seconds}) for seconds in (canary_s, twin_s))
    counts.end(shadow, "b<4k,stream", *legs)
    found = asdict(counts)["latencies"]
    names = ("tail_canary_only", "tail_twin_only", "tail_both")
    assert (
        list(found) == ["e2e"] and found["e2e"]["over"] == over and tuple(found["e2e"][name] for name in names) == tail
    )
    assert (found["e2e"]["pairs"], found["e2e"]["tail_pairs"]) == (1, 1)


def test_stratum_without_a_threshold_has_no_tail() -> None:
    counts = TwinTally.begun()
    counts.end(TwinShadow("c", "s", 100, 1, 0, LIMITS), "b<32k,stream", GOOD, GOOD)
    assert asdict(counts)["latencies"]["e2e"] == {
        "pairs": 1, "over": 0, "tail_pairs": 0, "tail_canary_only": 0, "tail_twin_only": 0, "tail_both": 0,
    }  # fmt: skip


def test_failed_leg_has_no_latency() -> None:
    counts = TwinTally.begun()
    counts.end(TwinShadow("c", "s", 100, 1, 0, LIMITS), "x", RequestOutcome(("errors",)), GOOD)
    assert asdict(counts)["latencies"] == {}


def test_sessions_of_an_epoch_are_remembered_over_generations_and_bounded() -> None:
    samples, shown = Samples(max_entries=8), route(100)
    assert shown.twin_shadow
    first = samples.paired(shown, shown.twin_shadow)
    for n in range(20):
        first.remember(f"session:{n}")
    first.remember("request:alone")
    assert len(first) <= 8 and first.has("session:19") and not first.has("request:alone")
    later = replace(shown.twin_shadow, percentage=50)
    assert samples.paired(shown, later) is first
    assert not samples.paired(shown, replace(later, epoch=1)).has("session:19")
    samples.keep({})
    assert not samples._paired
