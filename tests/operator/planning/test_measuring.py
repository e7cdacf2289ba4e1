"""Metrics with a provider in a rollout: when they are measured, the result, and no extra measurement after restarts."""

import copy
from contextlib import suppress
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.api.v1alpha1.provider import AnalysisPhase, MetricRun
from slipway_operator.model.analysis.measure import ProviderAnswer
from slipway_operator.planning.analysis.runs import READ_S
from tests.operator.planning.test_analysis import BAD, QUICK, analysis, event_message, reasons, rows, run_of
from tests.support.model_cluster import Crashed, ModelCluster, healthy, model

RATE: dict[str, Any] = {
    "name": "rate",
    "provider": {
        "prometheus": {"address": "http://prometheus:9090", "query": 'rate{v="{{args.new}}",o="{{args.old}}"}'}
    },
    "successCondition": "result[0] > 0.9",
    "interval": "10s",
    "count": 3,
}
SMOKE: dict[str, Any] = {
    "name": "smoke",
    "provider": {
        "job": {
            "spec": {
                "template": {"spec": {"containers": [{"name": "a", "image": "b", "workingDir": "{{args.where}}"}]}}
            }
        }
    },
}
ARGS: list[dict[str, Any]] = [
    {"name": "new", "valueFrom": {"podTemplateHashValue": "Latest"}},
    {"name": "old", "valueFrom": {"podTemplateHashValue": "Stable"}},
    {"name": "where", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
]


def measuring(
    *metrics: dict[str, Any], canary: dict[str, Any] | None = None, step: dict[str, Any] | None = None, **fields: Any
) -> ModelCluster:
    """A cluster whose second version is in an analysis by thresholds, the only step after a weight."""
    world = healthy(replicas=4, steps=[{"setWeight": 25}, {"analysis": analysis("mine", **(step or {}))}])
    world.spec["strategy"]["canary"] |= canary or {}
    world.templates = {"mine": {"metrics": copy.deepcopy(list(metrics) or [RATE]), "args": ARGS, **fields}}
    world.values = {"rate": [0.99], "smoke": True}
    world.edit(model=model("v2"))
    return world


def metric_of(run: RunStatus, name: str = "rate") -> MetricRun:
    return next(item for item in run.measured if item.name == name)


# --- measurements and their times -------------------------------------------------------------------------------------


def test_count_measurements_are_taken_at_the_interval_and_the_rollout_goes_on() -> None:
    world = measuring()
    world.run_until("Analyzing")
    begun = world.now
    world.run_until(None, 200)
    assert world.weights() == {"v2": 100}
    assert [question.key.rpartition("/")[2] for question in world.measured] == ["1", "2", "3"]
    assert 20 <= (world.now - begun).total_seconds() <= 45, "two intervals, each answer written within 5 s of its time"
    assert "analysis-passed" in rows(world)
    assert "measured and good: rate" in event_message(world, "AnalysisRunSuccessful")


def test_arguments_name_both_revisions_and_the_namespace() -> None:
    world = measuring(RATE, SMOKE)
    world.run_until("Analyzing")
    world.run(3)
    status = world.parsed()
    by_metric = {question.metric.name: question for question in world.measured}
    prometheus, job = by_metric["rate"].metric.prometheus, by_metric["smoke"].job
    assert prometheus and job
    assert prometheus.query == f'rate{{v="{status.canary_revision}",o="{status.stable_revision}"}}'
    assert job["spec"]["template"]["spec"]["containers"][0]["workingDir"] == "default"


def test_a_job_has_a_name_of_its_own_an_owner_and_an_end() -> None:
    world = measuring(RATE, SMOKE)
    world.run_until("Analyzing")
    world.run(3)
    job = next(question.job for question in world.measured if question.job)
    metadata, spec = job["metadata"], job["spec"]
    assert metadata["name"].startswith("chat-") and len(metadata["name"]) == len("chat-") + 10
    assert metadata["ownerReferences"][0]["uid"] == "u1"
    assert "slipway.dev/revision" not in metadata["labels"], "it is no pod of a revision"
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (3600, 3600)


def test_the_first_one_waits_for_its_initial_delay() -> None:
    world = measuring({**RATE, "initialDelay": "30s"})
    world.run_until("Analyzing")
    world.run(25)
    assert world.measured == [] and run_of(world).verdict.reason == "Measuring"  # type: ignore[union-attr]
    world.run(15)
    assert len(world.measured) == 1


def test_an_error_without_an_interval_is_tried_again_after_ten_seconds() -> None:
    world = measuring({key: value for key, value in RATE.items() if key not in ("interval", "count")})
    world.values["rate"] = ProviderAnswer(problem="503: away")
    world.run_until("Analyzing")
    world.run(25)
    assert 2 <= len(world.measured) <= 3
    assert "503: away" in world.parsed().message
    world.values["rate"] = [1.0]
    world.run_until(None, 100)
    assert world.weights() == {"v2": 100}


def test_no_measurement_without_a_template_or_after_the_end() -> None:
    world = measuring()
    world.templates = {}
    world.run_until("Analyzing")
    world.run(30)
    assert world.measured == []
    world.templates = {"mine": {"metrics": [RATE], "args": ARGS}}
    world.run_until(None, 200)
    taken = len(world.measured)
    world.run(60)
    assert len(world.measured) == taken == 3


def test_no_measurement_while_scaled_to_zero() -> None:
    world = measuring({**RATE, "count": 50})
    world.run_until("Analyzing")
    world.run(15)
    taken = len(world.measured)
    world.edit(replicas=0)
    world.values["rate"] = [0.0]
    world.run(60)
    assert len(world.measured) <= taken + 1 and world.state() == "Analyzing"
    world.values["rate"] = [1.0]
    world.edit(replicas=4)
    world.run(60)
    assert len(world.measured) > taken + 2


# --- outcomes ---------------------------------------------------------------------------------------------------------


def test_analysis_failed_by_a_threshold_rejects_with_the_value_and_the_condition() -> None:
    world = measuring()
    world.values["rate"] = [0.5]
    world.run_until("Aborted", 200)
    abort = world.parsed().rollout.abort  # type: ignore[union-attr]
    assert abort and abort.reason == "AnalysisFailed"
    assert abort.message == (
        "analysis mine: rate: 1 failed, failureLimit is 0: successCondition result[0] > 0.9 does not hold for [0.5]"
    )
    assert run_of(world).verdict.reason == "MetricFailed"  # type: ignore[union-attr]
    assert {"AnalysisRunFailed", "RolloutAborted"} <= set(reasons(world))
    assert world.weights() == {"v1": 100}


def test_analysis_failed_when_a_provider_is_away_for_too_long() -> None:
    """Never for ever, and never a pass: five errors in a row, as in Argo."""
    world = measuring()
    world.values["rate"] = ProviderAnswer(problem="prometheus:9090 cannot be reached")
    world.run_until("Aborted", 300)
    numbers = [question.key.rpartition("/")[2] for question in world.measured]
    assert numbers == ["1", "2", "3", "4", "5"], "an error has a number too: a Job of it would have a name"
    assert "5 errors in a row" in world.parsed().message
    assert run_of(world).verdict.reason == "MetricError"  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [[], [float("nan")], None, ProviderAnswer(problem="no data")])
