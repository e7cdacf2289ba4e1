"""Analyses of a rollout: each row of the table by name, and a verdict that no restart changes."""

import copy
import re
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.planning.analysis.counting import MOST_GONE
from slipway_operator.planning.analysis.runs import MOST_CHANGES, READ_S, WRITE_S
from tests.support.model_cluster import Crashed, ModelCluster, ModelGateway, healthy, model

# Decides in about a minute at twenty requests a second: the quality of the judge is tested elsewhere.
QUICK: dict[str, Any] = {
    "minSamples": {"canaryRequests": 50, "warmupSeconds": 10},
    "metrics": [
        {"name": "errors", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.1, "maxRatio": 6.0},
        {"name": "ttft", "event": "Slower(ttft, stable.p90)", "share": 0.5, "tolerateRatio": 1.5, "maxRatio": 6.0},
    ],
    "vetoes": [{"name": "PodCrashLoop", "limit": 3}, {"name": "CanaryCutOff"}],
}
BAD = "file:///models/v2"


def analysis(template: str = "quick", **fields: Any) -> dict[str, Any]:
    return {"templates": [{"templateName": template}], **fields}


def step(**fields: Any) -> dict[str, Any]:
    return {"analysis": analysis(**fields)}


def analyzing(
    *steps: dict[str, Any], canary: dict[str, Any] | None = None, rate: int = 10, weight: int = 25
) -> ModelCluster:
    """A cluster under load whose second version is in its analysis; by default the only step after a weight."""
    world = healthy(replicas=4, steps=[{"setWeight": weight}, *(steps or (step(),))])
    world.spec["strategy"]["canary"] |= canary or {}
    world.templates = {"quick": copy.deepcopy(QUICK)}
    world.rate = rate
    world.run(30)
    world.edit(model=model("v2"))
    return world


def run_of(world: ModelCluster) -> RunStatus:
    run = world.run_now()
    assert run
    return run


def reasons(world: ModelCluster) -> list[str]:
    return [event.reason for event in world.events]


def rows(world: ModelCluster) -> list[str]:
    return [decision.row for decision in world.parsed().decisions]


def event_message(world: ModelCluster, reason: str) -> str:
    return next(event.message for event in world.events if event.reason == reason)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_analysis_begins_and_counts_from_there() -> None:
    world = analyzing()
    world.run_until("Analyzing")
    before = sum(
        sample.revisions[name].requests
        for g in world.gateways
        for sample in g.samples.values()
        for name in sample.revisions
    )
    world.run(1)
    run = run_of(world)
    assert before > 0 and run.counts == (), "what came before is not its own"
    assert [item.metric for item in run.thresholds] == ["ttft/gross"], "for the brake alone"
    assert rows(world)[-1] == "analysis-begins"
    assert "analysis quick of revision" in event_message(world, "AnalysisRunRunning")


def limits_of(world: ModelCluster, metric: str = "ttft") -> list[float]:
    return [item.seconds for item in run_of(world).thresholds if item.metric == metric]


def test_latency_thresholds_are_chosen_at_the_end_of_the_warm_up() -> None:
    world = analyzing()
    world.run_until("Analyzing")
    world.run(QUICK["minSamples"]["warmupSeconds"] - 2)
    assert limits_of(world) == []
    world.run(READ_S + 2)
    assert limits_of(world) == [0.4]


@pytest.mark.finding("S3")
def test_latency_thresholds_from_a_bad_minute_are_renewed_by_the_clock() -> None:
    world = analyzing(step(untilVerdict=False), rate=20)
    world.slow = {model("v1")["uri"], BAD}
    world.run_until("Analyzing")
    world.run(20)
    (busy,) = limits_of(world)
    world.slow = set()
    world.run(90)
    assert limits_of(world) == [busy], "within the clock epoch"
    world.run(40)
    first = limits_of(world)
    world.run(260)
    assert first <= [busy] and limits_of(world) == [0.4] and busy > 0.4
    assert run_of(world).verdict.outcome != "Fail"  # type: ignore[union-attr]


