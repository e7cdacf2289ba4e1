"""Parser of the samples that gateways report: malformed parts are left out, and every list is bounded."""

import copy
from typing import Any

import pytest

from slipway_contracts.counters import (
    BINS,
    MOST_BUCKETS,
    MOST_COMPARISONS,
    MOST_GENERATIONS,
    MOST_REVISIONS,
    MOST_STRATA,
    AgreementCounts,
    EventCounts,
    GenerationCounts,
    LatencyCounts,
    PredictionCounts,
    RevisionCounts,
    ShadowCounts,
    TwinCounts,
    read,
    read_bounds,
)
from slipway_operator.kube.reading.gateways import Answer
from tests.support.report import as_report

BOUNDS = {"ttft": [0.1, 0.2], "itl": [0.01], "e2e": [1, 2]}
SIDE = {
    "requests": 120,
    "units": 90,
    "events": {"errors": 3, "empty": 0},
    "slow": {"ttft": {"b<4k,stream": [100, 15, 5]}, "itl": {}, "e2e": {}},
    "late": {"ttft": {"b<4k,stream": [0, 0, 2]}, "itl": {}, "e2e": {}},
    "assigned": 122,
}
SAMPLE = {"generation": 19, "weights": {"aaa": 10, "bbb": 90}, "revisions": {"aaa": SIDE}}


PAIRS = {"pairs": 40, "canary_only": 3, "second_only": 1, "both": 2, "no_floor": 5, "no_floor_differs": 4}


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SAMPLE), **fields}


def side(**fields: Any) -> dict[str, Any]:
    return changed(revisions={"aaa": {**SIDE, **fields}})


def test_a_sample_is_read() -> None:
    slow = {"ttft": {"b<4k,stream": (100, 15, 5)}, "itl": {}, "e2e": {}}
    late = {"ttft": {"b<4k,stream": (0, 0, 2)}, "itl": {}, "e2e": {}}
    events = {"errors": 3, "empty": 0}
    side_read = RevisionCounts(
        requests=120,
        units=90,
        events=events,
        slow=slow,
        late=late,
        assigned=122,
        predictions=PredictionCounts((0,) * BINS),
    )
    expected = GenerationCounts(19, {"aaa": 10, "bbb": 90}, {"aaa": side_read})
    assert read([SAMPLE], read_bounds(BOUNDS)) == (expected,)


def test_empty_buckets_at_the_end_need_not_be_sent() -> None:
    (found,) = read([side(slow={"ttft": {"a": [0, 7], "b": []}})], read_bounds(BOUNDS))
    assert found.revisions["aaa"].slow["ttft"] == {"a": (0, 7, 0), "b": (0, 0, 0)}


def test_comparisons_are_read() -> None:
    (found,) = read([changed(shadow={"aaa": {"text": PAIRS, "later": PAIRS}})], read_bounds(BOUNDS))
    assert found.shadow == {"aaa": dict.fromkeys(("text", "later"), ShadowCounts(40, 3, 1, 2, 5, 4))}


TWINS = {
    "open": 2,
    "pairs": 310,
    "events": {"bad": {"canary_only": 3, "twin_only": 1, "both": 2}},
    "latencies": {
        "ttft": {
            "pairs": 298, "over": 121,
            "tail_pairs": 280, "tail_canary_only": 9, "tail_twin_only": 7, "tail_both": 4,
        }
    },
    "withheld": {"busy": 4, "rate": 90, "twin_refused": 1},
}  # fmt: skip


def test_pairs_of_twins_are_read() -> None:
    (found,) = read([changed(twins={"aaa": TWINS})], read_bounds(BOUNDS))
    times = {"ttft": LatencyCounts(298, 121, 280, 9, 7, 4)}
    assert found.twins == {"aaa": TwinCounts(2, 310, {"bad": EventCounts(3, 1, 2)}, times, TWINS["withheld"])}
    assert found.twins["aaa"].starved == 5, "a limited rate is no lack of capacity"


@pytest.mark.parametrize(
    "odd",
    [
        {"open": -1},
        {"pairs": None},
        {"events": {"bad": {"canary_only": 1}}},
        {"latencies": {"ttft": {"pairs": 1}}},
        {"withheld": {f"reason{n}": 1 for n in range(17)}},
        {"events": {str(n): TWINS["events"]["bad"] for n in range(17)}},
    ],
)
def test_sample_with_malformed_pairs_is_none(odd: dict[str, Any]) -> None:
    assert read([changed(twins={"aaa": TWINS | odd})], read_bounds(BOUNDS)) == ()


def test_predictions_for_mirrored_requests_are_read_and_an_older_gateway_has_none() -> None:
    counts = {"compared": 40, "disagreed": 3, "unread": 1, "failed": 2}
    (found,) = read([changed(agreements={"aaa": counts})], read_bounds(BOUNDS))
    assert found.agreements == {"aaa": AgreementCounts(40, 3, 1, 2)}
    (older,) = read([changed()], read_bounds(BOUNDS))
    assert older.agreements == {}


