"""The verdict: every reason by name, the metric that it names, and the same bits after a restart."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.types import strict
from slipway_contracts.api.writing import to_json
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason, Symptom
from slipway_operator.judging.verdict import Tally, judge, log_evidence, passes
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, MinSamples, Veto, without_floor
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict

ERRORS = MetricSpec("errors", event="FirstAttemptError", share=0.5, ok_below=0.005)
TTFT = MetricSpec("ttft", event="Slower(ttft, stable.p95)", share=0.3, tolerate_ratio=1.25, latency=True)
DRIFT = MetricSpec("drift", kind=Kind.PAIRED_DRIFT, share=0.2)
SPEC = AnalysisSpec(metrics=(ERRORS, TTFT), vetoes=(Veto("PodCrashLoop"), Veto("maxConsecutiveCanaryFailures", 5)))

HEALTHY = (
    Counts("errors", (Epoch(weight=25, canary_units=5000, stable_units=15000, canary_bad=5, stable_bad=15),)),
    Counts("ttft", (Epoch(weight=25, canary_units=5000, stable_units=15000, canary_bad=250, stable_bad=750),)),
)
BROKEN = (
    Counts("errors", (Epoch(weight=5, canary_units=50, stable_units=950, canary_bad=25, stable_bad=5),)),
    Counts("ttft", (Epoch(weight=5, canary_units=50, stable_units=950, canary_bad=3, stable_bad=48),)),
)


GIVEN = (Epoch(weight=5, canary_units=12, stable_units=228),)


def reading(counts: tuple[Counts, ...] = HEALTHY, seconds: float = 600.0, **more: object) -> Reading:
    return Reading(counts=counts, seconds=seconds, **more)  # type: ignore[arg-type]


def test_a_healthy_canary_passes() -> None:
    verdict = judge(SPEC, reading())
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.NOT_WORSE)
    assert [row.finding for row in verdict.metrics] == [Finding.NOT_WORSE, Finding.NOT_WORSE]
    assert verdict.metrics[1].ratio_upper is not None and verdict.metrics[1].ratio_upper < TTFT.max_ratio


def test_a_broken_one_fails_with_its_numbers_during_warm_up_too() -> None:
    verdict = judge(SPEC, reading(BROKEN, seconds=10))
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.FAIL, Reason.WORSE, "errors")
    assert "25 of 50 bad (50.00%) on canary" in verdict.message
    assert verdict.log_evidence >= verdict.log_threshold == math.log(100)
    assert verdict.metrics[0].finding is Finding.WORSE


def test_two_metrics_that_are_each_a_little_short_fail_together() -> None:
    """Evidence adds up: each metric alone stays below the threshold."""
    spec = AnalysisSpec(metrics=(MetricSpec("a", share=0.5), MetricSpec("b", share=0.5)))
    epochs = next(
        (Epoch(weight=10, canary_units=1000, stable_units=9000, canary_bad=canary_bad, stable_bad=40),)
        for canary_bad in range(1, 100)
        if judge(
            spec,
            reading(
                (
                    Counts(
                        "a",
                        (Epoch(weight=10, canary_units=1000, stable_units=9000, canary_bad=canary_bad, stable_bad=40),),
                    ),
                )
            ),
        ).log_evidence
        > math.log(100) - 0.6
    )
    alone = judge(
        spec,
        reading(
            (
                Counts("a", epochs),
                Counts("b", (Epoch(weight=10, canary_units=1000, stable_units=9000, canary_bad=4, stable_bad=40),)),
            )
        ),
    )
    both = judge(spec, reading((Counts("a", epochs), Counts("b", epochs))))
    assert alone.outcome is Outcome.INCONCLUSIVE
    assert both.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        (reading(()), Reason.NO_DATA, "no metric has requests"),
        (reading((), seconds=30), Reason.WARM_UP, "30 s of 120 s"),
        (reading(HEALTHY, seconds=60), Reason.WARM_UP, "60 s of 120 s"),
        (reading(HEALTHY[:1]), Reason.NO_DATA, "ttft has no requests"),
        (reading(age_seconds=90), Reason.STALE, "90 s old; 60 s are allowed"),
        (reading(BROKEN, age_seconds=90), Reason.STALE, "90 s old"),
        (reading(canary_load=1.5), Reason.LOAD_MISMATCH, "1.50 times the load"),
        (reading(canary_load=1.5), Reason.LOAD_MISMATCH, "give it more pods by setCanaryScale"),
        (reading(HEALTHY[:1], canary_load=0.5), Reason.NO_DATA, "ttft has no requests"),
        (reading(HEALTHY[:1], canary_load=2.0), Reason.LOAD_MISMATCH, "2.00 times the load"),
        (reading((), canary_load=2.0), Reason.NO_DATA, "no metric has requests"),
        (reading((), assigned=GIVEN), Reason.NO_DATA, "canary was given 12 requests, and none of them has ended yet"),
    ],
)
def test_doubt_is_inconclusive_and_has_a_name(given: Reading, reason: Reason, words: str) -> None:
    verdict = judge(SPEC, given)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, reason)
    assert words in verdict.message


def test_a_wrong_split_makes_any_comparison_meaningless() -> None:
    counts = (
        Counts("errors", (Epoch(weight=5, canary_units=900, stable_units=9100, canary_bad=450, stable_bad=45),)),
        HEALTHY[1],
    )
    verdict = judge(SPEC, reading(counts, assigned=(Epoch(weight=5, canary_units=900, stable_units=9100),)))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.SAMPLE_RATIO_MISMATCH)
    assert "canary was given 900 of 10000" in verdict.message


def test_requests_that_do_not_end_are_no_wrong_split() -> None:
    """A tenth of canary's requests ended: fewer ended requests are a consequence of slow ones."""
    counts = (
        Counts("errors", (Epoch(weight=5, canary_units=50, stable_units=9500, canary_bad=25, stable_bad=5),)),
        HEALTHY[1],
    )
    assert (
        judge(SPEC, reading(counts, assigned=(Epoch(weight=5, canary_units=500, stable_units=9500),))).metric
        == "errors"
    )


