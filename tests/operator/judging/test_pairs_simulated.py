"""Rollouts by pairs, simulated with the functions of the judge and the built-in template: how they end, and when."""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.judging.evidence import log_combined
from slipway_operator.judging.margins import paired
from slipway_operator.judging.margins.paired import FormerBad, PairCounts
from slipway_operator.model.analysis.template import BUILT_IN

RUNS, LOOK_S, WARM_UP_S, LEAST_S, LEAST_PAIRS = 300, 10, 120, 300, 300
Floats = npt.NDArray[np.float64]
BAD, TRUNCATED = 0.005, 0.02  # rates that no prompt explains, on each side
SPREADS = {"ttft": (0.30, 0.15), "itl": (0.10, 0.10)}  # sd of ln(canary/twin), and the margin


@dataclass
class Counted:
    """Pairs of many rollouts by clock epoch: all, and those in which one side alone is bad."""

    pairs: Floats
    canary: Floats
    twin: Floats

    def add(self, epoch: int, pairs: Floats, canary: Floats, twin: Floats) -> None:
        self.pairs[:, epoch] += pairs
        self.canary[:, epoch] += canary
        self.twin[:, epoch] += twin

    def upto(self, epoch: int) -> PairCounts:
        return PairCounts(self.pairs[:, : epoch + 1], self.canary[:, : epoch + 1], self.twin[:, : epoch + 1])


@dataclass
class Rollouts:
    """Rollouts of one kind of canary, with so many pairs a second."""

    rate: float
    extra: float = 0.0
    slower: float = 0.0
    minutes: int = 30
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def run(self) -> tuple[Floats, Floats]:
        """Seconds until each passed, and until each was rejected; infinite where it did not."""
        template = BUILT_IN["llm-release"].spec
        assert template
        metrics = {metric.name: metric for metric in template.part(paired=True).metrics}
        shape = (RUNS, clock_epoch(60 * self.minutes) + 1)
        names = ("bad", "truncated", "ttft", "itl", "ttft/tail", "itl/tail")
        counted = {name: Counted(np.zeros(shape), np.zeros(shape), np.zeros(shape)) for name in names}
        former = {"bad": FormerBad(100, 20_000), "truncated": FormerBad(400, 20_000)}
        shares = np.array([metric.share for metric in metrics.values()])
        passed, rejected = np.full(RUNS, np.inf), np.full(RUNS, np.inf)
        for seconds in range(LOOK_S, 60 * self.minutes + 1, LOOK_S):
            self._look(counted, seconds)
            seen = {name: counts.upto(clock_epoch(seconds)) for name, counts in counted.items()}
            logs = np.stack([paired.log_against(metric, seen[name]) for name, metric in metrics.items()], axis=-1)
            open_still = np.isinf(passed) & np.isinf(rejected)
            if not open_still.any():
                break
            rejected[open_still & (log_combined(logs, shares) >= math.log(2 / 0.01))] = seconds
            proved = seen["bad"].pairs.sum(axis=-1) >= LEAST_PAIRS
            for name, metric in metrics.items():
                tail = seen.get(f"{name}/tail", seen[name])
                proved &= paired.log_within(metric, seen[name], tail, former.get(name, FormerBad())) >= math.log(20)
            passed[open_still & np.isinf(rejected) & proved & (seconds >= LEAST_S)] = seconds
        return passed, rejected

    def _look(self, counted: dict[str, Counted], seconds: int) -> None:
        """What happens in the seconds before a look."""
        epoch, pairs = clock_epoch(seconds), self.chance.poisson(self.rate * LOOK_S, RUNS)
        for name, canary, twin in (("bad", BAD + self.extra, BAD), ("truncated", TRUNCATED, TRUNCATED)):
            alone = self.chance.binomial(pairs, canary * (1 - twin))
            counted[name].add(epoch, pairs, alone, self.chance.binomial(pairs - alone, twin))
        for name, (spread, margin) in SPREADS.items() if seconds > WARM_UP_S else ():
            beyond = (math.log(1 + margin) - math.log(1 + self.slower)) / spread
            over = self.chance.binomial(pairs, 0.5 * math.erfc(beyond / math.sqrt(2)))
            counted[name].add(epoch, pairs, over, np.zeros(RUNS))
            above = self.chance.binomial(pairs, 0.025 * (1 + 4 * self.slower))
            counted[f"{name}/tail"].add(epoch, pairs, above, self.chance.binomial(pairs - above, 0.025))


@pytest.mark.parametrize(("rate", "median_s", "most_s"), [(5, 420, 600), (1, 1200, 2100)])
def test_a_healthy_canary_passes_in_minutes_and_is_hardly_ever_rejected(
    rate: float, median_s: float, most_s: float
) -> None:
    """Half of them within the first time, nine of ten within the second; at most one in a hundred is rejected."""
    passed, rejected = Rollouts(rate, minutes=40).run()
    assert float(np.isfinite(rejected).mean()) <= 0.01
    assert np.quantile(passed, 0.5) <= median_s
    assert np.quantile(passed, 0.9) <= most_s


@pytest.mark.parametrize(
    ("canary", "passes", "rejected_s"),
    [
        ({"extra": 0.01}, 0.05, math.inf),
        ({"extra": 0.02}, 0.005, 300),
        ({"extra": 0.095}, 0.0, 60),
        ({"slower": 0.15}, 0.05, 300),
        ({"slower": 0.5}, 0.0, 150),
    ],
    ids=["at the margin", "twice the margin", "a tenth fails", "slower by the margin", "half slower"],
)
def test_a_worse_canary_hardly_ever_passes_and_is_rejected_soon(
    canary: dict[str, float], passes: float, rejected_s: float
) -> None:
    passed, rejected = Rollouts(5, **canary).run()  # type: ignore[arg-type]
    assert float(np.isfinite(passed).mean()) <= passes
    assert np.quantile(rejected, 0.5) <= rejected_s