@pytest.mark.finding("S7")
def test_a_canary_many_times_slower_is_braked_during_its_warm_up() -> None:
    world = analyzing(rate=20)
    world.templates["quick"]["minSamples"]["warmupSeconds"] = 120
    world.slow, world.slowness = {BAD}, 20
    world.run_until("Analyzing")
    world.run(40)
    assert run_of(world).braked and world.weights()["v2"] == 1
    assert "is many times slower than stable during its warm-up" in event_message(world, "CanaryBraked")
    assert "because it is many times slower than stable while it warms up" in world.parsed().message
    assert world.state() == "Analyzing", "that is no verdict"
    world.run_until("Aborted", 400)
    assert run_of(world).verdict.metric == "ttft"  # type: ignore[union-attr]
    assert "AnalysisFailed" in str(world.parsed().rollout)


def test_a_cold_canary_that_is_a_few_times_slower_is_not_braked() -> None:
    world = analyzing(rate=20)
    world.templates["quick"]["minSamples"]["warmupSeconds"] = 120
    world.slow, world.slowness = {BAD}, 2
    world.run_until("Analyzing")
    world.run(100)
    assert not run_of(world).braked and world.weights()["v2"] == 25


def test_analysis_counted_is_written_before_it_is_acted_on() -> None:
    world = analyzing()
    world.bad = {BAD: 0.9}
    world.run_until("Analyzing")
    world.reconcile()
    world.pass_time(30)
    world.reconcile()
    run = run_of(world)
    assert world.state() == "Analyzing" and run.verdict and run.verdict.outcome == "Fail"
    assert world.reconcile().status.rollout.state == "Aborting"  # type: ignore[union-attr]


def test_analysis_passed_a_healthy_canary_goes_on_and_is_promoted() -> None:
    world = analyzing()
    world.run_until(None, 400)
    assert world.weights() == {"v2": 100}
    assert "analysis-passed" in rows(world)
    assert "NotWorse" in event_message(world, "AnalysisRunSuccessful")


@pytest.mark.parametrize("fault", ["errors", "ttft"])
def test_analysis_failed_a_worse_canary_is_rejected_with_its_numbers(fault: str) -> None:
    world = analyzing()
    world.bad, world.slow = ({BAD: 0.3}, set()) if fault == "errors" else ({}, {BAD})
    world.run_until("Aborted", 400)
    status = world.parsed()
    assert world.weights() == {"v1": 100}
    assert status.rollout and status.rollout.abort and status.rollout.abort.reason == "AnalysisFailed"
    serving = f"serving stable {status.stable_revision}; revision {status.rollout.revision} was rejected"
    start = f"{serving}: analysis quick: {fault}: "
    assert status.message.startswith(start)
    assert (
        "on canary" in status.message and "on stable; evidence e=" in status.message and "100 rejects" in status.message
    )
    assert {"AnalysisRunFailed", "RolloutAborted"} <= set(reasons(world))
    assert "CanaryVetoed" not in reasons(world)
    progressing = next(item for item in status.conditions if item.type == "Progressing")
    assert (progressing.status, progressing.reason) == ("False", "AnalysisFailed")


def test_analysis_failed_in_the_background_rejects_at_a_pause() -> None:
    world = analyzing({"pause": {}}, canary={"analysis": analysis()})
    world.bad = {BAD: 0.3}
    world.run_until("Paused")
    world.run_until("Aborted", 400)
    assert "analysis quick: errors" in world.parsed().message


def test_background_begins_at_its_step_and_holds_no_healthy_canary_up() -> None:
    world = analyzing(
        {"pause": {"duration": "20s"}}, {"pause": {"duration": "20s"}}, canary={"analysis": analysis(startingStep=2)}
    )
    world.run_until("Paused")
    assert world.run_now("background") is None
    world.run(25)
    assert world.run_now("background") is not None
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_analysis_skipped_by_promote_as_a_pause_is() -> None:
    world = analyzing(rate=0)
    world.run_until("Analyzing")
    world.run(20)
    world.edit(rollout__promote=world.parsed().rollout.step_token)  # type: ignore[union-attr]
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    assert "goes on without a verdict" in event_message(world, "RolloutResumed")


@pytest.mark.parametrize(("choice", "state"), [("Pause", "Paused"), ("Continue", None), ("Abort", "Aborted")])
def test_inconclusive_analysis_follows_on_inconclusive_of_its_template(choice: str, state: str | None) -> None:
    world = analyzing(step(maxDuration="30s"), rate=0)
    world.templates["quick"]["onInconclusive"] = choice
    world.run_until("Analyzing")
    world.run(28)
    assert world.state() == "Analyzing"
    world.run_until(state)
    assert "NoData" in event_message(world, "AnalysisRunInconclusive")
    if choice == "Pause":
        assert world.parsed().pause_conditions[0].reason == "InconclusiveAnalysis"
        assert "no verdict: NoData" in world.parsed().message
        world.edit(rollout__promote=world.parsed().rollout.token)  # type: ignore[union-attr]
        world.run_until(None)


