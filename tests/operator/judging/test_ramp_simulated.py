"""Ramps, simulated with the functions of the judge: how long they take, and what they cost users."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from slipway_operator.judging.margins.extra import live_bets, log_ipw_below, rate_upper
from slipway_operator.judging.margins.ramp import LOOK_S, WEIGHTS, least_weight, next_weight
from slipway_operator.judging.verdict import Tally, log_evidence
from slipway_operator.model.analysis.template import BUILT_IN

RUNS, MINUTES, BUDGET = 60, 20, 20.0
BAD = 0.005  # the rate that stable has, too
SHADOW = 0.0087  # what a twin shadow proves when it passes


@dataclass
class SimulatedRamp:
    """One ramp; `extra`: bad responses to clients for each request that stable would not give."""

    rate: float
    extra: float
    shadow: float
    chance: np.random.Generator
    spent: float = 0.0
    cost: float = 0.0  # extra bad responses that users got
    passed_s: float = math.inf
    rejected_s: float = math.inf
    counts: np.ndarray = field(
        default_factory=lambda: np.zeros((4, len(WEIGHTS)), dtype=np.int64)
    )  # canary_units, stable_units, canary_bad, stable_bad

    def run(self) -> None:
        template = BUILT_IN["llm-release"].spec
        assert template
        (live,) = (one for one in template.part(paired=False).gating if one.max_extra is not None)
        level, weight, bound = template.false_promote_rate, WEIGHTS[0], self.shadow
        for seconds in range(int(LOOK_S), 60 * MINUTES + 1, int(LOOK_S)):
            units = self._look(weight)
            self.spent += bound * units
            canary_units, stable_units, canary_bad, stable_bad = self.counts
            against = log_evidence(
                live, Tally(np.array(WEIGHTS) / 100, canary_units, stable_units, canary_bad, stable_bad)
            ) + math.log(live.share)
            if against >= math.log(2 / template.false_rollback_rate):  # the shadow has the other half
                self.rejected_s = seconds
                return
            shares, margin = np.array(WEIGHTS) / 100, (live.max_extra or 0) / 1000
            proof = log_ipw_below(
                canary_bad, stable_bad, canary_units + stable_units, shares, margin, live_bets(shares, margin)
            )
            if proof >= math.log(1 / level) and canary_units.sum() >= template.min_samples.canary_requests:
                self.passed_s = seconds
                return
            own = float(rate_upper(canary_bad.sum(), canary_units.sum(), level / 2)) if canary_units.sum() else 1.0
            bound = min(self.shadow, own)
            least = least_weight(bound, self.spent, BUDGET, self.rate)
            weight = max(least, next_weight(bound, own, self.spent, BUDGET, self.rate))
            if weight == 0:
                return

    def _look(self, weight: int) -> int:
        """The requests until the next look; how many of them canary gets."""
        place, all_ = WEIGHTS.index(weight), int(self.chance.poisson(self.rate * LOOK_S))
        canary = int(self.chance.binomial(all_, weight / 100))
        bad, more = (int(self.chance.binomial(canary, rate)) for rate in (BAD, self.extra))
        self.cost += more
        stable_bad = int(self.chance.binomial(all_ - canary, BAD))
        self.counts[:, place] += [canary, all_ - canary, min(canary, bad + more), stable_bad]
        return canary


def simulated(rate: float, extra: float = 0.0, shadow: float = SHADOW) -> list[SimulatedRamp]:
    chance = np.random.default_rng(11)
    runs = [SimulatedRamp(rate, extra, shadow, chance) for _ in range(RUNS)]
    for one in runs:
        one.run()
    return runs


@pytest.mark.parametrize(("rate", "median_s", "most_s"), [(5, 180, 300), (20, 120, 180)])
def test_a_healthy_revision_passes_in_minutes(rate: float, median_s: float, most_s: float) -> None:
    passed = [one.passed_s for one in simulated(rate)]
    assert np.quantile(passed, 0.5) <= median_s
    assert np.quantile(passed, 0.9) <= most_s


@pytest.mark.parametrize("extra", [0.0, 0.005, 0.0087])
def test_what_a_ramp_costs_stays_within_max_harm(extra: float) -> None:
    """The shadow's bound holds here: copies see what clients see."""
    runs = simulated(5, extra)
    assert all(one.spent <= BUDGET for one in runs)
    assert np.quantile([one.cost for one in runs], 0.95) <= BUDGET


@pytest.mark.parametrize(("rate", "harmed"), [(1, 20), (5, 20), (20, 20), (100, 20)])
def test_a_revision_that_fails_for_clients_only_harms_few(rate: float, harmed: float) -> None:
    """No copy sees it, so only the responses to clients hold the weight down, and reject it. At 100 requests a second
    one look at 1 percent is ten requests."""
    runs = simulated(rate, extra=0.995)
    assert all(math.isinf(one.passed_s) and one.rejected_s <= 300 for one in runs)
    assert np.quantile([one.cost for one in runs], 0.95) <= harmed


def test_a_revision_that_is_ten_points_worse_for_clients_only_is_rejected() -> None:
    runs = simulated(5, extra=0.1)
    assert sum(math.isfinite(one.passed_s) for one in runs) <= 1
    assert np.quantile([one.cost for one in runs], 0.5) <= 20


def test_without_a_shadow_the_harm_is_spent() -> None:
    runs = simulated(5, shadow=1.0)
    assert all(one.spent <= BUDGET + 5 for one in runs)