@pytest.mark.parametrize("condition", ["successCondition", "failureCondition"])
def test_no_data_is_never_a_pass(value: Any, condition: str) -> None:
    other = {key: item for key, item in RATE.items() if key != "successCondition"}
    world = measuring({**other, condition: "result[0] > 0.9"})
    world.values["rate"] = value
    world.run(200)
    assert world.state() in ("Aborted", "Paused")
    assert "analysis-passed" not in rows(world)


@pytest.mark.parametrize(("choice", "state"), [("Pause", "Paused"), ("Abort", "Aborted"), ("Continue", None)])
def test_analysis_inconclusive_by_a_metric_does_not_wait_for_the_time(choice: str, state: str | None) -> None:
    world = measuring({**RATE, "failureCondition": "result[0] < 0.5"}, onInconclusive=choice)
    world.values["rate"] = [0.7]
    world.run_until("Analyzing")
    world.run_until(state, 60)
    assert "rate: 1 inconclusive" in event_message(world, "AnalysisRunInconclusive")


def test_analysis_failed_by_a_threshold_in_the_background_rejects_at_a_pause() -> None:
    world = healthy(replicas=4, steps=[{"setWeight": 25}, {"pause": {}}])
    world.spec["strategy"]["canary"]["analysis"] = analysis("mine")
    world.templates = {"mine": {"metrics": [{key: RATE[key] for key in RATE if key != "count"}], "args": ARGS}}
    world.values = {"rate": [1.0]}
    world.edit(model=model("v2"))
    world.run_until("Paused")
    world.run(120)
    assert world.state() == "Paused"
    background = world.run_now("background")
    assert background and metric_of(background).successful >= 10
    assert len(metric_of(background).measurements) == 10, "the last ten are kept"
    world.values["rate"] = [0.1]
    world.run_until("Aborted", 60)


def watched(choice: str) -> ModelCluster:
    """A cluster whose second version has a metric in the background that ends inconclusive."""
    world = healthy(replicas=4, steps=[{"setWeight": 25}, {"pause": {"duration": "40s"}}, {"setWeight": 50}])
    world.spec["strategy"]["canary"]["analysis"] = analysis("mine")
    world.templates = {"mine": {"metrics": [{**RATE, "count": 99}], "args": ARGS, "onInconclusive": choice}}
    world.values = {"rate": [float("nan")]}
    world.edit(model=model("v2"))
    world.run(60)
    return world


