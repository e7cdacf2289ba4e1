"""Margins: bounds on extra bad responses and on slowness, with the numbers of the design; valid at any time."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_operator.judging.margins import extra, ramp, slowness

D, P_HAT, BETA = 0.01, 0.005, 0.05
STAKES = extra.stakes(P_HAT, D)
BEST = 0.6250188  # of pairs, where each side alone is bad with the probability P_HAT*(1-P_HAT), for the margin D
# The design has half of the money on the best stake and half on the grid.
DESIGN = extra.Stakes((*extra.GRID, BEST), (*(0.5 / len(extra.GRID) for _ in extra.GRID), 0.5))


# -- the numbers of the design


def test_stakes_are_around_the_best_one_of_the_design() -> None:
    assert STAKES.sizes[-2:] == pytest.approx((0.9 * BEST, 0.4 * BEST), abs=2e-6)
    assert sum(STAKES.parts) == pytest.approx(1) and STAKES.parts[-2:] == (0.75, 0.1)


@pytest.mark.parametrize(("counts", "expected"), [((0, 0, 300), 1.716055), ((3, 2, 640), 1.695769)])
def test_evidence_of_pairs_is_that_of_the_design(counts: tuple[int, int, int], expected: float) -> None:
    assert float(extra.log_extra_below(*counts, D, DESIGN)) == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize(("pairs", "per_thousand"), [(300, 16.44), (1000, 4.91)])
def test_bound_of_clean_pairs_is_that_of_the_design(pairs: int, per_thousand: float) -> None:
    found = extra._least(lambda d: extra.log_extra_below(0, 0, pairs, d, DESIGN), (), BETA)
    assert 1000 * float(found) == pytest.approx(per_thousand, abs=0.01)


def test_evidence_over_starts_is_the_golden_number() -> None:
    two = extra.log_extra_over_starts([0, 0], [0, 0], [300, 300], D, STAKES)
    assert float(two) == pytest.approx(3.212961, abs=5e-6)
    clean = next(
        n for n in itertools.count(1) if extra.log_extra_over_starts([0], [0], [n], D, STAKES) >= math.log(1 / BETA)
    )
    assert clean == 567


@pytest.mark.parametrize(("k", "n", "expected"), [(5, 30, 6.186358), (40, 120, 5.256302)])
def test_evidence_of_latencies_is_that_of_the_design(k: int, n: int, expected: float) -> None:
    assert float(slowness.log_faster(k, n)) == pytest.approx(expected, abs=1e-6)
    assert float(slowness.log_slower(n - k, n)) == pytest.approx(expected, abs=1e-6), "the coin has two sides"


def test_fourteen_discordant_pairs_of_canary_reject() -> None:
    share, start, third = 0.4, 0.5, math.log(3 / 0.01)
    assert float(slowness.log_slower(14, 14)) + math.log(share * start) >= third
    assert float(slowness.log_slower(13, 13)) + math.log(share * start) < third


# -- what always holds

COUNTS = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2000))


@given(COUNTS, st.floats(0.001, 0.5), st.floats(1.01, 2))
def test_what_is_proved_for_a_margin_is_proved_for_a_larger_one(
    counts: tuple[int, int, int], d: float, times: float
) -> None:
    a, b, clean = counts
    n = a + b + clean
    assert extra.log_extra_below(a, b, n, d * times, STAKES) >= extra.log_extra_below(a, b, n, d, STAKES) - 1e-9
    split, bets = ([a], [b], [n], [0.1]), extra.live_bets([0.1], d)
    assert extra.log_ipw_below(*split, d * times, bets) >= extra.log_ipw_below(*split, d, bets) - 1e-9


@given(COUNTS)
def test_a_bad_response_of_canary_never_lowers_the_bound_and_one_of_stable_never_raises_it(
    counts: tuple[int, int, int],
) -> None:
    a, b, clean = counts
    n = a + b + clean + 1
    before, worse, better = (
        float(extra.extra_upper([x], [y], [n], STAKES, BETA)) for x, y in ((a, b), (a + 1, b), (a, b + 1))
    )
    assert better <= before <= worse
    bets = extra.live_bets([0.25], D)
    live, live_worse = (float(extra.live_extra_upper([x], [b], [n], [0.25], bets, BETA)) for x in (a, a + 1))
    assert live <= live_worse
    assert float(extra.rate_upper(a, n, BETA)) <= float(extra.rate_upper(a + 1, n, BETA))


def test_one_canary_and_a_batch_give_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 4, (2, 50, 3))
    n = a + b + rng.integers(0, 500, (50, 3))
    weights = [0.05, 0.25, 0.5]
    bets = extra.live_bets(weights, D)
    pairs, live = extra.extra_upper(a, b, n, STAKES, BETA), extra.live_extra_upper(a, b, n, weights, bets, BETA)
    for run in range(50):
        one = [item[run].tolist() for item in (a, b, n)]
        assert float(extra.extra_upper(*one, STAKES, BETA)) == pairs[run]
        assert float(extra.live_extra_upper(*one, weights, bets, BETA)) == live[run]


# -- valid at any time, by simulation: a look after every block of requests


def ever_passes(logs: np.ndarray) -> float:
    return float((logs >= math.log(1 / BETA)).any(axis=-1).mean())


@pytest.mark.parametrize("correlated", [False, True])
def test_pairs_at_the_margin_pass_in_at_most_beta_of_the_runs(correlated: bool) -> None:
    """Canary is `D` worse, by requests of its own or by ones that stable fails too."""
    rng, runs, looks, block = np.random.default_rng(2), 2000, 150, 40
    p = P_HAT if correlated else 0.0
    canary = rng.binomial(block, D + p, (runs, looks)).cumsum(axis=-1)
    stable = rng.binomial(block, p, (runs, looks)).cumsum(axis=-1)
    n = np.broadcast_to(np.arange(1, looks + 1) * block, canary.shape)
    passed = ever_passes(extra.log_extra_below(canary, stable, n, D, STAKES))
    assert passed <= BETA + 2 * math.sqrt(BETA * (1 - BETA) / runs)


@pytest.mark.parametrize("weight", [0.05, 0.5])
def test_live_requests_at_the_margin_pass_in_at_most_beta_of_the_runs(weight: float) -> None:
    rng, runs, looks, block = np.random.default_rng(3), 2000, 150, 100
    on_canary = rng.binomial(block, weight, (runs, looks))
    canary = rng.binomial(on_canary, P_HAT + D).cumsum(axis=-1)[..., None]
    stable = rng.binomial(block - on_canary, P_HAT).cumsum(axis=-1)[..., None]
    n = np.broadcast_to(np.arange(1, looks + 1) * block, canary.shape[:-1])[..., None]
    passed = ever_passes(extra.log_ipw_below(canary, stable, n, [weight], D, extra.live_bets([weight], D)))
    assert passed <= BETA + 2 * math.sqrt(BETA * (1 - BETA) / runs)


def test_a_coin_is_called_faster_or_slower_in_at_most_beta_of_the_runs() -> None:
    rng, runs, looks = np.random.default_rng(4), 2000, 500
    k = rng.binomial(1, 0.5, (runs, looks)).cumsum(axis=-1)
    n = np.broadcast_to(np.arange(1, looks + 1), k.shape)
    for test in (slowness.log_faster, slowness.log_slower):
        assert ever_passes(test(k, n)) <= BETA + 2 * math.sqrt(BETA * (1 - BETA) / runs)


# -- the ramp


def test_the_weight_is_the_highest_that_fits() -> None:
    assert ramp.next_weight(u=0.002, u_live=0.01, spent=0, budget=20, rate=5) == 50
    assert ramp.next_weight(u=1, u_live=1, spent=0, budget=20, rate=5) == 5  # 2.5 requests a look, of 3.3
    assert ramp.next_weight(u=1, u_live=1, spent=0, budget=20, rate=100) == 0
    assert ramp.next_weight(u=0.002, u_live=1, spent=0, budget=20, rate=100) == 0, "copies alone are not trusted"


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=200),
    st.floats(1, 100),
    st.floats(0.1, 200),
)
def test_what_is_spent_never_exceeds_the_budget(looks: list[tuple[float, float]], budget: float, rate: float) -> None:
    spent = 0.0
    for u, u_live in looks:
        weight = ramp.next_weight(u, u_live, spent, budget, rate)
        assert weight in (0, *ramp.WEIGHTS)
        spent += u * rate * ramp.LOOK_S * weight / 100
        assert spent <= budget
