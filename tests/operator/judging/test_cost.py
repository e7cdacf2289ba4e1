"""The cost of tokens and predictions as a metric of the judge: one minute, the verdict, and how often it errs."""

import heapq
import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest

from slipway_operator.api.v1alpha1.analysis_run import CostRun, CostSide, Counts, Epoch, Outcome, Reason
from slipway_operator.judging.cost import PREDICTIONS, TOKENS, CostRatio, per_million, ratio
from slipway_operator.judging.margins.slowness import log_faster, log_slower
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec, MinSamples
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict

ERRORS = MetricSpec("errors", event="FirstAttemptError", share=0.5, ok_below=0.02)
COST = MetricSpec("cost", event="CostIncrease", share=0.5, max_cost_increase=0.1)
REPORT = MetricSpec("cost", event="CostIncrease", dry_run=True)
GOOD = Counts("errors", (Epoch(50, 2000, 2000, 2, 2),))
SIDE = CostSide(price=3.6, pod_seconds=60.0, running_seconds=240.0, units=6000.0)
RUN = CostRun(unit="Tokens", minutes=12, low=0.98, high=1.02, canary=SIDE, stable=SIDE)


def judged(cost: CostRun | None, *metrics: MetricSpec) -> Verdict:
    spec = AnalysisSpec(
        metrics=metrics or (ERRORS, COST), min_samples=MinSamples(canary_requests=200, warmup_seconds=0)
    )
    return judge(spec, Reading(counts=(GOOD,), seconds=600.0, clocks=(0,), cost=cost))


# -- one minute


def test_at_the_same_number_of_requests_the_ratio_is_that_of_the_costs() -> None:
    assert ratio(replace(SIDE, units=4000.0), SIDE, TOKENS, 60.0) == CostRatio(pytest.approx(1.5), pytest.approx(1.5))
    assert ratio(replace(SIDE, price=7.2), SIDE, TOKENS, 60.0) == CostRatio(2.0, 2.0)
    assert ratio(replace(SIDE, price=7.2, units=12_000.0), SIDE, TOKENS, 60.0) == CostRatio(1.0, 1.0)


@pytest.mark.parametrize("running", [1.0, 2.0, 4.0, 8.0, 16.0, 40.0])
@pytest.mark.parametrize(("fixed", "each"), [(0.05, 0.0), (0.02, 0.001), (0.0, 0.01)])
def test_the_true_ratio_is_between_both_whatever_the_load_and_the_curve(
    running: float, fixed: float, each: float
) -> None:
    """Canary's steps take 1.3 times as long, and its pods cost 0.9 of stable's: 1.17 at equal load."""

    def side(price: float, requests: float, slower: float) -> CostSide:
        return CostSide(price, 60.0, 60.0 * requests, 60.0 * requests / (slower * (fixed + each * requests)))

    found = ratio(side(0.9, running, 1.3), side(1.0, 8.0, 1.0), TOKENS, 60.0)
    assert found and found.low <= 1.17 + 1e-9 and found.high >= 1.17 - 1e-9


def test_more_pods_with_the_same_load_each_change_nothing() -> None:
    three = CostSide(3.6, 180.0, 720.0, 18_000.0)
    assert ratio(three, SIDE, TOKENS, 60.0) == CostRatio(1.0, 1.0)


@pytest.mark.parametrize("idle", [replace(SIDE, running_seconds=59.0), replace(SIDE, units=0.0), CostSide()])
def test_an_idle_side_shows_nothing(idle: CostSide) -> None:
    assert ratio(idle, SIDE, TOKENS, 60.0) is None
    assert ratio(SIDE, idle, TOKENS, 60.0) is None


def test_short_predictions_are_compared_by_their_number() -> None:
    """Of ten milliseconds: less than one in progress."""
    short = CostSide(3.6, 60.0, 6.0, 600.0)
    assert ratio(replace(short, price=7.2), short, PREDICTIONS, 60.0) == CostRatio(2.0, 2.0)
    assert ratio(replace(short, units=29.0), short, PREDICTIONS, 60.0) is None
    assert ratio(short, short, TOKENS, 60.0) is None


