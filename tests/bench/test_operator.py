"""The operator's bench: when a ModelDeployment is settled, what a change took, and which bars fall for what."""

import json
import math

import pytest

from bench.operator import analyses, fleet, report
from bench.operator.measure import Applied, Seen
from slipway_contracts import counters
from slipway_operator.model.deployment.spec import Spec, parse
from testkit.report import report as as_report

MACHINE = {"cores": 2, "cpu": "some", "memory_gib": 8}


def seen(generation=1, observed=1, **status):
    whole = {"observedGeneration": observed, "currentRevision": "r1", **status}
    metadata = {"namespace": "team-0", "name": "model-0", "generation": generation, "uid": "u"}
    return {"metadata": metadata, "status": {name: value for name, value in whole.items() if value is not None}}


STARTED, SERVING = {"rollout": {"revision": "r1"}}, {"phase": "Healthy", "stableRevision": "r1"}
SETTLED = {
    "nothing yet": ({"observed": 0, "currentRevision": None}, False, False),
    "an older generation": ({"generation": 2, **STARTED}, False, False),
    "started": (STARTED, True, False),
    "another revision's rollout": ({"rollout": {"revision": "r0"}}, False, False),
    "serving": (SERVING, False, True),
    "serving, and the next one described": ({**SERVING, "stableRevision": "r0"}, False, False),
    "pods ready, the gateway not": ({**STARTED, "phase": "Progressing"}, True, False),
}


@pytest.mark.parametrize(("status", "bare", "pods"), SETTLED.values(), ids=SETTLED)
def test_settled_is_what_the_operator_can_reach(status, bare, pods):
    assert fleet.is_settled(seen(**status), pods=False) is bare
    assert fleet.is_settled(seen(**status), pods=True) is pods


def test_the_fleet_is_valid_spread_and_changes_make_revisions():
    keys = fleet.keys(25)
    assert len(set(keys)) == 25
    assert {namespace for namespace, _ in keys} < set(fleet.namespaces())
    manifest = fleet.manifest(keys[0])
    spec = parse(manifest | {"metadata": manifest["metadata"] | {"uid": "u"}})
    assert isinstance(spec, Spec)
    uris = {spec.inputs.model.uri, *(fleet.change(number)["spec"]["model"]["uri"] for number in range(1, 9))}
    assert len(uris) == 9
    room = fleet.NODES * min(fleet.NODE_PODS, int(fleet.NODE_CPUS))
    assert room >= 2 * report.LARGEST, "a rollout has pods of two revisions"


def test_children_are_missing_that_are_not_there_or_a_namesakes():
    child = {"metadata": {"namespace": "team-0", "name": "model-0-r1", "ownerReferences": [{"uid": "u"}]}}
    foreign = {"metadata": child["metadata"] | {"ownerReferences": [{"uid": "former"}]}}
    listed = {"Service": [child], "ReplicaSet": [foreign], "ControllerRevision": []}
    assert fleet.missing_children([seen()], listed) == [
        "ReplicaSet team-0/model-0-r1",
        "ControllerRevision team-0/model-0-r1",
    ]


async def test_the_fleet_is_settled_when_all_of_it_is_at_once():
    watched = Seen(2, pods=False)
    other = {"metadata": seen()["metadata"] | {"name": "model-1"}, "status": seen(**STARTED)["status"]}
    watched.observe("LISTED", seen(**STARTED))
    assert (watched.all_listed.is_set(), watched.all_settled.is_set()) == (False, False)
    watched.observe("LISTED", other)
    assert (watched.all_listed.is_set(), watched.all_settled.is_set()) == (True, True)
    watched.observe("MODIFIED", seen(generation=2, **STARTED))
    assert not watched.all_settled.is_set()


async def test_a_change_is_answered_by_the_first_child_of_its_own():
    applied = Applied()
    applied.waited = {("team-0", "model-0"): 0.0, ("team-1", "model-1"): 0.0}
    labelled = {"metadata": {"namespace": "team-0", "labels": {"slipway.dev/modeldeployment": "model-0"}}}
    applied.observe("MODIFIED", labelled)
    assert applied.taken_s == []
    applied.observe("ADDED", labelled)
    applied.observe("ADDED", labelled)
    assert len(applied.taken_s) == 1
    assert list(applied.waited) == [("team-1", "model-1")]