@pytest.mark.parametrize("load", [0.2, 1.0, 2.0])
def test_latencies_at_the_load_of_stable_are_compared(load: float) -> None:
    slow = (
        HEALTHY[0],
        Counts("ttft", (Epoch(weight=25, canary_units=5000, stable_units=15000, canary_bad=2000, stable_bad=750),)),
    )
    assert judge(SPEC, reading(slow, canary_load=load)).metric == "ttft"
    assert judge(SPEC, reading(BROKEN, canary_load=load)).metric == "errors"


@pytest.mark.parametrize(("load", "reported"), [(0.44, True), (0.74, True), (0.76, False), (1.2, False)])
def test_canary_with_less_load_passes_and_the_message_reports_it(load: float, reported: bool) -> None:
    verdict = judge(SPEC, reading(canary_load=load))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.NOT_WORSE)
    words = f"canary's pods had {load:.2f} times the load of stable's, so its latencies were compared in its favour"
    assert (words in verdict.message) == reported


def test_less_load_does_not_affect_other_metrics_than_latencies() -> None:
    verdict = judge(AnalysisSpec(metrics=(ERRORS,)), reading(HEALTHY[:1], canary_load=0.2))
    assert verdict.outcome is Outcome.PASS and "load" not in verdict.message


def test_the_wait_is_that_of_the_slowest_metric_in_its_own_count() -> None:
    """A session sends many requests, so latencies per session need fewer additional samples than errors per request."""
    counts = (
        Counts("errors", (Epoch(weight=50, canary_units=1000, stable_units=1000, canary_bad=10, stable_bad=10),)),
        Counts("ttft", (Epoch(weight=50, canary_units=100, stable_units=100, canary_bad=5, stable_bad=5),)),
    )
    verdict = judge(SPEC, reading(counts, seconds=100.0))
    rows = {row.name: row for row in verdict.metrics}
    waits = [100.0 * ((row.samples_needed or 0) - row.canary_units) / row.canary_units for row in rows.values()]
    assert min(waits) > 0 and verdict.seconds_left == math.ceil(max(waits))
    assert verdict.samples == 100
    assert verdict.samples_needed == 100 + math.ceil(verdict.seconds_left)


def test_few_requests_never_pass() -> None:
    """Nothing bad at all, and too little to know."""
    few = tuple(Counts(name, (Epoch(weight=50, canary_units=120, stable_units=120),)) for name in ("errors", "ttft"))
    verdict = judge(SPEC, reading(few))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED)


def test_a_minimum_of_samples_holds_beside_the_proof() -> None:
    spec = AnalysisSpec(metrics=(ERRORS, TTFT), min_samples=MinSamples(canary_requests=10_000))
    verdict = judge(spec, reading())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "n=5000, needs 10000" in verdict.message


def test_undecided_verdict_has_a_forecast() -> None:
    counts = (
        Counts("errors", (Epoch(weight=25, canary_units=412, stable_units=1236, canary_bad=0, stable_bad=1),)),
        Counts("ttft", (Epoch(weight=25, canary_units=412, stable_units=1236, canary_bad=20, stable_bad=62),)),
    )
    verdict = judge(SPEC, reading(counts, seconds=412.0))
    assert verdict.reason is Reason.UNDECIDED
    assert "n=412, needs about" in verdict.message and "at this rate" in verdict.message
    assert verdict.samples == 412
    assert verdict.samples_needed is not None and verdict.seconds_left is not None
    # One canary request a second.
    assert verdict.samples_needed - verdict.samples == verdict.seconds_left


