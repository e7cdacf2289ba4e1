"""Evidence is an e-process: exact sums, known values, and Ville's bound on simulated histories."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_operator.judging.bounds import log_rate_below, log_ratio_below, rate_nodes, ratio_interval
from slipway_operator.judging.drift import log_drift_evidence
from slipway_operator.judging.epochs import clock_epoch, clock_starts
from slipway_operator.judging.evidence import (
    FACTORS,
    log_combined,
    log_mean_exp,
    log_over_starts,
    log_ratio_evidence,
    ratio_exponents,
)
from slipway_operator.judging.forecast import canary_part
from slipway_operator.judging.latency import distribution_band, log_msprt
from slipway_operator.judging.sample_ratio import LOG_MISMATCH, log_mismatch_evidence

COUNTS = st.integers(0, 60)
WEIGHTS = st.integers(1, 99).map(lambda percent: percent / 100)


def ratio_e(canary_bad: int, stable_bad: int, weight: float, null: float = 1.0) -> float:
    return math.exp(log_ratio_evidence([canary_bad], [stable_bad], [weight], null))


@settings(max_examples=40, deadline=None)
@given(canary_bad=COUNTS, stable_bad=COUNTS, weight=WEIGHTS, null=st.floats(0.2, 5), true=st.floats(0.05, 1.0))
def test_one_more_event_raises_no_expectation(
    canary_bad: int, stable_bad: int, weight: float, null: float, true: float
) -> None:
    """E is a supermartingale wherever the canary's ratio is at most what is tolerated, and a martingale at the edge."""
    now = ratio_e(canary_bad, stable_bad, weight, null)
    theta = canary_part(weight, null * true)
    after = theta * ratio_e(canary_bad + 1, stable_bad, weight, null) + (1 - theta) * ratio_e(
        canary_bad, stable_bad + 1, weight, null
    )
    assert after <= now * (1 + 1e-9)
    if true == 1.0:
        assert after == pytest.approx(now, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(canary_bad=COUNTS, stable_bad=COUNTS, weight=WEIGHTS, margin=st.floats(1.1, 5), true=st.floats(1.0, 50))
def test_evidence_for_a_pass_is_a_supermartingale_beyond_the_margin(
    canary_bad: int, stable_bad: int, weight: float, margin: float, true: float
) -> None:
    def e(canary: int, stable: int) -> float:
        return math.exp(log_ratio_below([canary], [stable], [weight], margin))

    theta = canary_part(weight, margin * true)
    assert theta * e(canary_bad + 1, stable_bad) + (1 - theta) * e(canary_bad, stable_bad + 1) <= e(
        canary_bad, stable_bad
    ) * (1 + 1e-9)


@pytest.mark.parametrize("weights", [(0.05, 0.5), (0.25, 0.1)])
def test_the_mean_over_all_histories_is_one(weights: tuple[float, float]) -> None:
    """Exactly, for every history of ten events over two weights, at the edge of the null."""
    null, total = 1.5, 0.0
    for history in itertools.product((0, 1), repeat=10):
        first, second = history[:5], history[5:]
        chance = 1.0
        for weight, events in zip(weights, (first, second), strict=True):
            theta = canary_part(weight, null)
            chance *= theta ** sum(events) * (1 - theta) ** (len(events) - sum(events))
        canary = [sum(first), sum(second)]
        total += chance * math.exp(log_ratio_evidence(canary, [5 - canary[0], 5 - canary[1]], weights, null))
    assert total == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("weights", [(0.05, 0.05, 0.5), (0.25, 0.1, 0.1)])
def test_the_mean_of_a_bet_on_every_beginning_is_one(weights: tuple[float, ...]) -> None:
    """Exactly, for all histories of nine events over three epochs, and after each event: not all epochs have begun."""
    null, histories = 1.5, np.array(list(itertools.product((0, 1), repeat=9)))
    canary, stable = (np.zeros((len(histories), 3), dtype=int) for _ in range(2))
    chance = np.ones(len(histories))
    for position in range(9):
        event, epoch = histories[:, position], position // 3
        theta = canary_part(weights[epoch], null)
        chance *= np.where(event, theta, 1 - theta)
        canary[:, epoch] += event
        stable[:, epoch] += 1 - event
        found = np.exp(log_over_starts(ratio_exponents(canary, stable, weights, null)))
        # Histories that differ only after this event share it.
        assert (chance * found).sum() / 2 ** (8 - position) == pytest.approx(1, abs=1e-12)


def test_an_epoch_that_has_not_begun_changes_nothing() -> None:
    """Its stake is kept until then; so it need not be known how many there will be."""
    now = log_over_starts(ratio_exponents([3, 9], [40, 30], [0.05, 0.05], 1.0))
    then = log_over_starts(ratio_exponents([3, 9, 0], [40, 30, 0], [0.05, 0.05, 0.5], 1.0))
    assert float(now) == pytest.approx(float(then), abs=1e-12)


def test_trouble_that_begins_late_is_found_sooner_by_a_bet_that_begins_late() -> None:
    """300 events without a difference, then 20, of which 12 are canary's."""
    canary, stable, weights = [15, 12], [285, 8], [0.05, 0.05]
    whole = float(log_ratio_evidence(canary, stable, weights, 1.0))
    spread = float(log_over_starts(ratio_exponents(canary, stable, weights, 1.0)))
    assert spread > whole + 3


def test_the_clock_begins_few_epochs() -> None:
    assert clock_starts(1800) == (0, 120, 240, 480, 960)
    assert [clock_epoch(at) for at in (0, 119.9, 120, 239, 240, 479, 480, 1800)] == [0, 0, 1, 1, 2, 2, 3, 4]
    assert clock_epoch(2 * 86_400) == len(clock_starts(2 * 86_400)) - 1 < 12


@settings(max_examples=40, deadline=None)
@given(canary_bad=COUNTS, stable_bad=COUNTS, weight=WEIGHTS)
def test_bad_events_of_canary_speak_against_it_and_those_of_stable_for_it(
    canary_bad: int, stable_bad: int, weight: float
) -> None:
    assert (
        ratio_e(canary_bad + 1, stable_bad, weight)
        > ratio_e(canary_bad, stable_bad, weight)
        > ratio_e(canary_bad, stable_bad + 1, weight)
    )


@settings(max_examples=40, deadline=None)
@given(canary_bad=COUNTS, stable_bad=COUNTS, weight=WEIGHTS, low=st.floats(0.1, 4), step=st.floats(0.01, 3))
def test_more_tolerance_is_less_evidence_and_an_easier_pass(
    canary_bad: int, stable_bad: int, weight: float, low: float, step: float
) -> None:
    assert ratio_e(canary_bad, stable_bad, weight, low) >= ratio_e(canary_bad, stable_bad, weight, low + step) * (
        1 - 1e-9
    )
    lower, higher = (float(log_ratio_below([canary_bad], [stable_bad], [weight], ratio)) for ratio in (low, low + step))
    assert lower <= higher + 1e-9


def test_the_formula_of_the_design() -> None:
    """log E = logsumexp over the grid of log(1/8) + sum over epochs of k_c*ln(theta/theta_0) + k_s*ln(...)."""
    canary_bad, stable_bad, weights, null = [3, 7], [20, 11], [0.05, 0.25], 1.25
    terms = []
    for factor in FACTORS:
        total = math.log(1 / 8)
        for a, b, w in zip(canary_bad, stable_bad, weights, strict=True):
            theta, theta_0 = canary_part(w, null * factor), canary_part(w, null)
            total += a * math.log(theta / theta_0) + b * math.log((1 - theta) / (1 - theta_0))
        terms.append(total)
    expected = math.log(sum(math.exp(term) for term in terms))
    assert float(log_ratio_evidence(canary_bad, stable_bad, weights, null)) == pytest.approx(expected, rel=1e-12)


def test_a_batch_gives_the_bits_of_each() -> None:
    rng = np.random.default_rng(5)
    canary, stable = rng.integers(0, 5000, (7, 33, 3)), rng.integers(0, 5000, (7, 33, 3))
    weights = [0.05, 0.25, 0.5]
    batch = log_ratio_evidence(canary, stable, weights, 1.0)
    for where in np.ndindex(7, 33):
        alone = log_ratio_evidence(canary[where], stable[where], weights, 1.0)
        assert float(alone) == float(batch[where])


def test_evidence_of_huge_counts_stays_finite() -> None:
    assert np.isfinite(log_ratio_evidence([10**9], [10], [0.01], 1.0))
    assert np.isfinite(log_ratio_evidence([0], [10**9], [0.99], 1.0))


def test_villes_bound_holds_while_one_looks_at_every_event() -> None:
    """2,000 healthy canaries, 1,000 events each, three weights, at alpha 5 %: at most that many ever cross 1/alpha."""
    rng = np.random.default_rng(11)
    alpha, weights = 0.05, np.array([0.05, 0.25, 0.5])
    runs, events = 2000, 1000
    crossed = np.zeros(runs, dtype=bool)
    for begin in range(0, runs, 250):
        epoch = np.repeat(np.arange(3), [350, 350, 300])
        on_canary = rng.random((250, events)) < weights[epoch]
        each = epoch[None, :, None] == np.arange(3)
        canary = np.cumsum(on_canary[..., None] & each, axis=1)[:, ::5]
        stable = np.cumsum(~on_canary[..., None] & each, axis=1)[:, ::5]
        logs = log_over_starts(ratio_exponents(canary, stable, weights, 1.0))
        crossed[begin : begin + 250] = (logs >= math.log(1 / alpha)).any(axis=1)
    assert 0.001 < crossed.mean() <= alpha


def test_shares_are_averaged() -> None:
    combined = log_combined(np.log([[4.0, 400.0]]), [0.5, 0.25])
    assert math.exp(combined[0]) == pytest.approx(0.5 * 4 + 0.25 * 400)


def test_log_mean_exp_survives_extremes() -> None:
    assert float(log_mean_exp([np.float64(-2000.0), np.float64(-2001.0)])) == pytest.approx(
        -2000 + math.log((1 + math.exp(-1)) / 2)
    )
    assert float(log_mean_exp([np.float64(5000.0), np.float64(-5000.0)])) == pytest.approx(5000 - math.log(2))


# -- bounds


@settings(max_examples=40, deadline=None)
@given(k=st.integers(0, 20), more=st.integers(0, 2000), limit=st.floats(0.001, 0.5), worse=st.floats(1.0, 1.9))
def test_evidence_for_a_low_rate_is_a_supermartingale_beyond_the_limit(
    k: int, more: int, limit: float, worse: float
) -> None:
    rate, n = limit * worse, k + more
    now, bad, good = (float(log_rate_below(a, b, limit)) for a, b in ((k, n), (k + 1, n + 1), (k, n + 1)))
    assert rate * math.exp(bad - now) + (1 - rate) * math.exp(good - now) <= 1 + 1e-9


def test_requests_without_a_failure_that_prove_a_low_rate() -> None:
    """No test can do with fewer than ln(2/beta)/okBelow; the mixture needs less than a tenth more."""
    needed, limit = math.log(2 / 0.05), 0.005
    floor = needed / limit
    first = next(n for n in range(1, 5000) if float(log_rate_below(0, n, limit)) >= needed)
    assert floor * 0.99 < first < floor * 1.10
    assert float(log_rate_below(20, first, limit)) < 0


def test_nodes_stand_for_the_beta_prior() -> None:
    """The discrete mixture against the integral that it stands for, by brute force."""
    limit, k, n = 0.02, 2, 600
    u = (np.arange(200_000) + 0.5) / 200_000
    weights = np.exp(-5 * u * u)
    rates = limit * u * u
    logs = k * np.log(rates / limit) + (n - k) * np.log((1 - rates) / (1 - limit))
    exact = math.log(float((weights * np.exp(logs)).sum() / weights.sum()))
    assert float(log_rate_below(k, n, limit)) == pytest.approx(exact, abs=0.02)
    nodes, prior = rate_nodes(limit)
    assert prior.sum() == pytest.approx(1) and (nodes < limit).all() and (nodes > 0).all()


def test_interval_contains_the_ratio_of_the_counts() -> None:
    """300 bad events at weight 25, true ratio 2: both ends, and each end where its evidence crosses."""
    lower, upper = ratio_interval([120], [180], [0.25], 0.05)
    assert 1.0 < float(lower) < 2.0 < float(upper) < 4.0
    needed = math.log(2 / 0.05)
    assert float(log_ratio_evidence([120], [180], [0.25], float(lower))) == pytest.approx(needed, rel=1e-5)
    assert float(log_ratio_below([120], [180], [0.25], float(upper))) == pytest.approx(needed, rel=1e-5)
    assert ratio_interval([0], [0], [0.25], 0.05)[1] > 1000


def test_the_interval_covers_at_all_times() -> None:
    """500 canaries that are 1.5 times worse, looked at after each tenth of 600 events: few ever miss 1.5."""
    rng = np.random.default_rng(3)
    weight, true, beta = 0.25, 1.5, 0.1
    on_canary = rng.random((500, 600)) < canary_part(weight, true)
    canary = np.cumsum(on_canary, axis=1)[:, 59::60, None]
    stable = np.arange(60, 601, 60)[None, :, None] - canary
    lower, upper = ratio_interval(canary, stable, [weight], beta)
    assert ((lower > true) | (upper < true)).any(axis=1).mean() <= beta


# -- drift, split, latency


@settings(max_examples=40, deadline=None)
@given(k=st.integers(0, 100), other=st.integers(0, 100), part=st.floats(0.0, 0.5))
def test_drift_below_the_floor_is_no_evidence(k: int, other: int, part: float) -> None:
    now, more, less = (float(log_drift_evidence([a], [b])) for a, b in ((k, other), (k + 1, other), (k, other + 1)))
    assert part * math.exp(more - now) + (1 - part) * math.exp(less - now) <= 1 + 1e-9


def test_drift_agrees_with_the_beta_function() -> None:
    """2^n * B(1+k, 1+n-k) / B(1, 1), cut off at one half, by brute force; half of the stake is kept for later."""
    k, n = 34, 50
    theta = 0.5 + 0.5 * (np.arange(100_000) + 0.5) / 100_000
    exact = float(np.mean((2 * theta) ** k * (2 * (1 - theta)) ** (n - k)))
    assert math.exp(log_drift_evidence([k], [n - k])) == pytest.approx(0.5 * exact + 0.5, rel=0.02)


def test_a_wrong_split_is_seen_and_a_right_one_is_not() -> None:
    assert float(log_mismatch_evidence([700], [9300], [0.05])) > LOG_MISMATCH
    assert float(log_mismatch_evidence([300], [9700], [0.05])) > LOG_MISMATCH
    assert float(log_mismatch_evidence([500], [9500], [0.05])) < 0
    assert float(log_mismatch_evidence([500, 2500], [9500, 7500], [0.05, 0.25])) < 0


def test_the_band_has_the_widths_of_the_design() -> None:
    assert [round(distribution_band(n, 0.01), 2) for n in (200, 1000, 5000)] == [0.20, 0.09, 0.04]
    assert distribution_band(0, 0.01) == 1.0


def test_msprt_grows_with_the_difference() -> None:
    small, large = log_msprt([0.0, 0.05], 0.0004, 0.1)
    assert small < 0 < large
    assert float(log_msprt(0.05, 0.0004, 0.1)) == pytest.approx(
        0.5 * math.log(0.0004 / 0.0104) + 0.01 * 0.0025 / (2 * 0.0004 * 0.0104)
    )
