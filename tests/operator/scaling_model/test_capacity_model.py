"""What a pod carries, learned from pods whose engine is known: honest ones, lying ones, and a forged status."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.scaling_model.capacity_model import Basis, CapacityModel, PodLoad, robust_total
from slipway_operator.scaling_model.load_curve import MOST_BINS, LoadCurve
from slipway_operator.scaling_model.step_fit import StepFit

FIXED_S, EACH_S, PROMPT_S, MIX = 0.012, 0.0006, 0.00003, 3.0
BUDGET = 0.05


def pod(running: float, mix: float = MIX) -> PodLoad:
    """A pod of that engine with so many requests of 200 tokens; it misses the objective above 45 requests."""
    step_s = FIXED_S + (EACH_S + PROMPT_S * mix) * running
    generated = running / step_s
    missed = 1 / (1 + math.exp(45.0 - running))
    return PodLoad(running, 0.0, generated, mix * generated, generated / 200.0, missed)


def learned(top: float, seed: int = 3) -> CapacityModel:
    rng, model = random.Random(seed), CapacityModel()
    for _ in range(400):
        running = rng.uniform(2.0, top)
        model = model.observe([pod(running, rng.uniform(2.0, 4.0))] * 3, 30.0)
    return model


def test_step_times_are_those_of_the_engine() -> None:
    solved = learned(60.0).steps.solved()
    assert solved is not None
    assert solved.fixed == pytest.approx(FIXED_S, rel=0.05)
    assert solved.each == pytest.approx(EACH_S, rel=0.05)
    assert solved.prompt_cost == pytest.approx(PROMPT_S / EACH_S, rel=0.2)


def test_measured_capacity_is_where_the_objective_is_missed() -> None:
    model = learned(60.0)
    capacity = model.capacity(BUDGET)
    truth = model.work(pod(45.0 - math.log(1 / BUDGET - 1)))
    assert capacity is not None and capacity.basis is Basis.MEASURED
    assert capacity.load == pytest.approx(truth, rel=0.06)
    assert capacity.low <= capacity.load <= capacity.high


def test_before_a_miss_it_is_what_was_met_and_after_a_queue_what_step_times_predict() -> None:
    model = learned(20.0)
    capacity = model.capacity(BUDGET)
    assert capacity is not None and capacity.basis is Basis.AT_LEAST and capacity.high == math.inf
    assert capacity.load <= model.work(pod(20.0, 4.0)) * 1.05
    full = model.observe([replace(pod(40.0), waiting=3.0)] * 3, 1.0)
    predicted = full.capacity(BUDGET)
    assert predicted is not None and predicted.basis is Basis.EXTRAPOLATED
    assert predicted.load == pytest.approx(0.9 * model.work(pod(40.0)), rel=0.1)


@pytest.mark.parametrize("lie", [0.0, 1e3, 1e12])
def test_one_lying_pod_of_three_changes_nothing(lie: float) -> None:
    rng, model = random.Random(3), CapacityModel()
    for _ in range(400):
        honest = pod(rng.uniform(2.0, 60.0), rng.uniform(2.0, 4.0))
        liar = PodLoad(lie, lie, lie, lie, lie, min(lie, 1.0))
        model = model.observe([honest, liar, honest], 30.0)
    truth, capacity = learned(60.0).capacity(BUDGET), model.capacity(BUDGET)
    assert truth and capacity and capacity.load == pytest.approx(truth.load, rel=0.05)


def test_one_pod_is_at_most_four_times_the_one_in_the_middle() -> None:
    assert robust_total([100.0, 110.0, 1e12]) == 100.0 + 110.0 + 440.0
    assert robust_total([0.0, 0.0, 1e12]) == 0.0
    assert robust_total([5.0, 7.0]) == 12.0


def test_a_classic_model_is_measured_in_requests() -> None:
    model = CapacityModel()
    for rate in [*range(10, 100, 3)] * 8:
        model = model.observe([PodLoad(1.0, 0.0, None, None, float(rate))] * 2, 30.0, 0.5 if rate > 70 else 0.0)
    capacity = model.capacity(0.01)
    assert capacity is not None and 64 <= capacity.load <= 74


def test_a_pod_that_becomes_slower_is_noticed() -> None:
    model = learned(60.0)
    before = model.capacity(BUDGET)
    rng = random.Random(5)
    for _ in range(400):
        running = rng.uniform(2.0, 40.0)
        slow = pod(running)
        slow = replace(slow, missed=1.0 if running > 25 else 0.0)
        model = model.observe([slow] * 3, 30.0)
    after = model.capacity(BUDGET)
    assert before and after and after.load < 0.85 * before.load


def test_start_up_times_are_the_median_of_the_last_nine() -> None:
    model = CapacityModel()
    assert model.start_s == 60.0
    for seconds in (1.0, 1.0, 80.0, 90.0, 100.0, 90.0, 90.0, 5000.0, 90.0, 90.0, 90.0):
        model = model.started(seconds)
    assert len(model.starts_s) == 9 and model.start_s == 90.0
    assert model.started(-1.0) is model and model.started(math.inf) is model


_NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200)


@given(_NUMBERS)
def test_numbers_of_a_forged_status_make_no_model_that_fails(numbers: list[float]) -> None:
    curve, steps = LoadCurve.of(numbers), StepFit.of(numbers)
    crossing = curve.crossing(BUDGET)
    assert len(curve.bins) <= MOST_BINS
    assert crossing is None or crossing.load >= 0
    steps.solved()


def test_a_model_survives_its_status() -> None:
    model = learned(60.0)
    curve = LoadCurve.of([float(f"{number:.5g}") for number in model.curve.numbers()])
    before, after = model.curve.crossing(BUDGET), curve.crossing(BUDGET)
    assert before and after and after.load == pytest.approx(before.load, rel=1e-2)
    assert len(list(model.curve.numbers())) <= 3 * MOST_BINS


_LOAD = st.floats(-1e12, 1e12)


@given(st.lists(st.tuples(*[_LOAD] * 6), min_size=1, max_size=30))
def test_whatever_pods_report_the_capacity_is_a_number(reports: list[tuple[float, ...]]) -> None:
    model = CapacityModel()
    for running, waiting, generated, prompts, requests, missed in reports:
        model = model.observe([PodLoad(running, waiting, generated, prompts, requests, missed)], 10.0)
    capacity = model.capacity(BUDGET)
    assert capacity is None or (capacity.load >= 0 and not math.isnan(capacity.load))