def row(deployments=1000, pods=False, **measured):
    good = {
        "deployments": deployments, "pods": pods, "cold_s": 20.0 * deployments / 1000, "cold_cpu_s": 10.0,
        "missing_children": 0, "unanswered_changes": 0, "apply_s": [0.1] * 99 + [0.9], "peak_rss_mb": 150.0,
        "idle_cpu_share": 0.01, "reconciles": 3000, "calls_total": 9000, "calls": {"apply services": 1000},
    }  # fmt: skip
    return report.finished(good | measured)


def all_rows(**of_a_thousand):
    others = [row(size, pods) for size in (100, 5000) for pods in (False, True)]
    return [*others, row(**of_a_thousand), row(pods=True)]


def fallen(rows):
    return {bar.bar for bar in report.bars(rows) if not bar.ok}


def test_a_good_run_holds_every_bar():
    assert fallen(all_rows()) == set()
    named = {bar.bar for bar in report.bars(all_rows())}
    assert {"5,000 with pods finish", "growth of the time from cold, without pods, exponent"} < named


@pytest.mark.parametrize(
    ("measured", "bar"),
    [
        ({"cold_s": 31.0}, "from cold, 1,000 without pods, s"),
        ({"apply_s": [0.1] * 98 + [1.1, 1.2]}, "event to apply, p99, 1,000 without pods, s"),
        ({"peak_rss_mb": 251.0}, "peak RSS, 1,000 without pods, MB"),
        ({"missing_children": 1}, "children missing, 1,000 without pods"),
        ({"unanswered_changes": 1}, "changes without an apply, 1,000 without pods"),
        ({"cold_s": 12.0}, "growth of the time from cold, without pods, exponent"),
    ],
)
def test_each_bar_falls_for_its_own_reason(measured, bar):
    assert fallen(all_rows(**measured)) == {bar}


def test_with_pods_a_thousand_have_twice_the_time():
    assert fallen([row(pods=True, cold_s=59.0)]) == set()
    assert fallen([row(pods=True, cold_s=61.0)]) == {"from cold, 1,000 with pods, s"}


def test_growth_is_an_exponent():
    assert report.growth([row(1000, cold_s=10.0), row(5000, cold_s=50.0)], pods=False) == pytest.approx(1.0)
    assert report.growth([row(1000, cold_s=10.0), row(5000, cold_s=250.0)], pods=False) == pytest.approx(2.0)
    assert math.isnan(report.growth([row(1000)], pods=False))


def test_page_and_report_have_every_row():
    rows = all_rows()
    made = report.bars(rows)
    page = report.markdown(rows, made, MACHINE, "abc", "2026-01-01")
    assert page.count("| 5,000 |") == 2
    assert "| apply services | 0.333 |" in page
    assert "**no**" not in page
    written = json.loads(json.dumps(as_report("operator", rows, made), allow_nan=False))
    assert (written["name"], len(written["rows"]), len(written["bars"])) == ("operator", 6, len(made))


def test_requests_are_added_where_a_route_is_split_and_grow_with_time():
    split = {"samples": [{"generation": 4, "weights": {"a": 25, "b": 75}, "revisions": {}}]}
    whole = {"samples": [{"generation": 1, "weights": {"a": 100}, "revisions": {}}]}
    body = {"incarnation": "i", "routes": {"t/split": split, "t/whole": whole, "t/none": {}}}
    begun: dict[tuple[str, int], float] = {}
    analyses.with_requests(body, begun, 100.0)
    analyses.with_requests(body, begun, 140.0)
    (counted,) = counters.read(split["samples"], {})
    assert {name: side.units for name, side in counted.revisions.items()} == {"a": 200, "b": 600}
    assert counted.revisions["a"].events["bad"] == 1 and list(begun) == [("t/split", 4)]
    assert whole["samples"][0]["revisions"] == {}


def test_writes_are_calls_that_do_not_read_by_resource():
    before = {"update modeldeployments": 3, "list pods": 1, "create analysisruns": 1}
    after = {"update modeldeployments": 9, "list pods": 5, "create analysisruns": 1, "update analysisruns": 6}
    assert analyses.writes(before, after) == {"modeldeployments": 6, "analysisruns": 6}


def test_an_analysis_has_begun_when_the_status_names_its_run():
    assert analyses.is_analyzed({"rollout": {"state": "Analyzing", "analysis": {"run": "x"}}})
    assert not analyses.is_analyzed({"rollout": {"state": "Analyzing"}}) and not analyses.is_analyzed({})
    manifest = fleet.manifest(fleet.keys(1)[0])
    whole = manifest | {
        "metadata": manifest["metadata"] | {"uid": "u"},
        "spec": manifest["spec"] | analyses.rollout(1)["spec"],
    }
    assert isinstance(parse(whole), Spec)
