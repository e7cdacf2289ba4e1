"""Distributions of predictions: a canary with another one is reported, and rejected where a bound is given."""

import math
from typing import Any

import numpy as np
import pytest

from slipway_contracts.counters import BINS
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.judging.predictions.difference import log_difference
from slipway_operator.judging.predictions.excess import log_excess
from slipway_operator.judging.predictions.index import stability_index
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec, MinSamples, of_bin
from slipway_operator.model.analysis.template import parse
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict

ERRORS = MetricSpec("errors", event="FirstAttemptError", share=0.5, ok_below=0.02)
BOUNDED = MetricSpec("drift", event="PredictionDrift", share=0.5, max_psi=0.1)
REPORT = MetricSpec("drift", event="PredictionDrift", dry_run=True)
GOOD = (
    Epoch(weight=25, canary_units=1000, stable_units=3000, canary_bad=1, stable_bad=3),
    Epoch(weight=25, canary_units=1000, stable_units=3000, canary_bad=1, stable_bad=3),
)
EQUAL = (200,) * 10
SHIFTED = (60, 100, 120, 160, 180, 220, 240, 280, 300, 340)  # an index of 0.21


def judged(canary: tuple[int, ...], metric: MetricSpec = BOUNDED, *, times: int = 1, unread: int = 0) -> Verdict:
    """Two clock epochs at weight 25 of a stable whose predictions are equally frequent; `times` as many of canary."""
    spec = AnalysisSpec(metrics=(ERRORS, metric), min_samples=MinSamples(canary_requests=200, warmup_seconds=0))
    n, m = sum(canary) * times, 3 * sum(EQUAL)
    counts = [Counts("errors", GOOD), Counts("drift", 2 * (Epoch(25, n + unread, m, unread, 0),))]
    for place in range(BINS):
        own, other = (side[place] if place < 10 else 0 for side in (canary, EQUAL))
        counts.append(Counts(of_bin("drift", place), 2 * (Epoch(25, n, m, own * times, 3 * other),)))
    return judge(spec, Reading(counts=tuple(counts), seconds=600.0, clocks=(0, 1)))


def test_a_canary_whose_predictions_shift_is_rejected_with_the_index() -> None:
    verdict = judged(SHIFTED)
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.FAIL, Reason.WORSE, "drift")
    assert "drift: population stability index 0.2" in verdict.message and "(maxPsi 0.1)" in verdict.message
    assert verdict.predictions and verdict.predictions.differs and verdict.predictions.canary == 4000


def test_a_canary_that_predicts_alike_passes_and_its_index_is_shown() -> None:
    verdict = judged(EQUAL)
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.NOT_WORSE)
    assert verdict.metrics[1].finding is Finding.WITHIN
    assert "drift: population stability index 0 (maxPsi 0.1), by 4,000 predictions of canary" in verdict.message


def test_a_shift_is_only_reported_without_a_bound() -> None:
    verdict = judged(SHIFTED, REPORT)
    assert verdict.outcome is Outcome.PASS and verdict.metrics[1].finding is Finding.REPORTED
    assert "drift: population stability index 0.2" in verdict.message
    assert verdict.predictions and verdict.predictions.differs


def test_a_shift_that_the_bound_allows_passes_though_it_is_certain() -> None:
    wide = MetricSpec("drift", event="PredictionDrift", share=0.5, max_psi=0.5)
    verdict = judged(SHIFTED, wide)
    assert verdict.outcome is Outcome.PASS and verdict.predictions and verdict.predictions.differs


def test_a_shift_above_the_bound_that_is_not_sure_yet_waits() -> None:
    verdict = judged(SHIFTED, MetricSpec("drift", event="PredictionDrift", share=0.5, max_psi=0.19))
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED, "drift")
    assert "drift: population stability index 0.2" in verdict.message


def test_how_long_it_waits_is_not_known() -> None:
    verdict = judged(SHIFTED, MetricSpec("drift", event="PredictionDrift", share=0.5, max_psi=0.19))
    assert verdict.seconds_left is None


def test_without_predictions_nothing_passes() -> None:
    verdict = judged((0,) * 10, unread=1000)
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.NO_DATA, "drift")
    assert "no predictions of canary" in verdict.message and "64 KiB" in verdict.message


def test_predictions_that_one_side_has_more_often_decide_nothing() -> None:
    verdict = judged(SHIFTED, times=2)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.SAMPLE_RATIO_MISMATCH)
    assert "of 20000 predictions 8000 are canary's" in verdict.message


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ({"share": 0.5}, "maxPsi goes with"),
        ({"share": 0.5, "maxPsi": 0.2, "kind": "PairedEvent", "maxExtra": 10}, "leave kind out"),
        ({"event": "EmptyAnswer", "share": 0.5, "maxPsi": 0.2}, "maxPsi goes with"),
    ],
)
def test_what_does_not_go_with_predictions_is_refused_by_name(metric: dict[str, Any], words: str) -> None:
    errors = {"name": "errors", "event": "FirstAttemptError", "share": 0.5}
    found = parse("t", {"metrics": [errors, {"name": "drift", "event": "PredictionDrift"} | metric]})
    assert found.spec is None and "'drift'" in found.problem and words in found.problem


def test_one_metric_compares_predictions() -> None:
    two = [{"name": name, "event": "PredictionDrift", "share": 0.5, "maxPsi": 0.2} for name in ("a", "b")]
    assert "two metrics have the event PredictionDrift" in parse("t", {"metrics": two}).problem


# -- the estimate