def test_inconclusive_background_metric_holds_the_steps_and_is_reported() -> None:
    world = watched("Pause")
    world.run(300)
    status = world.parsed()
    assert (world.weights(), status.phase) == ({"v2": 25, "v1": 75}, "Paused")
    assert "waits for its background analysis: rate: 1 inconclusive" in status.message
    assert "compares NaN: there is no data" in status.message
    assert reasons(world).count("AnalysisRunInconclusive") == 1
    world.edit(rollout__promoteFull=status.canary_revision)
    world.run_until(None, 60)
    assert world.weights() == {"v2": 100}


def test_analysis_failed_by_an_inconclusive_background_metric_with_on_inconclusive_abort() -> None:
    world = watched("Abort")
    abort = world.parsed().rollout.abort  # type: ignore[union-attr]
    assert world.state() == "Aborted" and abort and abort.reason == "AnalysisInconclusive"
    assert "AnalysisRunFailed" not in reasons(world)
    assert "analysis mine: rate: 1 inconclusive" in world.parsed().message


def test_inconclusive_background_metric_with_on_inconclusive_continue_holds_nothing() -> None:
    world = watched("Continue")
    world.run_until(None, 100)
    assert world.weights() == {"v2": 100}


def test_a_step_with_an_endless_metric_is_watched_for_its_whole_time() -> None:
    world = measuring({key: RATE[key] for key in RATE if key != "count"}, step={"maxDuration": "90s"})
    world.run_until("Analyzing")
    begun = world.now
    world.run(60)
    assert world.state() == "Analyzing" and run_of(world).verdict.outcome == "Pass"  # type: ignore[union-attr]
    world.run_until(None, 100)
    assert (world.now - begun).total_seconds() >= 90


def test_a_dry_run_is_shown_and_decides_nothing() -> None:
    world = measuring(RATE, {**RATE, "name": "cost", "dryRun": True})
    world.values["cost"] = [0.0]
    world.run_until("Analyzing")
    world.run(READ_S + 1)
    run = run_of(world)
    assert metric_of(run, "cost").phase is AnalysisPhase.FAILED
    world.run_until(None, 200)
    assert world.weights() == {"v2": 100}


# --- beside the comparison --------------------------------------------------------------------------------------------


def test_thresholds_stand_beside_the_judge_and_both_must_pass() -> None:
    world = measuring(*QUICK["metrics"], {**RATE, "count": 20}, minSamples=QUICK["minSamples"])
    world.rate = 10
    world.run_until("Analyzing")
    world.run(150)
    run = run_of(world)
    assert {row.finding for row in run.verdict.metrics} == {"NotWorse"}, "the judge has decided"  # type: ignore[union-attr]
    assert (world.state(), run.verdict.reason) == ("Analyzing", "Measuring")  # type: ignore[union-attr]
    world.run_until(None, 300)


def test_judge_rejects_with_good_thresholds() -> None:
    world = measuring(*QUICK["metrics"], {**RATE, "count": 1000}, minSamples=QUICK["minSamples"])
    world.rate, world.bad = 10, {BAD: 0.4}
    world.run_until("Aborted", 300)
    assert run_of(world).verdict.reason == "WorseThanStable"  # type: ignore[union-attr]


def test_veto_rejects_without_a_comparison() -> None:
    world = measuring({**RATE, "count": 1000}, vetoes=[{"name": "PodCrashLoop", "limit": 3}])
    world.run_until("Analyzing")
    world.run(10)
    world.restarts = {BAD: 3}
    world.run_until("Aborted", 60)
    assert "PodCrashLoop" in world.parsed().message


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_a_restart_of_the_operator_takes_no_measurement_twice_and_none_more() -> None:
    """Killed at each of its calls in turn: the same numbers are measured, however often, and the same is counted.

    A kill between the writes of the run and of the status starts the analysis again, with keys of its own.
    """
    world = measuring({**RATE, "interval": "5s", "count": 6, "failureLimit": 5})
    world.run_until("Analyzing")
    for calls in range(40):
        if world.state() != "Analyzing":
            break
        world.calls, world.calls_until_crash = 0, calls % 3
        with suppress(Crashed):
            world.run(4)
    world.calls_until_crash = None
    world.run_until(None, 200)
    by_run: dict[str, list[int]] = {}
    for question in world.measured:
        run, _, number = question.key.rpartition("/")
        by_run.setdefault(run, []).append(int(number))
    for numbers in by_run.values():
        assert set(numbers) <= set(range(1, 7)), "no number beyond count"
        assert numbers == sorted(numbers), "no measurement is repeated once it is written"
    assert set(numbers) == set(range(1, 7)), "the last run measured all"
    assert len(world.measured) > 6, "kills lost answers, and those calls were repeated under their keys"


def test_changed_template_restarts_the_run_with_new_keys() -> None:
    world = measuring({**RATE, "count": 50})
    world.run_until("Analyzing")
    world.run(15)
    before = {question.key for question in world.measured}
    world.templates["mine"]["metrics"][0]["count"] = 2
    world.run_until(None, 200)
    after = {question.key for question in world.measured} - before
    assert len(after) == 2
    assert "starts again" in "".join(event.message for event in world.events)