def test_the_cost_of_a_million_is_that_of_the_hours_of_the_pods() -> None:
    assert per_million(SIDE) == pytest.approx(3.6 / 60 / 6000 * 1e6)
    assert per_million(CostSide()) is None


# -- the verdict


def test_a_canary_that_costs_no_more_passes_with_the_numbers() -> None:
    verdict = judged(RUN)
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.NOT_WORSE)
    assert verdict.cost == RUN and verdict.metrics[1].finding is Finding.NOT_WORSE
    assert (
        "cost: at equal load generated tokens cost 0.98 to 1.02 times what stable's do (a million 10 and 10, as the "
        "pods were used); more than 10% above stable's for certain in 0 of 12 minutes, possibly in 0" in verdict.message
    )


def test_a_canary_that_costs_more_is_rejected_with_the_numbers() -> None:
    dear = replace(RUN, minutes=14, dearer=14, not_within=14, low=1.49, high=1.51, unit="Predictions")
    verdict = judged(dear)
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.FAIL, Reason.WORSE, "cost")
    assert "cost: at equal load predictions cost 1.49 to 1.51 times what stable's do" in verdict.message
    assert "for certain in 14 of 14 minutes" in verdict.message and "100 rejects" in verdict.message


def test_eleven_minutes_reject_at_half_of_a_hundredth_and_seven_pass() -> None:
    assert next(n for n in range(1, 20) if log_slower(n, n) >= math.log(200)) == 11
    assert next(n for n in range(1, 20) if log_faster(0, n) >= math.log(20)) == 7


def test_load_that_explains_all_decides_nothing_and_names_the_remedy() -> None:
    verdict = judged(replace(RUN, minutes=40, dearer=0, not_within=40, low=0.6, high=3.1))
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED, "cost")
    assert "setCanaryScale weight 100 before setWeight 50" in verdict.message
    assert verdict.seconds_left is None


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "cost has not compared a minute yet"),
        (CostRun(problem="canary: no price of nvidia.com/gpu"), "no cost: canary: no price of nvidia.com/gpu"),
        (CostRun(idle=7), "in 7 minutes one side was idle, with less than 1 request in progress on average"),
    ],
)
def test_what_is_missing_is_named_and_decides_nothing(cost: CostRun | None, text: str) -> None:
    verdict = judged(cost)
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.NO_DATA, "cost")
    assert text in verdict.message


def test_a_few_minutes_say_how_many_are_needed() -> None:
    verdict = judged(replace(RUN, minutes=3))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED)
    assert "possibly in 0, needs about " in verdict.message and verdict.metrics[1].samples_needed in range(7, 15)


def test_a_report_decides_nothing() -> None:
    dear = replace(RUN, minutes=60, dearer=0, not_within=0, low=3.0, high=3.0)
    verdict = judged(dear, replace(ERRORS, share=1.0), REPORT)
    assert verdict.outcome is Outcome.PASS and verdict.metrics[1].finding is Finding.REPORTED
    assert "cost: at equal load generated tokens cost 3.00 times what stable's do" in verdict.message
    assert "minutes" not in verdict.message


def test_a_pass_needs_canary_requests_besides() -> None:
    spec = AnalysisSpec(metrics=(ERRORS, COST), min_samples=MinSamples(canary_requests=5000, warmup_seconds=0))
    verdict = judge(spec, Reading(counts=(GOOD,), seconds=600.0, clocks=(0,), cost=RUN))
    assert verdict.reason is Reason.UNDECIDED and "n=2000, needs 5000 canary requests" in verdict.message


def test_evidence_of_cost_and_of_errors_adds_up() -> None:
    """Neither rejects alone."""
    some = replace(RUN, minutes=10, dearer=10, not_within=10, low=1.3, high=1.4)
    bad = Counts("errors", (Epoch(50, 2000, 2000, 21, 6),))
    spec = AnalysisSpec(metrics=(ERRORS, COST), min_samples=MinSamples(200, 0), false_rollback_rate=0.0105)
    alone = judge(spec, Reading(counts=(GOOD,), seconds=600.0, clocks=(0,), cost=some))
    other = judge(spec, Reading(counts=(bad,), seconds=600.0, clocks=(0,), cost=RUN))
    both = judge(spec, Reading(counts=(bad,), seconds=600.0, clocks=(0,), cost=some))
    assert alone.outcome is other.outcome is Outcome.INCONCLUSIVE
    assert both.outcome is Outcome.FAIL or both.log_evidence > max(alone.log_evidence, other.log_evidence)


