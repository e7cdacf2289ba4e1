"""Feedback of clients: a worse canary is rejected, a healthy one passes, and unequal feedback decides nothing."""

import math
from typing import Any

import numpy as np
import pytest

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason
from slipway_operator.judging.verdict import Tally, judge, log_evidence, mismatched
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, MinSamples
from slipway_operator.model.analysis.template import parse
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict

ERRORS = MetricSpec("errors", event="FirstAttemptError", share=0.5, ok_below=0.02)
WRONG = MetricSpec("wrong", event="WrongAnswer", share=0.5, max_ratio=1.5)
SPEC = AnalysisSpec(metrics=(ERRORS, WRONG), min_samples=MinSamples(canary_requests=200, warmup_seconds=0))
GOOD = Epoch(weight=25, canary_units=2500, stable_units=7500, canary_bad=2, stable_bad=8)


def judged(feedback: Epoch | None, errors: Epoch = GOOD, spec: AnalysisSpec = SPEC) -> Verdict:
    counts = (Counts("errors", (errors,)), Counts("wrong", (feedback,) if feedback else ()))
    return judge(spec, Reading(counts=counts, seconds=600.0))


def test_a_canary_that_is_wrong_more_often_is_rejected_with_its_numbers() -> None:
    verdict = judged(Epoch(weight=25, canary_units=250, stable_units=750, canary_bad=75, stable_bad=75))
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.FAIL, Reason.WORSE, "wrong")
    assert "75 of 250 bad (30.00%) on canary, 75 of 750 bad (10.00%) on stable" in verdict.message


def test_a_canary_that_is_as_often_right_passes() -> None:
    verdict = judged(Epoch(weight=25, canary_units=2500, stable_units=7500, canary_bad=250, stable_bad=750))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.NOT_WORSE)


def test_a_bound_on_extra_wrong_answers_is_no_bound_on_bad_responses() -> None:
    wrong = MetricSpec("wrong", event="WrongAnswer", share=0.5, max_extra=50)
    spec = AnalysisSpec(metrics=(ERRORS, wrong), min_samples=MinSamples(canary_requests=200, warmup_seconds=0))
    verdict = judged(Epoch(weight=50, canary_units=5000, stable_units=5000, canary_bad=250, stable_bad=250), spec=spec)
    assert verdict.outcome is Outcome.PASS
    assert spec.bounded is None and verdict.extra is None
    (row,) = (row for row in verdict.metrics if row.name == "wrong")
    assert row.extra is not None and row.extra.at_most < 50


@pytest.mark.parametrize(
    ("feedback", "reason", "words"),
    [
        (None, Reason.NO_DATA, "wrong has no feedback on responses of canary, or none on those of stable"),
        (Epoch(weight=25, canary_units=0, stable_units=9), Reason.NO_DATA, "wrong has no feedback"),
        (
            Epoch(weight=25, canary_units=10, stable_units=30, canary_bad=1, stable_bad=3),
            Reason.UNDECIDED,
            "wrong: n=10",
        ),
    ],
)
def test_little_feedback_is_no_verdict(feedback: Epoch | None, reason: Reason, words: str) -> None:
    verdict = judged(feedback)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, reason)
    assert words in verdict.message


@pytest.mark.parametrize(
    "feedback",
    [
        Epoch(weight=25, canary_units=500, stable_units=500, canary_bad=150, stable_bad=50),  # it would be rejected
        Epoch(
            weight=25, canary_units=1000, stable_units=1000, canary_bad=100, stable_bad=100
        ),  # all of canary's clients send it, and a third of stable's
        Epoch(weight=25, canary_units=400, stable_units=7600, canary_bad=4, stable_bad=760),  # it would pass
    ],
)
def test_unequal_feedback_neither_rejects_nor_passes(feedback: Epoch) -> None:
    verdict = judged(feedback)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.FEEDBACK_MISMATCH)
    assert verdict.metric == "wrong" and verdict.metrics[1].finding is Finding.UNEQUAL
    both = feedback.canary_units + feedback.stable_units
    assert f"of {both} sessions with feedback {feedback.canary_units} are canary's" in verdict.message


