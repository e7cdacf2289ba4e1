"""Predictions for mirrored requests: a canary that predicts something else is rejected, and one that agrees passes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from slipway_contracts.twin_shadow import PredictionTolerance
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.judging.predictions.agreement import log_above, log_below
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, MinSamples, of_copies
from slipway_operator.model.analysis.template import parse
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict

LIMIT = 0.05
MIRRORED = MetricSpec(
    "labels", event="PredictionDisagreement", kind=Kind.PAIRED_DRIFT, share=1.0, max_disagreement=LIMIT,
    tolerance=PredictionTolerance(1000, 1000),
)  # fmt: skip
REPORT = MetricSpec(
    "labels",
    event="PredictionDisagreement",
    kind=Kind.PAIRED_DRIFT,
    dry_run=True,
    tolerance=PredictionTolerance(1000, 1000),
)
ERRORS = MetricSpec("errors", event="FirstAttemptError", share=1.0, ok_below=0.02)
GOOD = (Epoch(weight=50, canary_units=3000, stable_units=3000, canary_bad=3, stable_bad=3),)


def judged(
    disagreed: int,
    compared: int = 1000,
    *,
    failed: int = 0,
    unread: int = 0,
    metrics: tuple[MetricSpec, ...] = (MIRRORED,),
    weights_differ: bool = True,
) -> Verdict:
    """Copies have no weight; their epochs count as those of a half."""
    spec = AnalysisSpec(metrics=metrics, min_samples=MinSamples(canary_requests=200, warmup_seconds=0))
    copies = compared + failed + unread
    counts = (
        Counts("errors", GOOD),
        Counts("labels", (Epoch(50, compared, compared, disagreed, 0),) if copies else ()),
        Counts(of_copies("labels"), (Epoch(50, copies, copies, failed, unread),) if copies else ()),
    )
    return judge(spec, Reading(counts=counts, seconds=600.0, clocks=(0,), weights_differ=weights_differ))


def test_a_canary_that_predicts_something_else_too_often_is_rejected_with_the_numbers() -> None:
    verdict = judged(200)
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.FAIL, Reason.WORSE, "labels")
    assert "labels: of 1,000 mirrored requests canary predicts something else than stable for 200 (20.00%)" in (
        verdict.message
    )
    assert "(maxDisagreement 0.05)" in verdict.message


def test_a_canary_that_agrees_passes_and_what_is_proved_is_shown() -> None:
    verdict = judged(10, failed=2, unread=7)
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.NOT_WORSE)
    (row,) = verdict.metrics
    assert row.finding is Finding.NOT_WORSE and row.disagreement and 0.01 < row.disagreement.at_most < 0.03
    assert f"for 10 (1.00%), {row.disagreement.at_most:.2%} at most" in verdict.message
    assert "2 failed on canary; 7 could not be read" in verdict.message


@pytest.mark.parametrize("weights_differ", [True, False])
def test_whether_the_weights_differ_is_no_question_here(weights_differ: bool) -> None:
    assert judged(200, weights_differ=weights_differ).outcome is Outcome.FAIL
    assert judged(0, weights_differ=weights_differ).outcome is Outcome.PASS


def test_what_canary_failed_holds_nothing_against_it_and_does_not_let_it_pass() -> None:
    verdict = judged(0, failed=100)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED)
    assert judged(0, failed=5).outcome is Outcome.PASS


def test_few_comparisons_are_no_verdict_and_say_how_many_are_needed() -> None:
    verdict = judged(1, 60)
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED, "labels")
    assert "n=60, needs about" in verdict.message
    assert verdict.seconds_left and 60 < (verdict.samples_needed or 0) < 2000


def test_a_canary_at_the_limit_waits_and_no_end_is_near() -> None:
    verdict = judged(50)
    assert verdict.outcome is Outcome.INCONCLUSIVE and (verdict.samples_needed or math.inf) > 100_000


@pytest.mark.parametrize("unread", [0, 40])
def test_without_a_comparison_nothing_passes(unread: int) -> None:
    verdict = judged(0, 0, unread=unread)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.NO_DATA)
    assert "no mirrored request has two predictions" in verdict.message and "setMirrorRoute" in verdict.message
    halves = (replace(ERRORS, share=0.5), replace(MIRRORED, share=0.5))
    beside = judged(0, 0, unread=unread, metrics=halves)
    assert beside.reason is Reason.NO_DATA and beside.metric == "labels"


def test_a_report_has_the_numbers_and_decides_nothing() -> None:
    verdict = judged(500, metrics=(ERRORS, REPORT))
    assert verdict.outcome is Outcome.PASS and verdict.metrics[1].finding is Finding.REPORTED
    assert "labels: of 1,000 mirrored requests canary predicts something else than stable for 500" in verdict.message


def test_the_evidence_adds_to_that_of_other_metrics() -> None:
    halves = (replace(MIRRORED, share=0.5), replace(ERRORS, share=0.5))
    alone, beside = judged(30, 200), judged(30, 200, metrics=halves)
    assert alone.log_evidence > beside.log_evidence > alone.log_evidence - 1


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ({"share": 0.5}, "maxDisagreement goes with"),
        ({"share": 0.5, "maxDisagreement": 0.1, "kind": "BadEvent"}, "go with kind PairedDrift"),
        ({"share": 0.5, "kind": "PairedEvent"}, "maxDisagreement goes with"),
        ({"share": 0.5, "maxDisagreement": 0.1, "kind": "PairedEvent", "maxExtra": 5}, "maxExtra goes with"),
        ({"share": 0.5, "maxDisagreement": 0.1, "tolerance": {"relative": 0.0000015}}, "tolerance.relative"),
        ({"share": 0.5, "maxDisagreement": 0.1, "tolerance": {"absolute": 1.23e-10}}, "tolerance.absolute"),
        ({"event": "EmptyAnswer", "share": 0.5, "maxDisagreement": 0.1}, "maxDisagreement goes with"),
        ({"event": "EmptyAnswer", "dryRun": True, "maxDisagreement": 0.1}, "maxDisagreement goes with"),
        ({"event": "EmptyAnswer", "share": 0.5, "tolerance": {}}, "tolerance goes with"),
        ({"share": 0.5, "maxDisagreement": 0.1, "maxExtra": 5}, "maxExtra goes with"),
    ],
)
def test_what_does_not_go_with_predictions_is_refused_by_name(metric: dict[str, object], words: str) -> None:
    errors = {"name": "errors", "event": "FirstAttemptError", "share": 0.5}
    found = parse("t", {"metrics": [errors, {"name": "labels", "event": "PredictionDisagreement"} | metric]})
    assert found.spec is None and "'labels'" in found.problem and words in found.problem


def test_one_metric_compares_predictions_and_its_tolerance_suits_float32() -> None:
    one = {"name": "a", "event": "PredictionDisagreement", "share": 0.5, "maxDisagreement": 0.1}
    spec = parse("t", {"metrics": [one]}).spec
    assert (
        spec
        and spec.tolerance(paired=False) == PredictionTolerance(1000, 1000)
        and spec.metrics[0].kind is Kind.PAIRED_DRIFT
    )
    written = one | {"tolerance": {"relative": 0.02, "absolute": 0.5}}
    spec = parse("t", {"metrics": [written]}).spec
    assert spec and spec.tolerance(paired=False) == PredictionTolerance(20_000, 500_000_000)
    found = parse("t", {"metrics": [one, one | {"name": "b"}]})
    assert "two metrics have the event PredictionDisagreement" in found.problem


# -- simulated: five comparisons a second, a look after each 50 of them

RUNS, SECONDS, LOOK_S, PER_S = 1000, 1200, 10, 5


def simulated(share: float, *, begins_s: int = 0, failed: float = 0.0) -> tuple[float, float, float, float]:
    """Parts of the runs that are ever rejected, and that ever pass; medians of the comparisons until then."""
    chance, clocks = np.random.default_rng(7), list[int]()
    k = n = failures = np.zeros((RUNS, 0))
    ended, at = np.zeros((2, RUNS), bool), np.full((2, RUNS), np.inf)
    for second in range(LOOK_S, SECONDS + 1, LOOK_S):
        if (clock := clock_epoch(second)) not in clocks:
            clocks.append(clock)
            k, n, failures = (np.concatenate([one, np.zeros((RUNS, 1))], axis=1) for one in (k, n, failures))
        lost = chance.binomial(LOOK_S * PER_S, failed, RUNS)
        compared = LOOK_S * PER_S - lost
        k[:, -1] += chance.binomial(compared, share if second > begins_s else 0.01)
        n[:, -1] += compared
        failures[:, -1] += lost
        below = log_below(k.sum(axis=1), n.sum(axis=1), failures.sum(axis=1), LIMIT)
        proved = (below >= math.log(20)) & (n.sum(axis=1) >= 300)
        for place, now in enumerate((log_above(k, n, LIMIT) >= math.log(100), proved)):
            new = now & ~ended[place]
            at[place, new] = n[new].sum(axis=1)
            ended[place] |= new
    rejected, passed = (float(one.mean()) for one in ended)
    medians = [float(np.median(one)) for one in at]
    print(
        f"{share:.0%}: {rejected:.1%} rejected, half at {medians[0]:.0f}; {passed:.1%} pass, half at {medians[1]:.0f}"
    )
    return rejected, passed, medians[0], medians[1]


@pytest.mark.parametrize(("share", "within"), [(0.0, 300), (0.01, 400)])
def test_a_healthy_canary_passes_soon_and_is_not_rejected(share: float, within: int) -> None:
    rejected, passed, _, until = simulated(share)
    assert rejected <= 0.01 and passed >= 0.99 and until <= within


@pytest.mark.parametrize(("share", "within"), [(0.1, 500), (0.2, 100), (1.0, 50)])
def test_a_canary_far_above_the_limit_is_rejected_soon_and_does_not_pass(share: float, within: int) -> None:
    rejected, passed, until, _ = simulated(share)
    assert rejected >= 0.99 and passed <= 0.01 and until <= within


def test_a_canary_at_the_limit_is_neither_rejected_nor_passed_more_often_than_is_promised() -> None:
    rejected, passed, _, _ = simulated(LIMIT)
    assert rejected <= 0.01 and passed <= 0.05


def test_a_canary_that_becomes_worse_late_is_still_rejected() -> None:
    rejected, _, _, _ = simulated(0.3, begins_s=300)
    assert rejected >= 0.99


def test_a_canary_that_fails_a_tenth_of_the_copies_does_not_pass() -> None:
    rejected, passed, _, _ = simulated(0.01, failed=0.1)
    assert rejected <= 0.01 and passed <= 0.01