def test_without_requests_nothing_ever_passes() -> None:
    world = analyzing(step(maxDuration="10m"), rate=0)
    world.run_until("Paused", 700)
    assert run_of(world).verdict.reason == "NoData"  # type: ignore[union-attr]


def test_spec_paused_holds_an_analysis_that_passed_and_lets_a_failed_one_abort() -> None:
    world = analyzing()
    world.run_until("Analyzing")
    world.edit(paused=True)
    world.run(300)
    assert world.state() == "Analyzing" and run_of(world).verdict.outcome == "Pass"  # type: ignore[union-attr]
    world.bad = {BAD: 0.9}
    world.run_until("Aborted", 300)


def test_without_until_verdict_it_watches_for_the_whole_time() -> None:
    world = analyzing(step(untilVerdict=False, maxDuration="5m"))
    world.run_until("Analyzing")
    world.run(290)
    assert world.state() == "Analyzing" and run_of(world).verdict.outcome == "Pass"  # type: ignore[union-attr]
    world.run_until(None)


# --- templates --------------------------------------------------------------------------------------------------------


def test_a_missing_template_is_waited_for_and_named() -> None:
    world = analyzing(step(template="mine", maxDuration="60s"))
    world.run_until("Analyzing")
    world.run(10)
    assert "AnalysisTemplate 'mine' does not exist in this namespace" in world.parsed().message
    assert world.run_now("analysis") is None
    world.run_until("Paused", 90)
    assert "AnalysisTemplate 'mine' does not exist" in event_message(world, "AnalysisRunInconclusive")


def test_a_missing_template_that_comes_is_used() -> None:
    world = analyzing(step(template="mine"))
    world.run_until("Analyzing")
    world.run(10)
    world.templates["mine"] = copy.deepcopy(QUICK)
    world.run_until(None, 400)


def test_a_missing_background_template_holds_the_steps() -> None:
    world = analyzing({"pause": {"duration": "5s"}}, canary={"analysis": analysis("mine")})
    world.run(60)
    assert world.weights()["v2"] == 0
    assert "waits for its background analysis: AnalysisTemplate 'mine' does not exist" in world.parsed().message
    world.templates["mine"] = copy.deepcopy(QUICK)
    world.run_until(None, 400)


def test_invalid_template_is_reported_and_stops_nothing_else() -> None:
    world = analyzing(step(maxDuration="30s"))
    world.templates["quick"]["metrics"][0]["event"] = "Sunspots"
    world.run_until("Analyzing")
    world.run(5)
    assert "event 'Sunspots' is none of FirstAttemptError" in world.parsed().message


def test_edited_template_restarts_the_run() -> None:
    world = analyzing()
    world.run_until("Analyzing")
    world.run(20)
    started = run_of(world).started_at
    world.templates["quick"]["falseRollbackRate"] = 0.02
    world.run(2)
    assert run_of(world).started_at > started and run_of(world).counts == ()
    assert "starts again" in [event.message for event in world.events if event.reason == "AnalysisRunRunning"][-1]


def test_llm_default_needs_no_object() -> None:
    world = analyzing(step(template="llm-default"))
    world.run_until("Analyzing")
    world.run(20)
    assert [row.name for row in run_of(world).verdict.metrics][:2] == ["errors", "ttft"]  # type: ignore[union-attr]


def test_analyses_of_one_strategy_share_the_error_rate() -> None:
    world = analyzing(step(), {"setWeight": 50}, step(), canary={"analysis": analysis()})
    world.run_until("Analyzing")
    world.run(10)
    assert run_of(world).verdict.threshold == "300"  # type: ignore[union-attr]


def test_a_latency_that_this_traffic_does_not_have_is_left_out() -> None:
    world = analyzing()
    itl = {"name": "itl", "event": "Slower(itl, stable.p95)", "share": 0.1}
    world.templates["quick"]["metrics"][0]["share"] = 0.4
    world.templates["quick"]["metrics"].append(itl)
    world.run_until("Analyzing")
    world.run(READ_S + 1)
    assert "itl" in [row.name for row in run_of(world).verdict.metrics], "it is too early to know"  # type: ignore[union-attr]
    world.run_until(None, 400)


