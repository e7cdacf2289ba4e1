"""What pages show, from objects alone: pictures, evidence, changes, tables, actions, refusals."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipway_cli.objects.deployment import read_deployment
from slipway_console.access.api_server import Viewer
from slipway_console.access.refusal import Call, Conflict, SignedOut, refusal_of
from slipway_console.serving.rendering import Rendering
from slipway_console.serving.sessions import Session
from slipway_console.views.actions import explain_stale, list_actions, token_of
from slipway_console.views.changes import MOST_FIELDS, read_changes
from slipway_console.views.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Point, draw, format_number
from slipway_console.views.evidence import METRIC_COLUMNS, MOST_ROWS, read_evidence
from slipway_console.views.table import read_table
from tests.cli.objects import CANARY, STABLE, idle, in_flight
from tests.console.world import analysis_run

numbers = some.floats(-1000, 1000)


def coordinates(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (one.split(",") for one in text.split())]


@given(
    some.lists(some.tuples(some.integers(0, 10**6), some.floats(), some.floats()), min_size=1, max_size=120),
    some.floats(0.01, 1000),
    some.lists(some.floats(0, 10**6), max_size=10),
)
def test_whatever_the_bounds_the_picture_is_inside_of_its_box(
    readings: list[tuple[int, float, float]], limit: float, marks: list[float]
) -> None:
    points = [Point(seconds, low, high) for seconds, low, high in sorted(readings)]
    chart = draw(points, limit, marks)
    found = [*coordinates(chart.band), *coordinates(chart.line), (chart.end_x, chart.end_y)]
    found += [(tick.at, TOP) for tick in chart.x_ticks] + [(LEFT, tick.at) for tick in chart.y_ticks]
    found += [(mark, chart.limit_y) for mark in chart.marks]
    assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in found)
    assert len(chart.x_ticks) <= 21 and len(chart.y_ticks) <= 21


def test_a_bound_below_its_limit_is_drawn_below_it() -> None:
    """The y axis of SVG goes down."""
    chart = draw([Point(0, -900, 900), Point(600, -1, 6)], 10)
    assert chart.end_y > chart.limit_y and chart.is_cut and chart.limit_label == "10"
    above = draw([Point(0, -900, 900), Point(600, 1, 60)], 10)
    assert above.end_y < above.limit_y


def test_the_picture_shows_the_limit_though_all_bounds_are_far_below() -> None:
    chart = draw([Point(0, 0.1, 0.4), Point(60, 0.1, 0.3)], 5)
    assert TOP <= chart.limit_y < chart.end_y and not chart.is_cut
    assert [tick.label for tick in chart.y_ticks] == ["0", "2", "4", "6"]
    assert [tick.label for tick in chart.x_ticks] == ["0s", "15s", "30s", "45s", "1m"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "0"), (6.3124, "6.31"), (1000.0, "1000"), (1234.6, "1235"), (math.inf, "unbounded")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_evidence_has_every_bound_and_what_is_not_counted_yet() -> None:
    found = read_evidence(analysis_run())
    assert [bound.metric for bound in found.bounds] == ["live-bad", "errors"] and found.without_bound == ("ttft",)
    live, errors = found.bounds
    assert live.holds and live.sentence.endswith("below the limit of 10")
    assert len(live.rows) <= MOST_ROWS and live.rows[0].at == "0:10:30"
    assert errors.sentence == "at most 0.663 times stable's rate of bad requests: below the limit of 2"
    assert found.title == f"revision {CANARY}, attempt 1, step 2"
    assert found.harm and found.harm.chart and found.harm.rows[0] == ("0:10:30", "5.4", "8 %")
    assert len(live.chart.marks) == 2


def test_the_ratio_of_costs_has_its_bound_and_its_line() -> None:
    series = {"metric": "cost", "unit": "CostRatio", "limit": 1.1, "points": [{"seconds": 90, "low": 0.9, "high": 1.3}]}
    run = analysis_run()
    run["status"]["series"] = [series]
    sides = {"canary": {"price": 2.5}, "stable": {"price": 1.25}}
    run["status"]["verdict"]["cost"] = {"minutes": 3, "idle": 1, "low": 0.9, "high": 1.3, **sides}
    found = read_evidence(run)
    (bound,) = found.bounds
    assert not bound.holds and bound.sentence == (
        "at most 1.3 times stable's cost of a token or prediction, in the mean of the minutes: not below the limit of "
        "1.1"
    )
    assert (
        "cost: 0.9 to 1.3 times stable's at equal load; 3 minutes compared, 1 idle ones left out; a pod costs 2.5 an "
        "hour on canary and 1.25 on stable"
    ) in found.pairs
    run["status"]["verdict"]["cost"] = {"problem": "canary: no price of nvidia.com/gpu"}
    assert "cost: canary: no price of nvidia.com/gpu" in read_evidence(run).pairs


@pytest.mark.parametrize(
    ("run_id", "title"),
    [
        ("r/2/0", "revision r, attempt 2, step 1"),
        ("r/2/background", "revision r, attempt 2, in the background of the steps"),
        ("odd", "odd"),
    ],
)
def test_a_run_is_called_after_its_step(run_id: str, title: str) -> None:
    run = analysis_run()
    run["status"]["id"] = run_id
    assert read_evidence(run).title == title


def test_a_run_that_has_counted_nothing_has_its_sentence() -> None:
    run = analysis_run()
    for name in ("verdict", "decisions", "series", "ramp", "harm"):
        del run["status"][name]
    found = read_evidence(run)
    assert (found.message, found.bounds, found.harm) == ("Counting; there is no verdict yet.", (), None)


@given(some.integers(0, 10**9), some.sampled_from([0, 20]))
def test_harm_is_never_more_than_its_bar(spent: int, most: int) -> None:
    run = analysis_run()
    run["status"]["ramp"] |= {"spent": float(spent), "maxHarm": most}
    found = read_evidence(run).harm
    assert found is not None and f"of {most} extra bad responses" in found.sentence


def test_changes_name_the_fields_that_a_client_manages() -> None:
    steps = {f"f:{letter}": {} for letter in "abcdefghijkl"}
    entries = [
        {"manager": "kubectl", "operation": "Update", "time": "2026-01-01T11:00:00Z", "fieldsV1": {"f:spec": steps}},
        {
            "manager": "argocd",
            "operation": "Apply",
            "time": "2026-01-01T12:00:00Z",
            "fieldsV1": {"f:spec": {"f:rollout": {".": {}, "f:promote": {}}, "f:paused": {}}},
        },
        {"manager": "operator", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {"f:a": {}}}},
    ]
    found = read_changes({"metadata": {"managedFields": entries}})
    assert [item.manager for item in found if item.at] == ["argocd", "kubectl"]
    by_name = {item.manager: item for item in found}
    assert by_name["argocd"].fields == ("spec.paused", "spec.rollout.promote")
    assert (len(by_name["kubectl"].fields), by_name["kubectl"].more) == (MOST_FIELDS, 4)
    assert (by_name["operator"].fields, by_name["operator"].operation) == (("status",), "status")


def test_a_table_has_the_columns_that_are_there_and_uses_with_limits() -> None:
    table = {
        "columnDefinitions": [{"name": "Name"}, {"name": "Requests"}, {"name": "Step"}, {"name": "New"}],
        "metadata": {"continue": "abc", "remainingItemCount": 7},
        "rows": [
            {"cells": ["a", "412/600", "2/5", 1], "object": {"metadata": {"name": "a", "namespace": "n"}}},
            {"cells": ["b", "12/0"], "object": {}},
        ],
    }
    found = read_table(table, ("Requests", "Step", "Gone"), ("Requests",))
    assert (found.columns, found.more, found.left) == (("Requests", "Step"), "abc", 7)
    requests, step = found.rows[0].cells
    assert (requests.used, requests.most, step.most) == (412.0, 600.0, None)
    assert [cell.most for cell in found.rows[1].cells] == [None, None] and found.rows[1].name == ""


def test_actions_are_those_that_the_command_line_would_send() -> None:
    of = read_deployment(in_flight())
    assert token_of(of) == f"{CANARY}/1/1"
    possible = {item.name for item in list_actions(of, ()) if item.is_possible}
    assert possible == {"promote", "promote-full", "abort", "pause"}
    quiet = read_deployment(idle())
    assert token_of(quiet) == f"none/{STABLE}"
    assert {item.name for item in list_actions(quiet, ()) if item.is_possible} == {"pause"}


def test_a_form_counts_for_the_step_of_its_page_alone() -> None:
    of = read_deployment(in_flight())
    assert explain_stale(f"{CANARY}/1/1", of) == ""
    for other in (f"{CANARY}/1/2", f"{CANARY}/2/1", f"{STABLE}/1/1", f"{CANARY}/1", "", f"none/{STABLE}", "none/"):
        assert explain_stale(other, of).endswith("nothing was changed.")


@pytest.mark.parametrize(
    ("status", "call", "kind", "sentence"),
    [
        (401, Call("get", "pods", "a"), SignedOut, "does not accept this token"),
        (
            403,
            Call("patch", "modeldeployments.slipway.dev", "a"),
            None,
            "may not patch modeldeployments.slipway.dev in the",
        ),
        (403, Call("list", "tenants.slipway.dev"), None, "may not list tenants.slipway.dev. An administrator"),
        (404, Call("list", "modeldeployments.slipway.dev", "a"), None, "install Slipway's CRDs"),
        (409, Call("patch", "pods", "a", "b"), Conflict, "was changed meanwhile"),
        (410, Call("list", "pods", "a"), None, "start at its first page"),
        (422, Call("patch", "pods", "a", "b"), None, "refused to patch pods in the namespace a: why"),
        (500, Call("get", "pods", "a", "b"), None, "answered 500"),
        (302, Call("get", "pods", "a", "b"), None, "answered 302"),
    ],
)
def test_each_refusal_is_a_sentence(status: int, call: Call, kind: type[Exception] | None, sentence: str) -> None:
    found = refusal_of(status, "why" + "y" * 5000, call)
    assert sentence in found.sentence and len(found.detail) <= 1000 and len(found.sentence) < 1200
    assert kind is None or isinstance(found, kind)


def test_texts_of_a_picture_are_escaped() -> None:
    """Its numbers are the console's own; a metric's name is its author's."""
    hostile: dict[str, Any] = {"metric": '"><script>', "unit": "<b>", "limit": 10}
    points = [{"seconds": 1, "low": 0, "high": 5}]
    run = analysis_run(series=[hostile | {"points": points}])
    rendering = Rendering()
    session = Session("i", Viewer("u", "t"), "c", 1.0)
    values = {"here": "", "namespace": "a", "name": "b", "found": read_evidence(run), "metric_columns": METRIC_COLUMNS}
    page = rendering.page("evidence.html", session, **values).text
    assert page and "<script>" not in page and "&#34;&gt;&lt;script&gt;" in page and "<b>" not in page
    assert isinstance(read_evidence(run).bounds[0].chart, Chart)


@pytest.mark.parametrize(
    "text", ["2026-01-01t11:57:00z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "2026-01-01T11:57:60Z"]
)
def test_a_time_of_any_year_ends_no_page(text: str) -> None:
    """The API server takes all but the last one, and whoever may write a status chooses them."""
    run = analysis_run()
    run["status"]["startedAt"] = run["status"]["readAt"] = run["status"]["verdict"]["since"] = text
    for item in run["status"]["decisions"]:
        item["at"] = text
    found = read_evidence(run)
    assert found.bounds and (found.started_at is not None) == text.startswith("2026-01-01t")
