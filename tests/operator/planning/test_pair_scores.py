"""Scores of pairs: a report in the status, a gate where the template has one, and a scorer that fails."""

import copy
from typing import Any

import pytest

from slipway_contracts.twin_shadow import TwinScorer
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch
from slipway_operator.api.v1alpha1.twin_shadow import PairScores
from slipway_operator.judging.margins import scores
from slipway_operator.model.analysis.verdict import Reading
from slipway_operator.planning.analysis import retrial
from tests.operator.planning.test_analysis import event_message
from tests.operator.planning.test_twin_shadow import QUICK, decided, releasing, run_of, shadow_of, shadowed
from tests.support.model_cluster import ModelCluster

URL = "https://quality.example.com/score"
SCORER = {"url": URL, "content": "Send", "percentage": 20, "margin": 0.05}
REPORT: dict[str, Any] = {
    "name": "scored",
    "kind": "PairedEvent",
    "event": "LowerScore",
    "scorer": SCORER,
    "dryRun": True,
}
GATE: dict[str, Any] = {key: value for key, value in REPORT.items() if key != "dryRun"} | {"share": 0.2, "maxExtra": 50}


def rating(metric: dict[str, Any], lower: float = 0.0, unscored: float = 0.0, **shadow: Any) -> ModelCluster:
    """A new revision whose responses are rated lower, or not at all, in this part of the pairs."""
    world = releasing(shadowed(**shadow), {"pause": {}})
    world.templates = {"quick": copy.deepcopy(QUICK)}
    metrics = world.templates["quick"]["metrics"]
    metrics[0]["share"] = 0.3
    metrics.append(metric)
    world.lower, world.unscored = lower, unscored
    return world


def test_gateways_get_the_scorer_with_the_table() -> None:
    world = rating(REPORT)
    world.run_until("Analyzing")
    world.run(5)
    shadow = shadow_of(world)
    assert shadow and shadow.scorer == TwinScorer(URL, 20, 50, 10) and shadow.quality is None


def test_without_such_a_metric_no_gateway_gets_one() -> None:
    world = releasing(shadowed(), {"pause": {}})
    world.run_until("Analyzing")
    world.run(20)
    shadow, verdict = shadow_of(world), run_of(world).verdict
    assert shadow and shadow.scorer is None and verdict and verdict.scores is None


def test_a_report_has_the_numbers_and_decides_nothing() -> None:
    world = rating(REPORT, 0.5)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass" and verdict.scores
    found = verdict.scores
    assert 0.4 < found.lower_on_canary / found.pairs < 0.6 and found.lower_on_twin == found.unanswered == 0
    assert found.canary_mean and 0.6 < found.canary_mean < 0.7 and found.twin_mean == 0.9
    message = event_message(world, "AnalysisRunSuccessful")
    assert f"of {found.pairs:,} pairs the scorer rates canary's response lower in {found.lower_on_canary:,} " in message


def test_a_gate_rejects_lower_scores_also_of_other_weights() -> None:
    world = rating(GATE, 0.5)
    decided(world, "Aborted")
    assert "scored: " in event_message(world, "AnalysisRunFailed")
    assert " rated lower, of " in event_message(world, "AnalysisRunFailed")


def test_a_gate_passes_equal_scores_and_is_not_the_bound_of_bad_responses() -> None:
    world = rating(GATE)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass" and verdict.extra and verdict.extra.limit == 30
    assert any(line.finding == "NotWorse" and line.name == "scored" for line in verdict.metrics)


@pytest.mark.parametrize("part", [0.3, 1.0])
def test_a_scorer_that_fails_rejects_nothing_and_passes_no_gate(part: float) -> None:
    world = rating(GATE, unscored=part)
    decided(world, "Paused")
    rollout, verdict = world.parsed().rollout, run_of(world).verdict
    assert rollout and verdict and verdict.outcome == "Inconclusive" and verdict.metric == "scored"
    assert verdict.scores and verdict.scores.unanswered > 0
    assert f"the scorer left {verdict.scores.unanswered:,} pairs unanswered" in verdict.message


def test_a_scorer_that_fails_changes_nothing_of_a_report() -> None:
    world = rating(REPORT, unscored=1.0)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass" and verdict.scores and verdict.scores.pairs == 0


def test_without_a_twin_nothing_is_rated() -> None:
    world = rating(REPORT, 0.5, reference="OnFailure")
    world.edit(strategy={"canary": {"steps": [shadowed(reference="OnFailure"), {"pause": {}}]}})
    world.run_until("Analyzing")
    world.run(20)
    shadow, verdict = shadow_of(world), run_of(world).verdict
    assert shadow and shadow.reference == "OnFailure" and shadow.scorer is None and verdict and verdict.scores is None


@pytest.mark.parametrize("metric", [REPORT, GATE])
def test_the_run_alone_gives_the_same_verdict_again(metric: dict[str, Any]) -> None:
    world = rating(metric, 0.05, 0.02)
    world.run_until("Analyzing")
    world.run(90, step=5)
    run = retrial.parse(world.saved_run())
    again = retrial.again(world.obj(), run, world.templates["quick"])
    assert run.verdict and again.notes == () and again.verdict["message"] == run.verdict.message
    assert again.verdict["scores"]["pairs"] > 0


def test_the_status_has_no_content() -> None:
    """Numbers alone come from gateways; the URL is the author's own."""
    world = rating(REPORT, 0.5)
    world.run_until("Analyzing")
    world.run(30, step=5)
    scores = world.saved_run()["status"]["verdict"]["scores"]
    assert scores and all(isinstance(value, int | float) for value in scores.values())


def test_the_sentence_names_what_was_not_sent_and_the_setting() -> None:
    assert scores.sentence(PairScores()) == ""
    blocked = scores.sentence(PairScores(blocked=3, dropped=2))
    assert "3 pairs were not sent to it: list its host in --scorer-hosts" in blocked and "2 were not sent" in blocked


def test_a_template_without_a_scorer_has_no_scores() -> None:
    assert scores.found(Reading((Counts("bad", (Epoch(50, 4, 4),)),), 60.0)) is None