def test_a_latency_that_only_stable_has_keeps_a_canary_from_passing() -> None:
    world = analyzing(step(maxDuration="3m"))
    world.mute = {BAD}
    world.run_until("Paused", 300)
    verdict = run_of(world).verdict
    assert verdict and (verdict.reason, verdict.metric) == ("NoData", "ttft")


def test_answers_without_a_latency_do_not_hide_that_they_fail() -> None:
    """An empty answer has no time to its first token: fewer of them at the canary do not prove a wrong split."""
    world = analyzing()
    world.mute, world.bad = {BAD}, {BAD: 0.5}
    world.run_until("Aborted", 300)
    assert "analysis quick: errors" in world.parsed().message


# --- vetoes and doubts ------------------------------------------------------------------------------------------------


def test_restarts_of_the_canary_veto_it() -> None:
    world = analyzing()
    world.run_until("Analyzing")
    world.run(6)
    world.restarts = {BAD: 3}
    world.run_until("Aborted", 60)
    assert "PodCrashLoop: canary shows 3, stable 0" in event_message(world, "CanaryVetoed")


def test_restarts_of_both_or_before_the_run_cause_no_veto() -> None:
    world = analyzing(step(maxDuration="30s"), rate=0)
    world.restarts = {BAD: 5}
    world.run_until("Analyzing")
    world.run(6)
    world.restarts = {BAD: 8, "file:///models/v1": 3}
    world.run_until("Paused", 60)


def test_a_gateway_that_cut_the_canary_off_vetoes_it() -> None:
    world = analyzing()
    world.run_until("Analyzing")
    world.run(6)
    world.gateways[0].cut_off = world.parsed().canary_revision or ""
    world.run_until("Aborted", 60)
    assert "CanaryCutOff: canary shows 1, stable 0" in event_message(world, "CanaryVetoed")


def test_wrong_split_has_one_event_and_decides_nothing() -> None:
    world = analyzing(step(maxDuration="2m"))
    world.bad = {BAD: 0.9}
    world.run_until("Analyzing")
    for _ in range(130):
        world.reconcile()
        for gateway in world.gateways:
            for sample in list(gateway.samples.values())[-1:]:
                for name, side in sample.revisions.items():
                    if name == world.parsed().canary_revision:
                        errors = {"errors": side.events.get("errors", 0) + 20}
                        more = {
                            "requests": side.requests + 30,
                            "units": side.units + 30,
                            "assigned": side.assigned + 30,
                        }
                        sample.revisions[name] = replace(side, events=errors, **more)
        world.pass_time()
    assert world.state() == "Paused"
    assert reasons(world).count("SampleRatioMismatch") == 1


def test_a_gateway_that_does_not_answer_makes_it_stale_and_nothing_is_lost() -> None:
    world = analyzing(step(untilVerdict=False))
    world.run_until("Analyzing")
    world.run(10)
    world.gateways[0].reachable = False
    world.run(85)
    assert run_of(world).verdict.reason == "Stale"  # type: ignore[union-attr]
    world.gateways[0].reachable = True
    world.run(READ_S + 1)
    assert run_of(world).verdict.reason != "Stale"  # type: ignore[union-attr]


def test_an_older_gateway_counts_nothing_and_nothing_passes() -> None:
    world = analyzing(step(maxDuration="60s"))
    world.run_until("Analyzing")
    for _ in range(70):
        for gateway in world.gateways:
            gateway.samples = {}
        world.rate = 0
        world.run(1)
    assert world.state() == "Paused" and run_of(world).verdict.reason == "NoData"  # type: ignore[union-attr]


def busy(world: ModelCluster, canary: int) -> None:
    """Six requests in progress at each pod of stable, and so many at canary's."""
    parsed = world.parsed()
    assert parsed.stable_revision and parsed.canary_revision
    world.inflight = {parsed.stable_revision: 12, parsed.canary_revision: canary}


def test_load_from_requests_that_pile_up_in_a_slow_canary_is_no_excuse() -> None:
    """What is in progress there is a consequence of its slowness; by weight its pod has as much to do as stable's."""
    world = analyzing(weight=20)
    world.slow = {BAD}
    world.run_until("Analyzing")
    busy(world, 40)
    world.run_until("Aborted", 300)
    assert "analysis quick: ttft" in world.parsed().message