@pytest.mark.parametrize(
    ("symptom", "fails"),
    [
        (Symptom("PodCrashLoop", canary=1, stable=0), True),
        (Symptom("PodCrashLoop", canary=1, stable=1), False),
        (Symptom("maxConsecutiveCanaryFailures", canary=4, stable=0), False),
        (Symptom("maxConsecutiveCanaryFailures", canary=5, stable=4), True),
        (Symptom("maxConsecutiveCanaryFailures", canary=9, stable=5), False),
        (Symptom("NotInTheTemplate", canary=1, stable=0), False),
    ],
)
def test_a_veto_needs_a_stable_without_the_symptom(symptom: Symptom, fails: bool) -> None:
    verdict = judge(SPEC, reading(symptoms=(symptom,)))
    assert (verdict.reason is Reason.VETOED) == fails
    assert judge(SPEC, reading((), symptoms=(symptom,))).outcome is (Outcome.FAIL if fails else Outcome.INCONCLUSIVE)


def test_dry_run_metric_is_shown_and_decides_nothing() -> None:
    spec = AnalysisSpec(metrics=(MetricSpec("cost", dry_run=True), TTFT))
    bad = (
        Counts("cost", (Epoch(weight=25, canary_units=5000, stable_units=15000, canary_bad=2500, stable_bad=15),)),
        HEALTHY[1],
    )
    verdict = judge(spec, reading(bad))
    assert verdict.outcome is Outcome.PASS
    assert verdict.metrics[0].log_evidence > 100


def test_drift_compares_with_the_floor() -> None:
    spec = AnalysisSpec(metrics=(DRIFT,))
    same = (Counts("drift", (Epoch(weight=50, canary_units=2000, stable_units=2000, canary_bad=60, stable_bad=60),)),)
    other = (Counts("drift", (Epoch(weight=50, canary_units=2000, stable_units=2000, canary_bad=60, stable_bad=10),)),)
    assert judge(spec, reading(same)).outcome is not Outcome.FAIL
    assert judge(spec, reading(other)).metric == "drift"


PAIRED = (Epoch(weight=50, canary_units=200, stable_units=200, canary_bad=60, stable_bad=2),)
ALONE = (Epoch(weight=50, canary_units=200, stable_units=200, canary_bad=60, stable_bad=0),)


@pytest.mark.parametrize(
    ("counts", "weights_differ", "outcome", "reason", "words"),
    [
        ((Counts("drift", PAIRED),), False, Outcome.FAIL, Reason.WORSE, "of 200 mirrored prompts 60 on canary alone"),
        ((Counts("drift", PAIRED),), True, Outcome.PASS, Reason.NOT_WORSE, "reported only, for the weights differ"),
        ((Counts(without_floor("drift"), ALONE),), False, Outcome.INCONCLUSIVE, Reason.NO_FLOOR, "60 of 200 answers"),
        ((Counts(without_floor("drift"), ALONE),), True, Outcome.PASS, Reason.NOT_WORSE, "60 of 200 answers differ"),
        ((), False, Outcome.INCONCLUSIVE, Reason.NO_DATA, "no metric"),
        ((), True, Outcome.INCONCLUSIVE, Reason.NO_DATA, "no metric"),
    ],
)
def test_what_drift_means(
    counts: tuple[Counts, ...], weights_differ: bool, outcome: Outcome, reason: Reason, words: str
) -> None:
    spec = AnalysisSpec(metrics=(DRIFT,), min_samples=MinSamples(100, 0))
    verdict = judge(spec, reading(counts, weights_differ=weights_differ))
    assert (verdict.outcome, verdict.reason) == (outcome, reason) and words in verdict.message


def test_reported_drift_waits_for_enough_prompts() -> None:
    spec = AnalysisSpec(metrics=(DRIFT,), min_samples=MinSamples(201, 0))
    verdict = judge(spec, reading((Counts("drift", PAIRED),), weights_differ=True))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED)


def test_reported_drift_hides_no_other_metric() -> None:
    spec = AnalysisSpec(metrics=(DRIFT, ERRORS))
    verdict = judge(spec, reading((Counts("drift", PAIRED), BROKEN[0]), weights_differ=True))
    assert (verdict.outcome, verdict.metric) == (Outcome.FAIL, "errors")


