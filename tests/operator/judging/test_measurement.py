"""A measurement, a metric, and both with a comparison: Argo's rules, and the two places where ours are stricter."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import Outcome, Reason
from slipway_operator.api.v1alpha1.provider import AnalysisPhase, Measurement, MetricRun
from slipway_operator.judging.measurement import Measured, composed, measured, noted
from slipway_operator.model.analysis.measure import MOST_KEPT, Job, Measure, ProviderAnswer, Web
from slipway_operator.model.analysis.verdict import Verdict

NOW = datetime(2026, 11, 21, tzinfo=UTC)
WEB = Web("http://q")
PASS = Verdict(Outcome.PASS, Reason.NOT_WORSE, "nothing is compared with stable")
UNDECIDED = Verdict(Outcome.INCONCLUSIVE, Reason.UNDECIDED, "n=3", seconds_left=60, samples_needed=9)
WORSE = Verdict(Outcome.FAIL, Reason.WORSE, "errors")


def metric(**fields: Any) -> Measure:
    return Measure(
        **{"name": "rate", "web": WEB, "success": "result > 0.9", "interval_s": 10, "requested_count": 5, **fields}
    )


def after(measure: Measure, letters: str) -> MetricRun:
    """The metric after these measurements: S F I E."""
    phases = {
        "S": AnalysisPhase.SUCCESSFUL,
        "F": AnalysisPhase.FAILED,
        "I": AnalysisPhase.INCONCLUSIVE,
        "E": AnalysisPhase.ERROR,
    }
    run = MetricRun(measure.name)
    for letter in letters:
        assert run.phase is AnalysisPhase.RUNNING, "what is done is not measured again"
        run = noted(measure, run, Measurement(NOW, phases[letter], message="why"))
    return run


@pytest.mark.parametrize(
    ("success", "failure", "value", "phase"),
    [
        ("result > 0.9", "", 0.95, AnalysisPhase.SUCCESSFUL),
        ("result > 0.9", "", 0.5, AnalysisPhase.FAILED),
        ("", "result < 0.5", 0.7, AnalysisPhase.SUCCESSFUL),
        ("", "result < 0.5", 0.3, AnalysisPhase.FAILED),
        ("result > 0.9", "result < 0.5", 0.95, AnalysisPhase.SUCCESSFUL),
        ("result > 0.9", "result < 0.5", 0.7, AnalysisPhase.INCONCLUSIVE),
        ("result > 0.9", "result < 0.5", 0.3, AnalysisPhase.FAILED),
        ("result > 0.1", "result > 0.2", 0.3, AnalysisPhase.FAILED),
        ("result[0] > 0.9", "", [], AnalysisPhase.ERROR),
        ("", "result[0] > 0.9", [], AnalysisPhase.ERROR),
        ("", "result > 0.5", math.nan, AnalysisPhase.INCONCLUSIVE),
        ("result > 0.5", "", math.nan, AnalysisPhase.INCONCLUSIVE),
        ("isNaN(result) || result > 0.5", "", math.nan, AnalysisPhase.SUCCESSFUL),
        ("result.ok", "", {"ok": "yes"}, AnalysisPhase.ERROR),
    ],
)
def test_a_measurement_by_its_conditions(success: str, failure: str, value: Any, phase: AnalysisPhase) -> None:
    found = measured(metric(success=success, failure=failure), ProviderAnswer(value), NOW)
    assert found.phase is phase
    assert (found.message == "") is (phase is AnalysisPhase.SUCCESSFUL)


def test_measurement_message_has_the_condition_and_the_value() -> None:
    failed = measured(metric(), ProviderAnswer([0.5, math.nan, math.inf]), NOW)
    assert (failed.phase, failed.value) == (AnalysisPhase.ERROR, "[0.5, NaN, inf]")
    assert measured(metric(), ProviderAnswer(0.5), NOW).message == "successCondition result > 0.9 does not hold for 0.5"
    problem = measured(metric(), ProviderAnswer(problem="503: away\n" + "x" * 999), NOW)
    assert (problem.phase, problem.value, len(problem.message)) == (AnalysisPhase.ERROR, "", 256)
    assert problem.message.startswith("503: away x")
    assert len(measured(metric(), ProviderAnswer([0.5] * 999), NOW).value) == 128


@pytest.mark.finding(17)
@pytest.mark.attack_class(8)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("s3cret", "a text of 6 characters"),
        ({"token": "s3cret"}, "an object with 1 fields"),
        (["s3cret", ["s3cret"], 1.5, True, None], "[a text of 6 characters, a list of 1 values, 1.5, true, null]"),
        (10**400, "a huge number"),
        (12, "12"),
    ],
)
@pytest.mark.parametrize("success", ["result > 0.9", "result == 'x'", "len(result) > 9", "result.a.b > 1"])
def test_foreign_values_are_shown_by_type_only(value: Any, shown: str, success: str) -> None:
    """Safety 17: 128 characters of the answer were in the status."""
    found = measured(metric(success=success), ProviderAnswer(value), NOW)
    assert found.value == shown
    assert "s3cret" not in f"{found.value} {found.message}"


def test_a_job_is_its_own_condition() -> None:
    job = metric(web=None, job=Job({}), success="")
    assert measured(job, ProviderAnswer(True), NOW).phase is AnalysisPhase.SUCCESSFUL
    failed = measured(job, ProviderAnswer(False, "Job a failed: BackoffLimitExceeded"), NOW)
    assert (failed.phase, failed.message) == (AnalysisPhase.FAILED, "Job a failed: BackoffLimitExceeded")


@pytest.mark.parametrize(
    ("fields", "letters", "phase", "message"),
    [
        ({}, "SSSS", AnalysisPhase.RUNNING, ""),
        ({}, "SSSSS", AnalysisPhase.SUCCESSFUL, "5 of 5 good"),
        ({}, "SF", AnalysisPhase.FAILED, "1 failed, failureLimit is 0: why"),
        ({"failure_limit": 1}, "SFSS", AnalysisPhase.RUNNING, ""),
        ({"failure_limit": 1}, "SFSSS", AnalysisPhase.SUCCESSFUL, "4 of 5 good"),
        ({"failure_limit": 1}, "FSF", AnalysisPhase.FAILED, "2 failed"),
        ({"failure_limit": -1}, "FFFFF", AnalysisPhase.SUCCESSFUL, "0 of 5 good"),
        ({}, "I", AnalysisPhase.INCONCLUSIVE, "1 inconclusive, inconclusiveLimit is 0: why"),
        ({"inconclusive_limit": 2}, "IIS", AnalysisPhase.RUNNING, ""),
        ({"inconclusive_limit": 2}, "IISI", AnalysisPhase.INCONCLUSIVE, "3 inconclusive"),
        ({}, "EEEE", AnalysisPhase.RUNNING, ""),
        ({}, "EEEEE", AnalysisPhase.ERROR, "5 errors in a row, consecutiveErrorLimit is 4: why"),
        ({}, "EEEESEEEE", AnalysisPhase.RUNNING, ""),
        ({"error_limit": 0}, "SE", AnalysisPhase.ERROR, "1 errors in a row"),
        # An error is no measurement that count counts.
        ({"requested_count": 2}, "ESE", AnalysisPhase.RUNNING, ""),
        ({"requested_count": 2}, "ESES", AnalysisPhase.SUCCESSFUL, "2 of 2 good"),
        ({"success_limit": 3}, "SS", AnalysisPhase.RUNNING, ""),
        ({"success_limit": 3}, "SSS", AnalysisPhase.SUCCESSFUL, "3 good ones in a row"),
        (
            {"success_limit": 3, "failure_limit": 2},
            "SSFSS",
            AnalysisPhase.INCONCLUSIVE,
            "never 3 good ones in a row",
        ),
        ({"requested_count": None}, "S" * 40, AnalysisPhase.RUNNING, ""),
    ],
)
def test_phase_of_a_metric_follows_its_limits(
    fields: dict[str, Any], letters: str, phase: AnalysisPhase, message: str
) -> None:
    run = after(metric(**fields), letters)
    assert run.phase is phase
    assert message in run.message


def test_a_metric_keeps_the_last_measurements_and_all_counts() -> None:
    run = after(metric(requested_count=None, failure_limit=-1), "SF" * 20)
    assert (run.successful, run.failed, run.count, run.taken) == (20, 20, 40, 40)
    assert len(run.measurements) == MOST_KEPT


def known(letters: str, **fields: Any) -> Measured:
    measure = metric(**fields)
    return Measured(measure, after(measure, letters))


@pytest.mark.parametrize(
    ("verdict", "items", "outcome", "reason"),
    [
        (PASS, [known("SSSSS")], Outcome.PASS, Reason.NOT_WORSE),
        (PASS, [known("")], Outcome.INCONCLUSIVE, Reason.MEASURING),
        (PASS, [known("SSSSS"), known("S", name="b")], Outcome.INCONCLUSIVE, Reason.MEASURING),
        (PASS, [known("F")], Outcome.FAIL, Reason.METRIC_FAILED),
        (PASS, [known("EEEEE")], Outcome.FAIL, Reason.METRIC_ERROR),
        (PASS, [known("I")], Outcome.INCONCLUSIVE, Reason.METRIC_INCONCLUSIVE),
        (PASS, [known("I"), known("F", name="b")], Outcome.FAIL, Reason.METRIC_FAILED),
        (PASS, [known("F", dry_run=True)], Outcome.PASS, Reason.NOT_WORSE),
        (UNDECIDED, [known("SSSSS")], Outcome.INCONCLUSIVE, Reason.UNDECIDED),
        (UNDECIDED, [known("F")], Outcome.FAIL, Reason.METRIC_FAILED),
        (UNDECIDED, [known("I")], Outcome.INCONCLUSIVE, Reason.METRIC_INCONCLUSIVE),
        (WORSE, [known("SSSSS")], Outcome.FAIL, Reason.WORSE),
        (WORSE, [known("F")], Outcome.FAIL, Reason.WORSE),
        (PASS, [known("S", requested_count=None)], Outcome.PASS, Reason.NOT_WORSE),
        (PASS, [known("SE", requested_count=None)], Outcome.INCONCLUSIVE, Reason.MEASURING),
        (PASS, [known("", requested_count=None)], Outcome.INCONCLUSIVE, Reason.MEASURING),
    ],
)
def test_the_worse_of_both_and_both_to_pass(
    verdict: Verdict, items: list[Measured], outcome: Outcome, reason: Reason
) -> None:
    found = composed(verdict, items)
    assert (found.outcome, found.reason) == (outcome, reason)


def test_a_composed_verdict_names_the_metric_and_estimates_nothing() -> None:
    found = composed(UNDECIDED, [known("F")])
    assert found.message == "rate: 1 failed, failureLimit is 0: why"
    assert (found.metric, found.seconds_left, found.samples_needed) == ("rate", None, None)
    waiting = composed(PASS, [known("SE")])
    assert waiting.message == "rate: 1 of 5 measurements; the last one: Error: why"
    assert composed(PASS, [known("SSSSS")]).message == "nothing is compared with stable; measured and good: rate"