def test_the_index_of_equal_distributions_is_that_of_chance_and_no_more() -> None:
    chance = np.random.default_rng(5)
    own = chance.multinomial(500, [0.1] * 10, size=(4000, 1))
    other = chance.multinomial(9500, [0.1] * 10, size=(4000, 1))
    index, expected = stability_index(own, other, [0.05])
    raw = index + expected
    assert expected[0] == pytest.approx(9 * (1 / 500 + 1 / 9500))
    assert float(raw[index > 0].mean()) < 2 * expected[0] and float(index.mean()) < expected[0] / 2


def test_the_index_is_that_of_the_distributions() -> None:
    own, other = np.array([SHIFTED]) * 1000, np.array([EQUAL]) * 1000
    p, q = np.array(SHIFTED) / 2000, np.array(EQUAL) / 2000
    assert float(stability_index(own, other, [0.5])[0]) == pytest.approx(
        float(((p - q) * np.log(p / q)).sum()), abs=1e-3
    )


def test_inputs_that_change_with_the_weight_are_no_shift() -> None:
    """By day labels are others than by night; at night the canary had 5 %, and by day half of the requests."""
    night, day = np.array([900, 100]), np.array([100, 900])
    own, other = np.array([night * 5, day * 50]), np.array([night * 95, day * 50])
    index, _ = stability_index(own, other, [0.05, 0.5])
    assert float(index) < 1e-6
    assert float(log_difference(own, other, [0.05, 0.5], (0, 1))) < 0
    assert float(log_excess(own, other, [0.05, 0.5], (0, 1), 0.05)) <= 0


# -- simulated: many analyses, a look after each part of an hour

RUNS, LOOKS, SECONDS = 2000, 12, 3600
TEN = np.full(10, 0.1)
LOG_100 = math.log(100)


def tilted(index: float, parts: Any = TEN) -> Any:
    """A distribution with this index to the other one."""
    at, low, high = np.linspace(-1, 1, len(parts)), 0.0, 10.0
    for _ in range(60):
        tilt = (low + high) / 2
        found = parts * np.exp(tilt * at)
        found /= found.sum()
        low, high = (tilt, high) if ((found - parts) * np.log(found / parts)).sum() < index else (low, tilt)
    return found


def simulated(
    canary: Any, stable: Any = TEN, *, weight: float, bound: float = 0.1, per_s: float = 20.0, answers: float = 1.0
) -> tuple[float, float, float, float]:
    """Parts of the runs in which the sides are ever found to differ, and to be above the bound; medians of canary's
    predictions until then. `answers`: the part of its requests that canary has a prediction of."""
    chance, clocks = np.random.default_rng(11), list[int]()
    own = other = np.zeros((RUNS, 0, len(stable)))
    found, at = np.zeros((2, RUNS), bool), np.full((2, RUNS), np.inf)
    for look in range(1, LOOKS + 1):
        if (clock := clock_epoch(look * SECONDS / LOOKS)) not in clocks:
            clocks.append(clock)
            own, other = (np.concatenate([side, np.zeros((RUNS, 1, len(stable)))], axis=1) for side in (own, other))
        requests = chance.poisson(per_s * SECONDS / LOOKS, RUNS)
        mine = chance.binomial(requests, weight)
        own[:, -1] += chance.multinomial(chance.binomial(mine, answers), canary)
        other[:, -1] += chance.multinomial(requests - mine, stable)
        weights = np.full(len(clocks), weight)
        logs = (log_difference(own, other, weights, clocks), log_excess(own, other, weights, clocks, bound))
        for place, log in enumerate(logs):
            new = (log >= LOG_100) & ~found[place]
            at[place, new] = own[new].sum(axis=(1, 2))
            found[place] |= new
    return (*(float(part.mean()) for part in found), *(float(np.median(one)) for one in at))


@pytest.mark.parametrize("weight", [0.05, 0.5])
def test_equal_distributions_are_found_to_differ_less_often_than_is_promised(weight: float) -> None:
    differs, above, _, _ = simulated(TEN, weight=weight)
    assert differs <= 0.01 and above == 0


def test_a_canary_that_answers_less_often_does_not_predict_something_else() -> None:
    differs, above, _, _ = simulated(TEN, weight=0.25, answers=0.7)
    assert differs <= 0.01 and above <= 0.01


def test_a_canary_at_the_bound_is_hardly_ever_rejected_and_always_reported() -> None:
    differs, above, _, _ = simulated(tilted(0.1), weight=0.25)
    assert differs == 1 and above <= 0.01


@pytest.mark.parametrize("label", [0, 1])
def test_a_canary_with_one_label_for_all_is_rejected_in_the_first_minutes(label: int) -> None:
    stable, canary = np.array([0.7, 0.3]), np.array([0.0, 0.0])
    canary[label] = 1.0
    needed = [
        n for n in range(1, 400) if log_excess(canary[None] * n, stable[None] * 19 * n, [0.05], (0,), 0.25) >= LOG_100
    ]
    assert needed and needed[0] <= (30 if label else 200)


@pytest.mark.parametrize(("index", "bound", "reported", "rejected"), [(0.1, 0.02, 600, 2500), (0.25, 0.1, 400, 2000)])
def test_a_shift_is_found_within_some_predictions(index: float, bound: float, reported: int, rejected: int) -> None:
    differs, above, until_differs, until_above = simulated(tilted(index), weight=0.05, bound=bound)
    assert differs == 1 and until_differs <= reported
    assert above > 0.95 and until_above <= rejected