EPOCHS = st.lists(
    st.tuples(st.integers(1, 99), st.integers(0, 400), st.integers(0, 400)).flatmap(
        lambda sizes: st.builds(
            Epoch, st.just(sizes[0]), st.just(sizes[1]), st.just(sizes[2]),
            st.integers(0, sizes[1]), st.integers(0, sizes[2]),
        )
    ),
    max_size=4,
).map(tuple)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(errors=EPOCHS, ttft=EPOCHS, seconds=st.integers(0, 4000))
def test_a_verdict_is_the_same_bits_after_the_status_was_written_and_read(
    errors: tuple[Epoch, ...], ttft: tuple[Epoch, ...], seconds: int
) -> None:
    before = reading((Counts("errors", errors), Counts("ttft", ttft)), seconds=float(seconds))
    after = read(strict(Reading), encoded(to_json(before)))
    first, second = judge(SPEC, before), judge(SPEC, after)
    assert first == second
    assert first.log_evidence.hex() == second.log_evidence.hex()
    assert read(strict(Verdict), encoded(to_json(first))) == first


@settings(max_examples=25, deadline=None)
@given(errors=EPOCHS, extra=st.integers(1, 50))
def test_a_worse_canary_never_gets_a_better_verdict(errors: tuple[Epoch, ...], extra: int) -> None:
    """More bad events of canary among the same requests: evidence rises, and so does the severity of the verdict."""
    spec = AnalysisSpec(metrics=(ERRORS,))
    worse = tuple(
        Epoch(e.weight, e.canary_units, e.stable_units, min(e.canary_units, e.canary_bad + extra), e.stable_bad)
        for e in errors
    )
    first, second = (judge(spec, reading((Counts("errors", epochs),))) for epochs in (errors, worse))
    assert second.log_evidence >= first.log_evidence - 1e-9
    rank = {Outcome.PASS: 0, Outcome.INCONCLUSIVE: 1, Outcome.FAIL: 2}
    assert rank[second.outcome] >= rank[first.outcome]


def test_the_arrays_of_a_simulation_give_the_operators_bits() -> None:
    rng = np.random.default_rng(9)
    canary_bad, stable_bad = rng.integers(0, 50, (20, 2)), rng.integers(0, 300, (20, 2))
    canary_units, stable_units = canary_bad + 1000, stable_bad + 9000
    tally = Tally(np.array([0.05, 0.5]), canary_units, stable_units, canary_bad, stable_bad)
    logs, passed = log_evidence(ERRORS, tally), passes(ERRORS, tally, 0.05)
    for run in range(20):
        numbers = [item[run].tolist() for item in (canary_units, stable_units, canary_bad, stable_bad)]
        epochs = tuple(Epoch(w, *(item[j] for item in numbers)) for j, w in enumerate((5, 50)))
        alone = Tally.of(epochs)
        assert float(log_evidence(ERRORS, alone)) == float(logs[run])
        assert bool(passes(ERRORS, alone, 0.05)) == bool(passed[run])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MetricSpec("a"), "share is missing"),
        (lambda: MetricSpec("a", share=1.5), "between 0 and 1"),
        (lambda: MetricSpec("a", share=0.5, tolerate_ratio=2.0, max_ratio=2.0), "tolerateRatio must be above 0"),
        (lambda: MetricSpec("a", share=0.5, ok_below=1.0), "okBelow is 1"),
        (lambda: AnalysisSpec(metrics=()), "no metric decides anything"),
        (lambda: AnalysisSpec(metrics=(ERRORS, ERRORS)), "same name"),
        (lambda: AnalysisSpec(metrics=(ERRORS, MetricSpec("b", share=0.6))), "add up to 1.1"),
        (lambda: AnalysisSpec(metrics=(ERRORS,), false_rollback_rate=0), "falseRollbackRate is 0"),
        (lambda: Epoch(weight=0), "weight is 0"),
        (lambda: Epoch(weight=100), "weight is 100"),
        (lambda: Epoch(weight=5, canary_units=1, canary_bad=2), "2 bad of 1 on canary"),
    ],
)
def test_invalid_analysis_is_refused_with_a_message(build: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()  # type: ignore[operator]


@pytest.mark.finding(26)
def test_ten_tenths_are_a_whole() -> None:
    """Safety 26: it asserted nothing. In floating point ten tenths are less than one; eleven are too much."""
    tenths = tuple(MetricSpec(str(index), share=0.1) for index in range(11))
    spec = AnalysisSpec(metrics=tenths[:10])
    assert [metric.share for metric in spec.metrics] == [0.1] * 10 and sum([0.1] * 10) != 1.0
    with pytest.raises(ValueError, match=r"add up to 1\.1"):
        AnalysisSpec(metrics=tenths)
