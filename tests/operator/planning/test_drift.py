"""Drift of mirrored answers: its effect on a rollout depends on the change between the two revisions."""

import copy
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import Outcome
from slipway_operator.model.analysis.template import SHADOW_DRIFT
from slipway_operator.planning.analysis import retrial
from tests.support.model_cluster import ModelCluster, healthy, model

STEPS: list[dict[str, Any]] = [
    {"setCanaryScale": {"replicas": 1}},
    {"setMirrorRoute": {"percentage": 50}},
    {"analysis": {"templates": [{"templateName": "llm-shadow-drift"}], "maxDuration": "2m"}},
    {"pause": {}},
]
IMAGE = {"engine__image": "slipway-server:2"}
ARGUMENTS = {"engine__args": ["--max-batch", "8"]}
WEIGHTS = {"model": model("v2")}
QUANTIZED = {"model": model("v1") | {"quantization": "int8"}}


def shadowed(change: dict[str, Any], *, drift: float, replicas: int = 2, floor: float = 0.02) -> ModelCluster:
    """A rollout of this change up to its first decision."""
    world = healthy(replicas=replicas, steps=copy.deepcopy(STEPS))
    world.rate, world.drift, world.floor = 5, drift, floor
    world.run(10)
    world.edit(**change)
    decided(world)
    return world


def decided(world: ModelCluster) -> None:
    for _ in range(200):
        world.reconcile()
        if world.state() in ("Paused", "Aborted"):
            return
        world.pass_time(2)
    raise AssertionError(world.parsed().message)


CASES = [
    (IMAGE, 0.2, "Aborted", "Fail", "WorseThanStable"),
    (IMAGE, 0.02, "Paused", "Pass", "NotWorse"),
    (ARGUMENTS, 0.2, "Aborted", "Fail", "WorseThanStable"),
    (ARGUMENTS, 0.02, "Paused", "Pass", "NotWorse"),
    (WEIGHTS, 0.2, "Paused", "Pass", "NotWorse"),
    (WEIGHTS, 0.02, "Paused", "Pass", "NotWorse"),
    (QUANTIZED, 0.2, "Paused", "Pass", "NotWorse"),
]


@pytest.mark.parametrize(("change", "drift", "state", "outcome", "reason"), CASES)
def test_drift_rejects_a_change_that_keeps_the_weights(
    change: dict[str, Any], drift: float, state: str, outcome: str, reason: str
) -> None:
    world = shadowed(change, drift=drift)
    run = world.run_now()
    assert run and run.verdict
    verdict = run.verdict
    assert (world.state(), verdict.outcome, verdict.reason) == (state, outcome, reason)
    assert world.weights() == {"v1": 100} if state == "Aborted" else 100 in world.weights().values()
    same_weights = change in (IMAGE, ARGUMENTS)
    row = verdict.metrics[0]
    assert (row.name, row.finding == "Reported") == ("drift", not same_weights)
    assert ("reported only, for the weights differ" in verdict.message) == (not same_weights)
    assert row.canary_samples == row.stable_samples > 0
    if state == "Aborted":
        status = world.parsed()
        assert status.rollout and status.rollout.abort and status.rollout.abort.reason == "AnalysisFailed"
        assert "mirrored prompts" in status.message and "on a second stable pod alone; evidence e=" in status.message
        assert f"{row.canary_bad} on canary alone" in status.message


@pytest.mark.parametrize("change", [IMAGE, ARGUMENTS])
@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_without_a_floor_there_is_no_verdict(change: dict[str, Any], drift: float) -> None:
    world = shadowed(change, drift=drift, replicas=1)
    verdict = world.run_now().verdict  # type: ignore[union-attr]
    assert verdict and (verdict.outcome, verdict.reason) == ("Inconclusive", "NoFloor")
    assert world.state() == "Paused" and "NoFloor: drift: " in world.parsed().message
    assert "needs a second stable pod" in verdict.message
    row = verdict.metrics[0]
    assert row.canary_samples > 0 and (row.canary_bad > 0) == (drift > 0)


def test_without_a_floor_new_weights_are_reported_all_the_same() -> None:
    world = shadowed(WEIGHTS, drift=0.5, replicas=1)
    verdict = world.run_now().verdict  # type: ignore[union-attr]
    assert verdict and (verdict.outcome, verdict.metrics[0].finding) == ("Pass", "Reported")
    assert "needs a second stable pod; reported only, for the weights differ" in verdict.message


def test_stable_that_differs_from_itself_as_often_explains_canary() -> None:
    world = shadowed(IMAGE, drift=0.3, floor=0.3)
    verdict = world.run_now().verdict  # type: ignore[union-attr]
    assert verdict and verdict.outcome != "Fail" and world.state() == "Paused"


@pytest.mark.parametrize(("change", "differ"), [(IMAGE, False), (WEIGHTS, True)])
def test_the_run_alone_gives_the_same_verdict_again(change: dict[str, Any], differ: bool) -> None:
    world = shadowed(change, drift=0.2)
    saved = world.saved_run()
    run = retrial.parse(saved)
    again = retrial.again(world.obj(), run, None)
    assert run.weights_differ == differ
    verdict = saved["status"]["verdict"]
    assert (again.verdict, again.notes) == (verdict, ())
    failing = {look.verdict.outcome for look in again.looks} & {Outcome.FAIL}
    assert failing == (set() if differ else {Outcome.FAIL}), "at no earlier look either"


def test_no_mirrored_request_is_no_data() -> None:
    """The message is not that requests are not split: at weight 0 none have to be."""
    world = healthy(replicas=2, steps=copy.deepcopy(STEPS))
    world.edit(**IMAGE)
    decided(world)
    verdict = world.run_now().verdict  # type: ignore[union-attr]
    assert verdict and (verdict.outcome, verdict.reason) == ("Inconclusive", "NoData")
    assert "no request is split" not in verdict.message


def test_counts_survive_other_weights_and_other_metrics() -> None:
    """Pairs that were counted at weight 0 and at 25 are one sum, and none of them is a request of the split."""
    world = healthy(
        replicas=4,
        steps=[
            {"setMirrorRoute": {"percentage": 50}},
            {"setWeight": 0},
            {"pause": {"duration": "30s"}},
            {"setWeight": 25},
            {"pause": {}},
        ],
    )
    world.templates = {"both": copy.deepcopy(SHADOW_DRIFT)}
    world.templates["both"]["metrics"][0]["share"] = 0.5
    world.templates["both"]["metrics"].append({"name": "errors", "event": "FirstAttemptError", "share": 0.5})
    world.spec["strategy"]["canary"]["analysis"] = {"templates": [{"templateName": "both"}]}
    world.rate, world.drift = 5, 0.02
    world.edit(**IMAGE)
    for _ in range(60):
        world.reconcile()
        world.pass_time(2)
    run = world.run_now("background")
    counts = {item.metric: item.epochs for item in run.counts}  # type: ignore[union-attr]
    assert set(counts) == {"drift", "flips", "errors", "drift/no-floor", "flips/no-floor"}
    paired = [epoch for epoch in counts["drift"] if epoch.canary_units]
    assert {epoch.weight for epoch in paired} == {50} and all(
        epoch.canary_units == epoch.stable_units for epoch in paired
    )
    assert {epoch.weight for epoch in counts["errors"] if epoch.canary_units} == {25}
    shadows = [sample.shadow for gateway in world.gateways for sample in gateway.samples.values()]
    sent = sum(found["text"].pairs for shadow in shadows for found in shadow.values())
    # The last moments are read at the next reconcile that is due.
    assert 0 < sum(epoch.canary_units for epoch in paired) <= sent