# -- how often it errs


class Engine:
    """A pod that batches: Poisson arrivals, outputs of geometric length, and steps of `fixed` + `each` for a request.

    The pages of its metrics are read every 10 s, as the operator does.
    """

    STEP_S = 0.25

    def __init__(self, chance: Random, rate: float, slower: float, slots: int = 32) -> None:
        self._chance, self._rate, self._slower, self._slots = chance, rate, slower, slots
        self._done, self._ends, self._queue = 0.0, list[float](), list[float]()
        self._tokens = 0.0

    def minute(self, price: float) -> CostSide:
        before, seen = self._tokens, [len(self._ends)]
        for number in range(1, round(60 / self.STEP_S) + 1):
            self._move()
            if number * self.STEP_S % 10 == 0:
                seen.append(len(self._ends))
        return CostSide(price, 60.0, 60.0 * sum(seen) / len(seen), self._tokens - before)

    def _move(self) -> None:
        if self._chance.random() < self._rate * self.STEP_S:
            self._queue.append(self._chance.expovariate(1 / 150))
        while self._queue and len(self._ends) < self._slots:
            heapq.heappush(self._ends, self._done + self._queue.pop(0))
        if not self._ends:
            return
        made = self.STEP_S / (self._slower * (0.02 + 0.002 * len(self._ends)))
        self._tokens += made * len(self._ends)
        self._done += made
        while self._ends and self._ends[0] <= self._done:
            heapq.heappop(self._ends)


def simulated(runs: int, *, price: float, slower: float, rates: tuple[float, float]) -> tuple[list[int], list[int]]:
    """Minutes until a pass, and until a rejection, of at most 30; one number for each run that has it."""
    passed, rejected = [], []
    for seed in range(runs):
        canary, stable = (
            Engine(Random(2 * seed + side), rate, factor)
            for side, (rate, factor) in enumerate(zip(rates, (slower, 1.0), strict=True))
        )
        canary.minute(1.0), stable.minute(1.0)  # warms up
        minutes = dearer = outside = 0
        is_open = {"pass", "fail"}
        for minute in range(1, 31):
            found = ratio(canary.minute(price), stable.minute(1.0), TOKENS, 60.0)
            if found is None:
                continue
            minutes, dearer, outside = minutes + 1, dearer + (found.low > 1.1), outside + (found.high > 1.1)
            if "fail" in is_open and log_slower(dearer, minutes) >= math.log(200):
                rejected.append(minute)
                is_open.discard("fail")
            if "pass" in is_open and log_faster(outside, minutes) >= math.log(20):
                passed.append(minute)
                is_open.discard("pass")
    return passed, rejected


BUSY = (2.5, 2.5)


def test_a_canary_of_equal_cost_passes_and_one_that_costs_half_more_is_rejected() -> None:
    passed, rejected = simulated(8, price=1.0, slower=1.0, rates=BUSY)
    assert len(passed) >= 3 and not rejected
    passed, rejected = simulated(8, price=1.5, slower=1.0, rates=BUSY)
    assert not passed and len(rejected) == 8 and median(rejected) <= 15


@pytest.mark.parametrize("rates", [BUSY, (0.6, 2.5), (1.2, 0.8)])
@pytest.mark.parametrize(("price", "slower"), [(1.1, 1.0), (1.0, 1.1), (2.0, 0.55)])
def test_at_the_limit_neither_pass_nor_rejection_is_frequent(
    price: float, slower: float, rates: tuple[float, float]
) -> None:
    """Rates: passes at most 5 %, rejections at most 0.5 %. Equal load, a canary with a quarter, and one with more."""
    passed, rejected = simulated(8, price=price, slower=slower, rates=rates)
    assert len(passed) <= 3 and not rejected


def test_an_idle_canary_is_neither_passed_nor_rejected() -> None:
    assert simulated(5, price=1.0, slower=1.0, rates=(0.05, 2.5)) == ([], [])
