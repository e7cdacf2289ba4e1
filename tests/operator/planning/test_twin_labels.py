"""Twin shadows of classic models: labels of pairs decide before any client is served by the new model."""

import copy
from typing import Any

import pytest

from slipway_contracts.twin_shadow import PredictionTolerance
from slipway_operator.planning.analysis import retrial
from tests.operator.planning.test_analysis import BAD, event_message
from tests.operator.planning.test_twin_shadow import decided, releasing, run_of, shadow_of, shadowed
from tests.support.model_cluster import ModelCluster

BROKEN: dict[str, Any] = {
    "name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.5, "maxExtra": 30,
}  # fmt: skip
LABELS: dict[str, Any] = {
    "name": "labels", "kind": "PairedEvent", "event": "PredictionDisagreement", "share": 0.5, "maxDisagreement": 0.05,
}  # fmt: skip
REPORT = {"name": "labels", "kind": "PairedEvent", "event": "PredictionDisagreement", "dryRun": True}


def classified(*metrics: dict[str, Any], flipped: float, **fields: Any) -> ModelCluster:
    """A release of a classifier that gives another label in this part of its responses."""
    world = releasing(shadowed(**fields), {"pause": {}})
    found = list(copy.deepcopy(metrics or (BROKEN, LABELS)))
    world.templates = {"quick": {"minSamples": {"pairs": 100, "warmupSeconds": 20}, "metrics": found}}
    world.drift = flipped
    return world


def test_a_canary_with_a_tenth_of_flipped_labels_is_rejected_before_any_client_is_served() -> None:
    world = classified(flipped=0.1)
    decided(world, "Aborted")
    verdict = run_of(world).verdict
    assert verdict and (verdict.outcome, verdict.reason, verdict.metric) == ("Fail", "WorseThanStable", "labels")
    message = event_message(world, "AnalysisRunFailed")
    assert "labels: of " in message and " pairs canary predicts something else than its twin for " in message
    assert world.weights() == {"v1": 100}
    (row,) = (one for one in verdict.metrics if one.name == "labels")
    assert row.canary_samples == row.stable_samples > row.canary_bad > 0 == row.stable_bad


@pytest.mark.parametrize("flipped", [0.0, 0.01])
def test_an_equal_canary_passes_and_the_message_has_what_is_proved(flipped: float) -> None:
    world = classified(flipped=flipped)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass"
    assert {row.name: row.finding for row in verdict.metrics} == {"bad": "NotWorse", "labels": "NotWorse"}
    message = event_message(world, "AnalysisRunSuccessful")
    assert "prompts answered twice; bad: " in message and "(maxDisagreement 0.05)" in message and "% at most" in message


def test_labels_alone_can_decide() -> None:
    for flipped, state in ((0.0, "Paused"), (0.3, "Aborted")):
        world = classified(LABELS | {"share": 1.0}, flipped=flipped)
        decided(world, state)
        verdict = run_of(world).verdict
        assert verdict and verdict.pairs and verdict.pairs.users > 0


def test_a_report_has_the_numbers_and_decides_nothing() -> None:
    world = classified(BROKEN, REPORT, flipped=0.5)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass"
    assert {row.name: row.finding for row in verdict.metrics}["labels"] == "Reported"


def test_a_canary_that_fails_what_it_would_predict_otherwise_does_not_pass() -> None:
    world = classified(LABELS | {"share": 1.0}, flipped=0.0)
    world.bad = {BAD: 0.2}
    world.run_until("Analyzing")
    world.run(300, step=5)
    verdict = run_of(world).verdict
    assert verdict and (world.state(), verdict.outcome, verdict.reason) == ("Analyzing", "Inconclusive", "Undecided")


def test_the_table_has_the_tolerance_of_pairs_alone() -> None:
    tolerance = {"relative": 0.01, "absolute": 0.5}
    world = classified(BROKEN, LABELS | {"tolerance": tolerance}, flipped=0.0)
    world.run_until("Analyzing")
    world.run(5)
    shadow = shadow_of(world)
    assert shadow and shadow.tolerance == PredictionTolerance(10_000, 500_000_000)
    without = classified(BROKEN, flipped=0.0)
    without.run_until("Analyzing")
    without.run(5)
    shadow = shadow_of(without)
    assert shadow and shadow.tolerance is None
    mirrored = {"name": "mirrored", "event": "PredictionDisagreement", "share": 0.5, "maxDisagreement": 0.05}
    both = classified(BROKEN, LABELS | {"tolerance": tolerance}, mirrored, flipped=0.0)
    both.run_until("Analyzing")
    both.run(5)
    shadow = shadow_of(both)
    assert shadow and shadow.tolerance == PredictionTolerance(10_000, 500_000_000)


def test_without_a_twin_labels_are_left_out_and_failures_decide() -> None:
    for metrics in ((BROKEN, LABELS), (BROKEN | {"share": 1.0},)):
        world = classified(*metrics, flipped=0.5, reference="OnFailure")
        spec = copy.deepcopy(world.obj()["spec"]["strategy"])
        spec["canary"]["baselinePod"] = False
        world.edit(strategy=spec)
        decided(world, "Paused")
        verdict = run_of(world).verdict
        assert verdict and verdict.outcome == "Pass" and [row.name for row in verdict.metrics] == ["bad"]


def test_the_run_alone_gives_the_same_verdict_again() -> None:
    world = classified(flipped=0.1)
    decided(world, "Aborted")
    saved = world.saved_run()
    again = retrial.again(world.obj(), retrial.parse(saved), world.templates["quick"])
    verdict = saved["status"]["verdict"]
    assert (again.verdict, again.notes) == (verdict, ()) and verdict["outcome"] == "Fail"