def test_unequal_feedback_does_not_hide_errors() -> None:
    failing = Epoch(weight=25, canary_units=250, stable_units=750, canary_bad=100, stable_bad=2)
    verdict = judged(Epoch(weight=25, canary_units=400, stable_units=7600, canary_bad=4, stable_bad=760), failing)
    assert (verdict.outcome, verdict.metric) == (Outcome.FAIL, "errors")


@pytest.mark.parametrize("kind", ["PairedEvent", "PairedDrift"])
def test_feedback_goes_with_split_requests_alone(kind: str) -> None:
    metric: dict[str, Any] = {"name": "wrong", "event": "WrongAnswer", "share": 1.0, "kind": kind}
    if kind == "PairedEvent":
        metric |= {"maxExtra": 10}
    found = parse("t", {"metrics": [metric]})
    assert found.spec is None and "kind" in found.problem


def test_a_template_with_feedback_is_parsed() -> None:
    found = parse("t", {"metrics": [{"name": "wrong", "event": "WrongAnswer", "share": 1.0, "okBelow": 0.2}]})
    assert found.spec is not None and found.spec.compares_feedback
    assert found.spec.metrics[0].kind is Kind.BAD_EVENT


# -- simulated: many canaries, a look after each few sessions with feedback

RUNS, LOOKS, EACH, WEIGHT, STABLE_WRONG = 2000, 200, 20, 0.25, 0.1


def simulated(canary_wrong: float, *, more_feedback: float = 1.0, seed: int = 7) -> tuple[float, float, float]:
    """Fractions that are ever rejected and that are found unequal, and the median of sessions until a rejection."""
    chance = np.random.default_rng(seed)
    part = WEIGHT * more_feedback / (WEIGHT * more_feedback + 1 - WEIGHT)
    canary_units = np.cumsum(chance.binomial(EACH, part, (LOOKS, RUNS)), axis=0)
    steps = np.diff(canary_units, axis=0, prepend=0)
    canary_bad = np.cumsum(chance.binomial(steps, canary_wrong), axis=0)
    stable_bad = np.cumsum(chance.binomial(EACH - steps, STABLE_WRONG), axis=0)
    rejected, unequal = np.zeros(RUNS, bool), np.zeros(RUNS, bool)
    at = np.full(RUNS, np.inf)
    threshold = math.log(1 / SPEC.false_rollback_rate / WRONG.share)
    for look in range(LOOKS):
        stable_units = EACH * (look + 1) - canary_units[look]
        tally = Tally(
            np.array([WEIGHT]),
            *(found[:, None] for found in (canary_units[look], stable_units, canary_bad[look], stable_bad[look])),
        )
        differs = mismatched(tally)
        unequal |= differs
        new = ~differs & ~rejected & np.asarray(log_evidence(WRONG, tally) >= threshold)
        at[new] = EACH * (look + 1)
        rejected |= new
    return float(rejected.mean()), float(unequal.mean()), float(np.median(at))


def test_a_healthy_canary_is_rejected_less_often_than_is_promised_however_often_one_looks() -> None:
    rejected, unequal, _ = simulated(STABLE_WRONG)
    assert rejected <= SPEC.false_rollback_rate
    assert unequal <= 0.002


def test_a_canary_that_is_twice_as_often_wrong_is_rejected_within_a_thousand_sessions_or_so() -> None:
    rejected, _, median = simulated(2 * STABLE_WRONG)
    assert rejected > 0.95 and median < 1200


def test_a_healthy_canary_that_gets_more_feedback_is_rarely_rejected_for_it() -> None:
    rejected, unequal, _ = simulated(STABLE_WRONG, more_feedback=1.5)
    assert unequal > 0.99 and rejected <= SPEC.false_rollback_rate
