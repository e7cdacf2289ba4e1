"""Scores of pairs as the judge counts them: what is not known speaks against a pass and against no side."""

import pytest

from slipway_contracts.twin_shadow import TwinScorer
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome
from slipway_operator.api.v1alpha1.twin_shadow import ShadowRun
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, MinSamples
from slipway_operator.model.analysis.verdict import Reading, Verdict

SCORER = TwinScorer("https://quality.example.com/score", 10, 100, 10)
SCORED = MetricSpec("scored", "LowerScore", Kind.PAIRED_EVENT, share=0.5, max_extra=50, scorer=SCORER)
SPEC = AnalysisSpec(metrics=(SCORED,), min_samples=MinSamples(pairs=100, warmup_seconds=0))


def judged(scored: int, lower: int = 0, twin_lower: int = 0, unknown: int = 0, pending: int = 0) -> Verdict:
    counts = (
        Counts("scored", (Epoch(50, scored + unknown, scored, lower, twin_lower),)),
        Counts("scored/unscored", (Epoch(50, scored + unknown, scored + unknown, unknown, 0),)),
    )
    return judge(SPEC, Reading(counts, 600.0, running_seconds=600.0, shadow=ShadowRun(scoring=pending)))


def test_equal_scores_pass() -> None:
    found = judged(400, 10, 10)
    assert found.outcome is Outcome.PASS and found.scores and found.scores.pairs == 400
    assert found.metrics[0].extra and found.metrics[0].extra.at_most < 50


@pytest.mark.parametrize(("lower", "twin_lower", "fails"), [(40, 2, True), (2, 40, False), (40, 40, False)])
def test_lower_scores_of_canary_alone_reject_it(lower: int, twin_lower: int, fails: bool) -> None:
    found = judged(400, lower, twin_lower)
    assert (found.outcome is Outcome.FAIL) is fails
    assert not fails or "40 on canary alone, 2 on its twin alone rated lower, of 400 pairs" in found.message


@pytest.mark.parametrize("unknown", [100, 4000])
def test_what_has_no_result_rejects_nothing_and_proves_nothing(unknown: int) -> None:
    found = judged(400, unknown=unknown)
    assert found.outcome is Outcome.INCONCLUSIVE and f"left {unknown:,} pairs unanswered" in found.message
    assert found.metrics[0].log_evidence < 1, "no evidence against canary"
    assert judged(0, unknown=unknown).outcome is Outcome.INCONCLUSIVE


def test_a_pass_waits_for_calls_in_progress_and_not_for_ever() -> None:
    assert judged(200).outcome is Outcome.PASS
    found = judged(200, pending=30)
    assert found.outcome is Outcome.INCONCLUSIVE and found.reason == "PairsOpen"
    assert "30 pairs have not ended, and no further one is sent until they have" in found.message
