"""Two loads in turns, A B B A, and how their rates compare: what drifts with time hits both from both sides."""

import math
from dataclasses import dataclass
from statistics import median, quantiles

from bench.sampling.loads import Loaded

TURN_STEPS = 4
TURNS_OF_SEQUENCES = 16  # then both begin again with new ones: 128 steps of each


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of token rates, B to A: of each four turns one."""

    ratios: tuple[float, ...]
    a_ms: float  # median of a step, in the same turns
    b_ms: float

    @property
    def middle(self) -> float:
        return median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = quantiles(self.ratios, n=4)
        return low, high

    @property
    def error(self) -> float:
        """About the standard error of the median, from the quartiles: other work makes the tails long."""
        low, high = self.quartiles
        return 0.93 * (high - low) / math.sqrt(len(self.ratios))


def compare(a: Loaded, b: Loaded, turns: int) -> Ratio:
    ratios, a_ms, b_ms = [], [], []
    for turn in range(turns):
        if turn % TURNS_OF_SEQUENCES == 0:
            a.renew()
            b.renew()
        runs = [one.run(TURN_STEPS) for one in ((a, b, b, a) if turn % 2 else (b, a, a, b))]
        outer, inner = _sum(runs[0], runs[3]), _sum(runs[1], runs[2])
        of_a, of_b = (outer, inner) if turn % 2 else (inner, outer)
        ratios.append(of_b[0] / of_b[1] * of_a[1] / of_a[0])
        a_ms.append(of_a[1] / TURN_STEPS / 2 * 1e3)
        b_ms.append(of_b[1] / TURN_STEPS / 2 * 1e3)
    return Ratio(tuple(ratios), median(a_ms), median(b_ms))


def _sum(one: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
    return one[0] + other[0], one[1] + other[1]
