"""Quality of pairs: a report in the status, and a gate where the template has it as one."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest

from slipway_contracts.counters import QualityCounts
from slipway_operator.planning.analysis import retrial
from tests.operator.planning.test_analysis import event_message
from tests.operator.planning.test_twin_shadow import QUICK, decided, releasing, run_of, shadow_of, shadowed
from tests.support import model_pairs
from tests.support.model_cluster import ModelCluster, model

REPORT: dict[str, Any] = {"name": "flips", "kind": "PairedEvent", "event": "TokensFlip", "dryRun": True}
GATE = {"name": "flips", "kind": "PairedEvent", "event": "TokensFlip", "share": 0.2, "maxExtra": 50}
BOUND = {"name": "flips", "kind": "PairedEvent", "event": "TokensFlip", "share": 0.2, "maxDisagreement": 0.2}
SAME_WEIGHTS = {"engine": {"args": ["--max-num-seqs", "8"]}}


def comparing(metric: dict[str, Any], drift: float, **change: Any) -> ModelCluster:
    """A new revision that would choose other tokens in this part of its responses."""
    world = releasing(shadowed(), {"pause": {}})
    world.templates = {"quick": copy.deepcopy(QUICK)}
    metrics = world.templates["quick"]["metrics"]
    metrics[0]["share"] = 0.3
    metrics.append(metric)
    world.drift = drift
    if change:
        world.edit(model=model("v1"), **change)
    return world


def test_a_report_has_the_numbers_and_decides_nothing() -> None:
    world = comparing(REPORT, 0.5)
    world.run_until("Analyzing")
    world.run(5)
    shadow = shadow_of(world)
    assert shadow and shadow.quality
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass" and verdict.quality
    found = verdict.quality
    assert found.tokens == 50 * found.texts and found.flips_on_twin == 0
    assert 0.01 < found.flips_on_canary / found.tokens < 0.03 and 0.4 < found.texts_differ / found.texts < 0.6
    assert " are not canary's first choice, 0.00% not stable's; " in event_message(world, "AnalysisRunSuccessful")


def test_without_such_a_metric_gateways_compare_no_texts() -> None:
    world = releasing(shadowed(), {"pause": {}})
    world.run_until("Analyzing")
    world.run(20)
    shadow, verdict = shadow_of(world), run_of(world).verdict
    assert shadow and shadow.quality is None and verdict and verdict.quality is None


def test_a_gate_rejects_other_tokens_of_the_same_weights() -> None:
    world = comparing(GATE, 0.5, **SAME_WEIGHTS)
    decided(world, "Aborted")
    assert "flips: " in event_message(world, "AnalysisRunFailed")


def test_a_gate_passes_the_same_tokens_of_the_same_weights_and_is_not_the_bound_of_bad_responses() -> None:
    world = comparing(GATE, 0.0, **SAME_WEIGHTS)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass" and verdict.extra and verdict.extra.limit == 30
    assert any(line.finding == "NotWorse" and line.name == "flips" for line in verdict.metrics)


def test_other_weights_are_expected_to_choose_other_tokens() -> None:
    world = comparing(GATE, 0.5)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass"
    assert any(line.finding == "Reported" and line.name == "flips" for line in verdict.metrics)


def choosing(lost: float, metric: dict[str, Any] = BOUND) -> ModelCluster:
    """A revision with other weights, which would not choose this part of the tokens that stable chooses."""
    world = comparing(metric, 0.0)
    world.lost = lost
    return world


def test_wrong_scales_of_other_weights_are_rejected_with_the_share_before_any_client_is_served() -> None:
    world = choosing(0.86)
    decided(world, "Aborted")
    verdict = run_of(world).verdict
    assert verdict and (verdict.outcome, verdict.reason, verdict.metric) == ("Fail", "WorseThanStable", "flips")
    message = event_message(world, "AnalysisRunFailed")
    found = re.search(
        r"flips: (8[4-8]\.\d\d)% of the tokens that stable chooses are not canary's first choice, by \d+ responses "
        r"\(maxDisagreement 0\.2\); evidence e=",
        message,
    )
    assert found, message
    assert world.weights() == {"v1": 100}


def test_other_weights_that_choose_nearly_as_stable_does_pass_with_what_is_proved() -> None:
    world = choosing(0.05)
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass" and verdict.extra and verdict.extra.limit == 30
    assert {line.name: line.finding for line in verdict.metrics if line.name == "flips"} == {"flips": "NotWorse"}
    (line,) = (line for line in verdict.metrics if line.name == "flips")
    assert line.canary_samples == line.stable_samples >= 100 and line.canary_bad <= 0.1 * line.canary_samples
    message = event_message(world, "AnalysisRunSuccessful")
    assert re.search(r"flips: [3-7]\.\d\d% of the tokens that stable chooses .*, 1?\d\.\d\d% at most \(max", message)


def test_pairs_whose_tokens_canary_does_not_score_in_time_hold_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary that is slow where it would choose other tokens does not pass by the others."""
    count = model_pairs._compared

    def slowly(before: QualityCounts, pair: model_pairs.ModelPair) -> QualityCounts:
        waits = before.texts >= 2 * before.open + 2
        return replace(before, open=before.open + 1) if waits else count(before, pair)

    monkeypatch.setattr(model_pairs, "_compared", slowly)
    world = choosing(0.05)
    world.run_until("Analyzing")
    world.run(600)
    assert world.state() == "Analyzing"
    verdict = run_of(world).verdict
    assert verdict and verdict.reason == "PairsOpen" and "pairs have not ended" in verdict.message


def test_as_a_report_the_bound_decides_nothing() -> None:
    world = choosing(0.86, BOUND | {"dryRun": True})
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass"
    assert any(line.finding == "Worse" and line.name == "flips" for line in verdict.metrics)


@pytest.mark.parametrize("metric", [REPORT, GATE, BOUND])
def test_the_saved_run_gives_the_same_verdict_again(metric: dict[str, Any]) -> None:
    world = comparing(metric, 0.1)
    world.run_until("Analyzing")
    world.run(90, step=5)
    run = retrial.parse(world.saved_run())
    again = retrial.again(world.obj(), run, world.templates["quick"])
    assert run.verdict and again.notes == () and again.verdict["message"] == run.verdict.message
    assert again.verdict["quality"]["tokens"] > 0