def test_a_canary_whose_pods_have_more_to_do_is_not_blamed_for_being_slow() -> None:
    """Half of the requests on two pods, the other half on four."""
    world = analyzing(step(maxDuration="2m"), weight=50)
    world.slow = {BAD}
    world.run_until("Analyzing")
    busy(world, 6)
    world.run_until("Paused", 200)
    verdict = run_of(world).verdict
    assert verdict and (verdict.reason, verdict.metric) == ("LoadMismatch", "ttft")
    assert "pods of canary carry 2.00 times the load" in world.parsed().message


def test_an_idle_service_has_no_load_that_could_differ() -> None:
    world = analyzing(weight=50)
    world.slow = {BAD}
    world.run_until("Aborted", 300)
    assert "analysis quick: ttft" in world.parsed().message


def test_a_canary_that_is_slow_with_less_to_do_is_worse_all_the_same() -> None:
    world = analyzing(weight=5, rate=40)
    world.slow = {BAD}
    world.run_until("Analyzing")
    busy(world, 1)
    world.run_until("Aborted", 400)
    assert "analysis quick: ttft" in world.parsed().message


def test_canary_with_less_load_passes_and_the_verdict_reports_the_load() -> None:
    """A low weight on one pod beside four: the usual first step."""
    world = analyzing(step(), {"pause": {}}, weight=10, rate=20)
    world.run_until("Analyzing")
    busy(world, 1)
    world.run_until("Paused", 400)
    assert "canary's pods had 0.44 times the load of stable's" in event_message(world, "AnalysisRunSuccessful")


def test_with_as_many_pods_half_of_the_requests_are_as_much_to_do() -> None:
    """The documented way to an analysis whose latencies prove something."""
    world = analyzing({"setCanaryScale": {"weight": 100}}, step(), {"pause": {}}, weight=50, rate=20)
    world.run_until("Analyzing")
    busy(world, 6)
    world.run_until("Paused", 400)
    assert "times the load" not in event_message(world, "AnalysisRunSuccessful")
    load = run_of(world).load
    assert load.readings and load.canary == load.stable


# --- hanging requests, and pods that are gone -------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["ttft", "errors"])
def test_a_canary_that_answers_nothing_is_rejected_for_it(metric: str) -> None:
    """Once it is silent longer than the threshold, else once it is an error: neither a wrong split nor no data."""
    world = analyzing()
    if metric == "errors":
        world.templates["quick"]["metrics"] = [QUICK["metrics"][0]]
    world.hangs = {BAD: 1.0}
    world.run_until("Analyzing")
    if metric == "errors":
        world.run(20)
        message = world.parsed().message
        assert "NoData: canary was given" in message and "none of them has ended" in message
    world.run_until("Aborted", 40 if metric == "ttft" else 60)
    assert f"analysis quick: {metric}: " in world.parsed().message
    assert "SampleRatioMismatch" not in reasons(world)


def test_a_canary_that_answers_much_later_is_slow_and_no_wrong_split() -> None:
    world = analyzing(step(untilVerdict=False, maxDuration="10m"))
    world.hangs = {BAD: 0.5}
    world.run_until("Aborted", 60)
    assert "analysis quick: ttft: " in world.parsed().message
    assert "SampleRatioMismatch" not in reasons(world)


def test_requests_in_progress_count_once() -> None:
    """Beyond its limit at first, then as an error, and never again however long it stays."""
    world = analyzing(step(untilVerdict=False, maxDuration="1h"))
    world.templates["quick"]["falseRollbackRate"] = 1e-9
    world.run_until("Analyzing")
    world.run(30)
    world.hangs = {BAD: 1.0}
    world.run(1)
    world.hangs, open_now = {}, sum(len(gateway.open) for gateway in world.gateways)
    world.bad = {BAD: 0.0}
    assert open_now > 0

    def canary() -> tuple[int, int, int]:
        errors, ttft, _ = (item.epochs[0] for item in run_of(world).counts)
        return run_of(world).assigned[0].canary_units - errors.canary_units, errors.canary_bad, ttft.canary_bad

    world.run(20)
    waiting, failed, _ = canary()
    assert waiting == open_now
    world.run(70)
    assert canary()[:2] == (0, failed + open_now)
    world.rate = 0
    world.run(5)
    settled = canary()
    world.run(60)
    assert canary() == settled


UNAVAILABLE = {"name": "CanaryUnavailable"}


