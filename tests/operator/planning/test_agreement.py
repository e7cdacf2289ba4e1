"""Rollouts of classic models with mirrored requests: labels decide before any client gets one of canary's."""

import copy
from typing import Any

import pytest

from slipway_contracts.twin_shadow import PredictionTolerance
from slipway_operator.planning.analysis import retrial
from tests.support.model_cluster import ModelCluster, healthy, model

LABELS: dict[str, Any] = {"name": "labels", "event": "PredictionDisagreement", "share": 1.0, "maxDisagreement": 0.05}
REPORT = {"name": "labels", "event": "PredictionDisagreement", "dryRun": True}
STEPS: list[dict[str, Any]] = [
    {"setCanaryScale": {"replicas": 1}},
    {"setMirrorRoute": {"percentage": 50}},
    {"analysis": {"templates": [{"templateName": "labels"}], "maxDuration": "10m"}},
    {"pause": {}},
]


def mirrored(*metrics: dict[str, Any], disagree: float, steps: list[dict[str, Any]] | None = None) -> ModelCluster:
    """A new model that predicts something else in this part, up to its first decision."""
    world = healthy(replicas=2, steps=copy.deepcopy(steps or STEPS))
    world.templates = {
        "labels": {"minSamples": {"canaryRequests": 100, "warmupSeconds": 0}, "metrics": list(metrics or (LABELS,))}
    }
    world.rate, world.drift = 5, disagree
    world.run(10)
    world.edit(model=model("v2"))
    for _ in range(400):
        world.reconcile()
        assert world.weights().get("v2", 0) == 0 or world.state() in ("Paused", None), "copies alone"
        if world.state() in ("Paused", "Aborted"):
            return world
        world.pass_time(2)
    raise AssertionError(world.parsed().message)


def verdict_of(world: ModelCluster) -> Any:
    run = world.run_now()
    assert run and run.verdict
    return run.verdict


def test_a_new_model_with_other_labels_is_rejected_at_weight_0() -> None:
    world = mirrored(disagree=0.3)
    verdict = verdict_of(world)
    assert (world.state(), verdict.outcome, verdict.metric) == ("Aborted", "Fail", "labels")
    assert world.weights() == {"v1": 100}
    message = world.parsed().message
    assert message and "mirrored requests canary predicts something else than stable for" in message
    row = verdict.metrics[0]
    assert row.canary_samples == row.stable_samples > row.canary_bad > 0 and row.stable_bad == 0


@pytest.mark.parametrize("disagree", [0.0, 0.01])
def test_a_new_model_that_agrees_goes_on(disagree: float) -> None:
    world = mirrored(disagree=disagree)
    verdict = verdict_of(world)
    assert (world.state(), verdict.outcome, verdict.metrics[0].finding) == ("Paused", "Pass", "NotWorse")
    assert verdict.metrics[0].canary_samples >= 100


def test_the_table_has_the_tolerance_while_a_rollout_compares_and_not_before() -> None:
    world = mirrored(LABELS | {"tolerance": {"relative": 0.01, "absolute": 0.5}}, disagree=0.0)
    traffic = world.parsed().traffic
    assert traffic and [one.tolerance for one in traffic.mirror_routes] == [PredictionTolerance(10_000, 500_000_000)]


def test_without_such_a_metric_gateways_compare_no_predictions() -> None:
    steps = copy.deepcopy(STEPS)
    steps[2]["analysis"]["templates"] = [{"templateName": "llm-shadow-drift"}]
    world = mirrored(LABELS, disagree=0.0, steps=steps)
    traffic = world.parsed().traffic
    assert traffic and [one.tolerance for one in traffic.mirror_routes] == [None]


def test_without_a_mirror_nothing_passes() -> None:
    world = mirrored(disagree=0.0, steps=[STEPS[0], *STEPS[2:]])
    verdict = verdict_of(world)
    assert (world.state(), verdict.outcome, verdict.reason) == ("Paused", "Inconclusive", "NoData")
    assert "setMirrorRoute" in verdict.message


def test_a_report_beside_what_decides_has_the_numbers_and_rejects_nothing() -> None:
    same_texts = {"name": "texts", "event": "AnswerDiffers", "share": 1.0, "okBelow": 0.05}
    world = mirrored(same_texts, REPORT, disagree=0.3)
    verdict = verdict_of(world)
    assert (world.state(), verdict.outcome) == ("Paused", "Pass")
    found = {row.name: row.finding for row in verdict.metrics}
    assert found["labels"] == "Reported" and "labels: of " in verdict.message


def test_the_run_alone_gives_the_same_verdict_again() -> None:
    world = mirrored(disagree=0.3)
    saved = world.saved_run()
    again = retrial.again(world.obj(), retrial.parse(saved), world.templates["labels"])
    verdict = saved["status"]["verdict"]
    assert (again.verdict, again.notes) == (verdict, ()) and verdict["outcome"] == "Fail"
