"""Predictions of pairs: the verdict at given counts, and how simulated analyses end."""

import numpy as np
import pytest

from slipway_contracts.twin_shadow import PredictionTolerance
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason
from slipway_operator.api.v1alpha1.twin_shadow import FormerRate, ShadowRun
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, MinSamples, of_copies
from slipway_operator.model.analysis.template import parse
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict

LIMIT = 0.05
LABELS = MetricSpec(
    "labels", event="PredictionDisagreement", kind=Kind.PAIRED_EVENT, share=0.5, max_disagreement=LIMIT,
    tolerance=PredictionTolerance(1000, 1000),
)  # fmt: skip
BROKEN = MetricSpec("bad", "BadResponse", Kind.PAIRED_EVENT, share=0.5, max_extra=30.0)
SPEC = AnalysisSpec((BROKEN, LABELS), min_samples=MinSamples(warmup_seconds=0, pairs=300))


def reading(
    *epochs: tuple[int, int], failed: int = 0, unread: int = 0, open_pairs: int = 0, seconds: float = 600.0
) -> Reading:
    """Epochs of pairs (compared, disagreed); what failed on canary alone is bad."""
    compared, lost = sum(n for n, _ in epochs), failed + unread
    counts = (
        Counts("labels", tuple(Epoch(50, n, n, k, 0) for n, k in epochs)),
        Counts(of_copies("labels"), (Epoch(50, compared + lost, compared + lost, failed, unread),)),
        Counts("bad", (Epoch(50, compared + lost, compared + lost, failed, unread),)),
    )
    shadow = ShadowRun((FormerRate("bad", 0, 100_000),), open_pairs)
    return Reading(counts, seconds, shadow=shadow, running_seconds=seconds, weights_differ=True)


def finding(verdict: Verdict) -> Finding:
    return next(row.finding for row in verdict.metrics if row.name == "labels")


def test_other_predictions_reject_and_the_message_speaks_of_pairs() -> None:
    verdict = judge(SPEC, reading((600, 90)))
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.FAIL, Reason.WORSE, "labels")
    assert "labels: of 600 pairs canary predicts something else than its twin for 90 (15.00%)" in verdict.message


def test_equal_predictions_pass_beside_the_bound_on_bad_responses() -> None:
    verdict = judge(SPEC, reading((600, 3), unread=4))
    assert (verdict.outcome, finding(verdict)) == (Outcome.PASS, Finding.NOT_WORSE)
    assert "bad: 0 on canary alone" in verdict.message and "4 could not be read" in verdict.message
    (row,) = (one for one in verdict.metrics if one.disagreement)
    assert row.disagreement and f"{row.disagreement.at_most:.2%} at most" in verdict.message


def test_pairs_that_have_not_ended_count_against_a_pass_and_the_rollout_waits_for_them() -> None:
    alone = AnalysisSpec((LABELS,), min_samples=MinSamples(warmup_seconds=0, pairs=300))
    assert judge(alone, reading((300, 2), open_pairs=2)).outcome is Outcome.PASS
    verdict = judge(alone, reading((300, 2), open_pairs=40))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.PAIRS_OPEN)
    assert judge(alone, reading((300, 60), open_pairs=40)).outcome is Outcome.FAIL


def test_what_canary_failed_proves_nothing_in_its_favour() -> None:
    alone = AnalysisSpec((LABELS,), min_samples=MinSamples(warmup_seconds=0, pairs=300))
    verdict = judge(alone, reading((600, 0), failed=100))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED)
    assert judge(SPEC, reading((600, 0), failed=100)).metric == "bad", "other metrics count it"


def test_without_a_comparison_nothing_passes_and_the_message_says_what_is_read() -> None:
    counts = (Counts("labels", ()), Counts("bad", (Epoch(50, 600, 600, 0, 0),)))
    found = Reading(counts, 600.0, shadow=ShadowRun((FormerRate("bad", 0, 100_000),)), running_seconds=600.0)
    verdict = judge(SPEC, found)
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED, "labels")
    assert "labels has no pair with two predictions" in verdict.message


def test_few_pairs_are_no_verdict_and_the_forecast_is_that_of_the_slower_metric() -> None:
    verdict = judge(SPEC, reading((40, 0)))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED)
    assert verdict.seconds_left and verdict.samples_needed and verdict.samples_needed >= 60


def test_a_template_may_compare_pairs_and_mirrored_requests_and_each_once() -> None:
    mirrored = {"name": "b", "event": "PredictionDisagreement", "share": 1.0, "maxDisagreement": 0.1}
    pairs = mirrored | {"name": "a", "kind": "PairedEvent"}
    spec = parse("t", {"metrics": [pairs | {"tolerance": {"relative": 0.5}}, mirrored]}).spec
    assert spec and spec.tolerance(paired=True) == PredictionTolerance(500_000, 1000)
    assert spec.tolerance(paired=False) == PredictionTolerance(1000, 1000)
    assert [one.name for one in spec.part(paired=True).metrics] == ["a"]
    assert [one.name for one in spec.part(paired=False).metrics] == ["b"]
    found = parse("t", {"metrics": [pairs, pairs | {"name": "c"}]})
    assert "two metrics have the event PredictionDisagreement" in found.problem


def test_without_a_twin_a_template_of_predictions_alone_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="predictions are not compared"):
        AnalysisSpec((LABELS,)).without_latencies  # noqa: B018
    assert AnalysisSpec((BROKEN, LABELS)).without_latencies.metrics == (BROKEN,)


# -- simulated by the judge itself, which takes 30 ms a look: five pairs a second. `test_agreement.py` has many more
# analyses by the same functions.

RUNS, LOOK_S, PER_S, SECONDS = 24, 30, 5, 600


def simulated(flipped: float) -> tuple[float, float, float]:
    """Parts of the analyses that are rejected, and that pass; seconds until half of them have ended."""
    chance = np.random.default_rng(7)
    outcomes, ends = list[Outcome](), list[float]()
    for _ in range(RUNS):
        epochs: dict[int, list[int]] = {}
        for seconds in range(LOOK_S, SECONDS + 1, LOOK_S):
            counts = epochs.setdefault(clock_epoch(seconds), [0, 0])
            counts[0] += LOOK_S * PER_S
            counts[1] += int(chance.binomial(LOOK_S * PER_S, flipped))
            verdict = judge(SPEC, reading(*((n, k) for n, k in epochs.values()), seconds=float(seconds)))
            if verdict.outcome is not Outcome.INCONCLUSIVE:
                break
        outcomes.append(verdict.outcome)
        ends.append(seconds if verdict.outcome is not Outcome.INCONCLUSIVE else np.inf)
    rejected, passed = (outcomes.count(one) / RUNS for one in (Outcome.FAIL, Outcome.PASS))
    print(f"{flipped:.0%}: {rejected:.1%} rejected, {passed:.1%} pass, half within {np.median(ends):.0f} s")
    return rejected, passed, float(np.median(ends))


@pytest.mark.parametrize(
    ("flipped", "rejected", "passed", "within_s"), [(0.0, 0.0, 1.0, 120), (0.01, 0.0, 1.0, 150), (0.1, 1.0, 0.0, 150)]
)
def test_a_tenth_of_flipped_labels_is_rejected_and_an_equal_model_passes(
    flipped: float, rejected: float, passed: float, within_s: float
) -> None:
    found = simulated(flipped)
    assert found[:2] == (rejected, passed)
    assert found[2] <= within_s


def test_at_the_limit_hardly_any_is_rejected_or_passes() -> None:
    rejected, passed, _ = simulated(LIMIT)
    assert rejected == 0 and passed <= 3 / RUNS