def test_a_canary_that_is_gone_for_its_own_fault_is_vetoed() -> None:
    world = analyzing()
    world.spec["progressDeadlineSeconds"] = 600
    world.templates["quick"]["vetoes"] = [UNAVAILABLE]
    world.run_until("Analyzing")
    world.run(6)
    world.crashed = {BAD}
    world.run(30)
    assert world.state() == "Analyzing"
    assert "0 of 1 pods ready; pod" in world.parsed().message and "shard 2 is missing" in world.parsed().message
    world.run_until("Aborted", 60)
    message = event_message(world, "CanaryVetoed")
    assert "CanaryUnavailable: canary shows 1, stable 0 (minutes without a ready pod); pod" in message
    assert "CrashLoopBackOff" in message


def test_a_canary_that_comes_back_in_time_is_judged_on() -> None:
    world = analyzing(step(untilVerdict=False, maxDuration="10m"))
    world.templates["quick"]["vetoes"] = [UNAVAILABLE]
    world.run_until("Analyzing")
    for _ in range(2):
        world.crashed = {BAD}
        world.run(50)
        world.crashed = set()
        world.run(10)
    assert world.state() == "Analyzing" and run_of(world).canary_away_since is None


@pytest.mark.parametrize("why", ["fresh", "no node"])
def test_fresh_or_unschedulable_pods_cause_no_veto(why: str) -> None:
    world = analyzing(step(maxDuration="2m"), rate=1)
    world.spec["progressDeadlineSeconds"] = 600
    world.templates["quick"]["vetoes"] = [UNAVAILABLE]
    world.run_until("Analyzing")
    world.run(6)
    canary = world.parsed().canary_revision or ""
    if why == "fresh":
        world.crashed = {BAD}
        world.pods[canary].made = [world.now]
    else:
        world.pods[canary].placed, world.places = 0, 4
    world.run_until("Paused", 150)
    expected = {"fresh": "0 of 1 pods ready; pod", "no node": "0 of 1 pods ready; 1 pod finds no node"}
    assert expected[why] in world.parsed().message


def test_symptom_that_stable_has_too_causes_no_veto() -> None:
    world = analyzing(step(maxDuration="2m"))
    world.spec["progressDeadlineSeconds"] = 600
    world.templates["quick"]["vetoes"] = [UNAVAILABLE]
    world.run_until("Analyzing")
    world.run(6)
    world.crashed = {BAD, "file:///models/v1"}
    world.run(150)
    assert world.state() == "Analyzing" and "waits for pods of stable" in world.parsed().message


def test_analysis_lost_without_a_veto_the_progress_deadline_holds() -> None:
    world = analyzing(step(untilVerdict=False))
    world.templates["quick"]["vetoes"] = []
    world.run_until("Analyzing")
    world.run(100)
    world.crashed = {BAD}
    world.run(50)
    assert world.state() == "Analyzing", "not since the step began, but since there was no pod"
    world.run_until("Aborted", 30)
    status = world.parsed()
    assert status.rollout and status.rollout.abort and status.rollout.abort.reason == "ProgressDeadlineExceeded"
    assert "0 of 1 pods ready and no progress for 60 s: pod" in status.rollout.abort.message


def test_analysis_while_scaled_to_zero_is_reported_and_rejects_no_revision() -> None:
    world = analyzing(step(maxDuration="30s"))
    world.run_until("Analyzing")
    world.edit(replicas=0)
    world.run(100)
    assert world.state() == "Analyzing" and "scaled to zero" in world.parsed().message


def test_gateways_that_send_the_canary_nothing_are_named() -> None:
    world = analyzing()
    world.templates["quick"]["vetoes"] = []
    world.run_until("Analyzing")
    world.gateways[0].cut_off = world.parsed().canary_revision or ""
    world.run(6)
    assert "1 of 2 gateways send it nothing" in world.parsed().message


# --- restarts, writes, bounds -----------------------------------------------------------------------------------------


def replay(
    *, restart_gateway_every: int = 0, crashes: frozenset[int] = frozenset(), seconds: int = 200, hangs: float = 0.0
) -> list[Any]:
    """State and run of each second, of a history that differs in its restarts alone."""
    world = analyzing(step(maxDuration="30m", untilVerdict=False))
    world.bad, world.hangs = {BAD: 0.04}, {BAD: hangs}
    world.run_until("Analyzing")
    history = []
    for second in range(seconds):
        if second in crashes:
            world.calls, world.calls_until_crash = 0, 0
            with suppress(Crashed):
                world.reconcile()
            world.calls_until_crash = None
        before = run_of(world).read_at if world.run_now() else None
        world.reconcile()
        run = world.run_now()
        if restart_gateway_every and run and run.read_at != before and second % restart_gateway_every == 0:
            old = world.gateways[second % 2]
            world.gateways[second % 2] = ModelGateway(old.name, old.generation, digest=old.digest)
        history.append((world.state(), run and (run.counts, run.assigned, run.thresholds, run.verdict, run.decisions)))
        world.pass_time()
    assert any(item[1] and item[1][0] for item in history)
    return history


