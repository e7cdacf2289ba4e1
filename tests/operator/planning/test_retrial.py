"""A rollout's analysis, judged again from its object alone: the same verdict, and how it came to be."""

import json
import math
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import Outcome
from slipway_operator.model.analysis.verdict import Finding
from slipway_operator.planning.analysis import retrial
from tests.operator.planning.test_analysis import BAD, QUICK, analyzing, run_of, step
from tests.operator.planning.test_blue_green import analysed
from tests.support.model_cluster import ModelCluster


@pytest.fixture(scope="module")
def rejected() -> dict[str, Any]:
    """A ModelDeployment whose canary failed every tenth request, until it was rejected; read only."""
    world = analyzing()
    world.bad = {BAD: 0.1}
    world.run_until("Aborted", 400)
    return saved(world)


def saved(world: ModelCluster) -> dict[str, Any]:
    """As kubectl saves both objects: the ModelDeployment, with its AnalysisRun in `run`."""
    return dict(json.loads(json.dumps(world.obj() | {"run": world.saved_run()})))


def judged_again(obj: dict[str, Any], template: dict[str, Any] | None = None) -> retrial.Retrial:
    return retrial.again(obj, retrial.parse(obj["run"]), QUICK if template is None else template)


def test_the_verdict_is_the_operators_own(rejected: dict[str, Any]) -> None:
    again = judged_again(rejected)
    assert again.notes == ()
    assert again.verdict == verdict_of(rejected)
    assert again.looks[-1].verdict.outcome is Outcome.FAIL


def test_the_evidence_grows_to_the_threshold_and_never_before_passes_it(rejected: dict[str, Any]) -> None:
    looks = judged_again(rejected).looks
    assert len(looks) > 1 and [look.seconds for look in looks] == sorted({look.seconds for look in looks})
    crossed = [look.verdict.log_evidence >= math.log(100) for look in looks]
    assert crossed == [False] * (len(looks) - 1) + [True]
    requests = [look.verdict.metrics[0].canary_units for look in looks]
    assert requests == sorted(requests) and requests[0] < requests[-1]


def test_at_every_moment_of_a_run_the_verdict_can_be_had_again() -> None:
    world = analyzing(step(maxDuration="2h"))
    world.run_until("Analyzing")
    seen = set()
    for _ in range(30):
        world.run(3)
        if world.state() != "Analyzing" or not run_of(world).verdict:
            continue
        again = judged_again(saved(world))
        assert (again.verdict, again.notes) == (verdict_of(saved(world)), ())
        seen.add(again.verdict["reason"])
    assert len(seen) > 1, "one kind of verdict proves little"


@pytest.mark.parametrize("value", [0.9, 0.1, None, "much"])
@pytest.mark.parametrize("field", ["prePromotionAnalysis", "postPromotionAnalysis"])
def test_thresholds_and_a_switch_without_a_split_are_part_of_it(field: str, value: Any) -> None:
    """Both around a blue-green switch, without a split: the operator's own verdict at any time."""
    world = analysed(field, values={"score": value, "live": value})
    name = {"prePromotionAnalysis": "before", "postPromotionAnalysis": "after"}[field]
    errors = {"name": "errors", "event": "FirstAttemptError", "share": 1.0}
    world.templates[name] = {"metrics": [*world.templates[name]["metrics"], errors]}
    world.rate, seen = 10, set()
    world.run_until("Analyzing")
    for _ in range(20):
        world.run(4)
        if not world.run_now() or not world.run_now().verdict:  # type: ignore[union-attr]
            continue
        run = world.saved_run()["status"]
        again = judged_again(saved(world), world.templates[name])
        assert (again.verdict, again.notes) == (run["verdict"], ())
        assert [item["name"] for item in again.measured] == [item["name"] for item in run["measured"]]
        seen.add(again.verdict["reason"])
    assert seen and seen <= {"NoData", "MetricFailed", "MetricError"}


def test_analyses_of_one_strategy_share_the_error_rate() -> None:
    world = analyzing(step(), {"setWeight": 50}, step())
    world.bad = {BAD: 0.3}
    world.run_until("Aborted", 400)
    again = judged_again(saved(world))
    assert again.verdict["threshold"] == "200" and again.notes == ()


def test_a_canary_without_latencies_was_judged_without_them_at_the_time() -> None:
    world = analyzing()
    world.mute = {BAD, "file:///models/v1"}
    world.run_until("Analyzing")
    world.run(40)
    obj = saved(world)
    again = judged_again(obj)
    assert (again.verdict, again.notes) == (verdict_of(obj), ())
    assert again.looks[0].verdict.metrics[-1].finding is Finding.NO_DATA


# --- what cannot be judged again --------------------------------------------------------------------------------------


def with_run(obj: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The objects with changed fields of the run."""
    made: dict[str, Any] = json.loads(json.dumps(obj))
    made["run"]["status"] |= changes
    return made


def verdict_of(obj: dict[str, Any]) -> dict[str, Any]:
    """The verdict in the run."""
    return dict(obj["run"]["status"]["verdict"])


def test_a_template_that_changed_since_is_named(rejected: dict[str, Any]) -> None:
    again = judged_again(rejected, {**QUICK, "falseRollbackRate": 0.001})
    assert again.notes == ("AnalysisTemplate quick has changed since: this is what the present one computes",)
    assert again.verdict["threshold"] == "1e+03"


def test_a_run_without_a_history_shows_its_end(rejected: dict[str, Any]) -> None:
    obj = with_run(rejected, trace=[])
    again = judged_again(obj)
    assert [look.verdict.outcome for look in again.looks] == [Outcome.FAIL]
    assert again.notes == ("the run holds no history of the counts: only the end is shown",)


def test_run_that_contradicts_its_counts_is_reported(rejected: dict[str, Any]) -> None:
    obj = json.loads(json.dumps(rejected))
    obj["run"]["status"]["verdict"]["outcome"] = "Pass"
    assert judged_again(obj).notes == ("the operator wrote down something else: Pass, WorseThanStable",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"template": "gone"}, "AnalysisTemplate 'gone' does not exist in this namespace"),
        (
            {"counts": [{"metric": "errors", "epochs": [{"weight": 25, "canaryUnits": 1, "canaryBad": 2}]}]},
            "cannot be read",
        ),
        ({"startedAt": "yesterday"}, "cannot be read"),
        ({"seen": 3}, "cannot be read"),
        ({"verdict": 1}, "AnalysisRun chat-.* cannot be read"),
    ],
)
def test_invalid_object_is_refused_with_a_message(
    rejected: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    obj = with_run(rejected, **change)
    with pytest.raises(ValueError, match=sentence):
        retrial.again(obj, retrial.parse(obj["run"]), None)


@pytest.mark.parametrize("rollout", [None, 1, [], {"state": "Paused"}, {"analysis": "x"}, {"analysis": {"run": ""}}])
def test_status_that_names_no_run_has_none(rollout: Any) -> None:
    assert retrial.named({"status": {"rollout": rollout}}) == retrial.named({}) == {}