@pytest.mark.parametrize("odd", [{"compared": -1}, {"disagreed": True}, {"unread": None}, {"failed": "many"}])
def test_a_sample_with_malformed_agreements_is_none(odd: dict[str, Any]) -> None:
    counts = {"compared": 40, "disagreed": 3, "unread": 1, "failed": 2} | odd
    assert read([changed(agreements={"aaa": counts})], read_bounds(BOUNDS)) == ()


def test_a_gateway_of_a_former_release_that_counts_no_units_gives_no_data() -> None:
    former = {name: value for name, value in SIDE.items() if name not in ("late", "assigned", "units")}
    (found,) = read([changed(revisions={"aaa": former})], read_bounds(BOUNDS))
    revision = found.revisions["aaa"]
    assert (revision.assigned, revision.units, revision.late["ttft"]) == (0, 0, {})


@pytest.mark.parametrize("reported", [None, 7, "many", {}, {"generation": 1}])
def test_malformed_samples_are_none(reported: Any) -> None:
    assert read(reported, read_bounds(BOUNDS)) == ()


@pytest.mark.parametrize(
    "odd",
    [
        *(None, 3, [], {}),
        *(changed(generation=value) for value in (None, "19", -1, 1.5, True)),
        *(changed(weights=value) for value in (None, [10, 90], {"aaa": "10"}, {"aaa": -1})),
        *(changed(revisions=value) for value in (None, [], {"aaa": None}, {"aaa": {}})),
        *(side(requests=value) for value in (None, -1, "120", 1e9)),
        *(side(events=value) for value in ([1], {"errors": None}, {"errors": -3})),
        *(side(units=value) for value in (None, -1, "9")),
        *(side(assigned=value) for value in (None, -1, 1.5)),
        *(side(late=value) for value in ([1], {"ttft": {"s": 1}}, {"ttft": {"s": [1, 2, -3]}})),
        *(side(slow=value) for value in ([1], {"ttft": [1]}, {"ttft": {"s": [1] * 4}}, {"ttft": {"s": [1, 2, -3]}})),
        changed(weights={str(number): 1 for number in range(MOST_REVISIONS + 1)}),
        side(slow={"ttft": {str(number): [0, 0, 0] for number in range(MOST_STRATA + 1)}}),
        side(events={"e" * 65: 1}),
        *(changed(shadow=value) for value in ([1], {"aaa": 1}, {"aaa": {"text": {}}}, {"a" * 65: {}})),
        *(changed(shadow={"aaa": {"text": PAIRS | {"both": value}}}) for value in (-1, "2", None, 1.5)),
        changed(shadow={"aaa": {str(number): PAIRS for number in range(MOST_COMPARISONS + 1)}}),
        changed(shadow={str(number): {} for number in range(MOST_REVISIONS + 1)}),
    ],
)
def test_malformed_parts_are_left_out_and_the_rest_stays(odd: Any) -> None:
    assert [item.generation for item in read([odd, changed(generation=20)], read_bounds(BOUNDS))] == [20]


def test_only_the_newest_generations_are_kept() -> None:
    reported = [changed(generation=number) for number in range(30)]
    assert [item.generation for item in read(reported, {})] == list(range(30))[-MOST_GENERATIONS:]


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        [2, 1],
        [1, 1],
        ["1"],
        [True],
        "1",
        list(range(MOST_BUCKETS + 1)),
        [float("nan"), 1.0],
        [1.0, float("inf")],
    ],
)
def test_invalid_bounds_are_none(odd: Any) -> None:
    assert read_bounds({**BOUNDS, "ttft": odd}).keys() == {"itl", "e2e"}
    assert read_bounds(odd) == {}


def test_a_latency_without_bounds_is_not_read() -> None:
    (found,) = read([SAMPLE], read_bounds({"itl": [0.01]}))
    assert found.revisions["aaa"].slow == {"itl": {}}


def route(**fields: Any) -> dict[str, Any]:
    return {"default/chat": {"uid": "u1", "generation": 19, "revisions": {}, **fields}}


def test_an_answer_carries_samples_incarnation_and_cut() -> None:
    routes = route(samples=[SAMPLE], failsafe={"cut_off": "aaa", "reason": "x", "expired": False})
    found = Answer("gw", True, True, as_report(routes), "i1", read_bounds(BOUNDS)).about("default", "chat", "u1")
    assert (found.incarnation, found.cut_off, found.bounds["itl"]) == ("i1", "aaa", (0.01,))
    assert [item.generation for item in found.samples] == [19]


@pytest.mark.parametrize(
    "odd",
    [
        route(generation=None),
        route(generation="x"),
        route(revisions=[1]),
        route(revisions={"a": {}}),
        {"default/chat": 5},
    ],
)
def test_invalid_route_is_no_answer(odd: dict[str, Any]) -> None:
    found = Answer("gw", True, True, as_report(odd), "i1").about("default", "chat", "u1")
    assert (found.ready, found.reachable, found.generation) == (True, False, None)