def test_a_restart_of_the_operator_changes_no_bit_of_a_verdict() -> None:
    undisturbed = replay()
    assert replay(crashes=frozenset(range(0, 200, 3))) == undisturbed
    assert replay(crashes=frozenset(range(0, 200, 5))) == undisturbed


def test_a_restart_at_random_changes_no_bit_while_answers_are_awaited() -> None:
    undisturbed = replay(seconds=120, hangs=0.02)
    for seed in (1, 2):
        crashes = frozenset(Random(seed).sample(range(120), 30))
        assert replay(seconds=120, crashes=crashes, hangs=0.02) == undisturbed


def test_a_restart_of_a_gateway_changes_no_bit_of_a_verdict() -> None:
    assert replay(restart_gateway_every=5) == replay()


def test_counters_make_no_storm_of_writes() -> None:
    world = analyzing(step(maxDuration="30m", untilVerdict=False))
    world.run_until("Analyzing")
    world.run(10)
    before, seconds = world.calls, 300
    world.run(seconds)
    assert world.calls - before <= 2 * seconds / WRITE_S + 2, "each write is one of the run and one of the status"
    assert world.reconcile().requeue_after_s in (0.0, *range(1, READ_S + 1))


def test_without_news_nothing_is_written() -> None:
    world = analyzing({"pause": {}}, canary={"analysis": analysis()})
    world.run_until("Paused")
    world.run(30)
    world.rate = 0
    world.run(20)
    before = world.calls
    world.run(200)
    assert world.calls == before


def test_state_of_a_run_is_bounded() -> None:
    world = analyzing(step(maxDuration="1h", untilVerdict=False))
    world.run_until("Analyzing")
    for number in range(3 * MOST_GONE):
        world.run(READ_S)
        world.gateways[number % 2] = ModelGateway("ab"[number % 2])
    run = run_of(world)
    assert MOST_GONE <= len(run.seen) <= MOST_GONE + 2 * 4
    assert len(run.decisions) <= MOST_CHANGES


def test_epochs_begin_by_weight_and_clock_and_keep_their_order() -> None:
    world = analyzing({"pause": {"duration": "5m"}}, {"setWeight": 50}, {"pause": {}}, canary={"analysis": analysis()})
    world.run_until("Paused")
    world.run(330)
    run = world.run_now("background")
    assert run
    expected = [(0, 25), (1, 25), (2, 25), (2, 50)]
    for item in run.counts:
        assert [(clock, epoch.weight) for clock, epoch in zip(run.clocks, item.epochs, strict=True)] == expected
    latencies = run.counts[1].epochs[0]
    assert 0 < latencies.canary_units < run.counts[0].epochs[0].canary_units, "a cold canary's are left out"


def test_a_second_attempt_is_judged_by_its_own_requests() -> None:
    world = analyzing(step(untilVerdict=False, maxDuration="2m"))
    world.bad = {BAD: 0.5}
    world.run_until("Aborted", 400)
    world.bad = {}
    world.edit(rollout__retry=f"{world.parsed().rollout.revision}/2")  # type: ignore[union-attr]
    world.run_until("Analyzing")
    world.run(60)
    errors = run_of(world).counts[0].epochs[0]
    assert errors.canary_bad < errors.canary_units / 10
    world.run_until(None, 600)


def test_promote_full_skips_an_analysis() -> None:
    world = analyzing(rate=0)
    world.run_until("Analyzing")
    world.edit(rollout__promoteFull=world.parsed().canary_revision)
    world.run_until(None)


# --- margins: extra bad responses, and slowness -----------------------------------------------------------------------

MARGINS: dict[str, Any] = {
    "minSamples": {"canaryRequests": 50, "warmupSeconds": 10},
    "metrics": [
        {"name": "bad", "event": "BadResponse", "share": 0.4, "maxExtra": 50},
        {"name": "errors", "event": "FirstAttemptError", "share": 0.2, "okBelow": 0.0001},
        {"name": "ttft", "event": "Slower(ttft, stable.p90)", "share": 0.4, "tolerateRatio": 1.5, "maxSlowdown": 1.0},
    ],
}


def bounded(**template: Any) -> ModelCluster:
    world = analyzing(rate=20, weight=50)
    world.templates["quick"] = {**MARGINS, **template}
    return world


def test_a_healthy_canary_passes_by_its_margins_and_the_event_reports_the_proof() -> None:
    world = bounded()
    world.run_until(None, 400)
    assert world.weights() == {"v2": 100}
    text = event_message(world, "AnalysisRunSuccessful")
    assert "extra bad responses per 1,000 (limit 50), 95%" in text and "ttft: less than 100% slower, 95%" in text


def test_the_status_has_the_bound_on_extra_bad_responses() -> None:
    world = bounded()
    world.run_until("Analyzing")
    world.run(40)
    extra = run_of(world).verdict.extra  # type: ignore[union-attr]
    assert extra and extra.limit == 50 and extra.estimate <= extra.at_most < 1000
    findings = [row.finding for row in run_of(world).verdict.metrics]  # type: ignore[union-attr]
    assert findings[1] == "Covered", "errors are a part of BadResponse and need no proof of their own"


def test_a_metric_that_needs_no_proof_rejects() -> None:
    world = bounded()
    world.bad = {BAD: 0.5}
    world.run_until("Aborted", 400)
    assert "extra" not in event_message(world, "AnalysisRunFailed")


def test_a_canary_beyond_its_margin_does_not_pass() -> None:
    lenient = {"tolerateRatio": 100, "maxRatio": 1000}
    world = bounded(metrics=[{**MARGINS["metrics"][0], **lenient}])
    world.bad = {BAD: 0.08}
    world.run_until("Analyzing")
    world.run(300)
    assert run_of(world).verdict.outcome == "Inconclusive"  # type: ignore[union-attr]


def test_a_gateway_that_does_not_count_bad_responses_gives_no_data() -> None:
    world = bounded()
    world.run_until("Analyzing")
    for gateway in world.gateways:
        counted = gateway.seen

        def seen(inflight: dict[str, int], now: Any, counted: Any = counted) -> Any:
            found = counted(inflight, now)
            return replace(found, samples=tuple(map(without_bad, found.samples)))

        gateway.seen = seen  # type: ignore[method-assign]
    world.run(300)
    verdict = run_of(world).verdict
    assert verdict and (verdict.outcome, verdict.reason, verdict.metric) == ("Inconclusive", "NoData", "bad")


def without_bad(sample: Any) -> Any:
    sides = {name: replace(side, events={"errors": side.events["errors"]}) for name, side in sample.revisions.items()}
    return replace(sample, revisions=sides)


@pytest.mark.parametrize(("limit", "state"), [(500, None), (0.5, "Paused")])
def test_promote_if_goes_on_only_with_a_bound_that_is_low_enough(limit: float, state: str | None) -> None:
    metrics = [{**MARGINS["metrics"][0], "maxExtra": 0.1}]
    world = bounded(metrics=metrics, onInconclusive="PromoteIf", promoteIf={"maxExtra": limit})
    world.edit(strategy__canary__steps=[{"setWeight": 50}, step(maxDuration="60s")])
    world.run_until("Analyzing")
    world.run(20)
    assert f"then it goes on with at most {limit:g} extra bad responses per 1,000" in world.parsed().message
    world.run_until(state, 400)


def test_promote_if_without_its_bound_pauses() -> None:
    """An API server without the CRD's rules lets it through. Seen: a TypeError for each reconcile."""
    world = bounded(metrics=[{**MARGINS["metrics"][0], "maxExtra": 0.1}], onInconclusive="PromoteIf")
    world.edit(strategy__canary__steps=[{"setWeight": 50}, step(maxDuration="60s")])
    world.run_until("Analyzing")
    assert "then it pauses" in world.parsed().message
    world.run_until("Paused", 400)


@pytest.mark.finding("S8")
def test_the_rejection_of_a_slow_canary_has_milliseconds_and_times() -> None:
    world = analyzing()
    world.slow = {BAD}
    world.run_until("Aborted", 400)
    text = event_message(world, "AnalysisRunFailed")
    assert re.search(r"ttft: median \d+ ms on canary and \d+ ms on stable, \d+\.\d times slower; ", text), text
