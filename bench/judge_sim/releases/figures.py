"""Releases of each canary at each rate by each rule, and what came of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from bench.judge_sim.releases import others, slipway
from bench.judge_sim.releases.rows import BATCH, RATES, ROWS, Floats, Row, requests
from bench.judge_sim.releases.slipway import MAX_HARM, Released, Shadows, Weigh, bounded, shadowed
from bench.judge_sim.running import OURS, Z_95

TWO_HOURS_S = 7200
RULES = (OURS, *others.OTHERS)
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Mean:
    """A mean over runs, half of its 95 % interval, and the 95 % quantile of the runs."""

    value: float
    error: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> "Mean":
        error = Z_95 * float(values.std()) / math.sqrt(values.size)
        return cls(float(values.mean()), error, float(np.quantile(values, 0.95, method="higher")))


@dataclass(frozen=True)
class Time:
    """Median and p90 over all runs, in seconds, with the lower ends of their 95 % intervals; never is infinite."""

    median: float
    p90: float
    median_low: float
    p90_low: float

    @classmethod
    def of(cls, seconds: Floats) -> "Time":
        def at(part: float, z: float = 0.0) -> float:
            rank = part - z * math.sqrt(part * (1 - part) / seconds.size)
            return float(np.quantile(seconds, max(0.0, rank), method="higher"))

        return cls(at(0.5), at(0.9), at(0.5, Z_95), at(0.9, Z_95))


@dataclass(frozen=True)
class Figures:
    """How releases of one kind of canary at one rate ended by one rule."""

    row: Row
    rate: float
    rule: str
    runs: int
    promoted: int  # with the bake still to come, where there is one
    released: int
    rejected: int
    to_promotion: Time
    to_release: Time
    rejected_s: float  # median of the rejected; nan without any
    harm: Mean  # before the promotion
    bake_harm: Mean  # of those that baked
    two_hours: float  # mean harm of the first two hours, whatever was decided
    most_spent: float
    beyond: int  # runs whose actual harm before the promotion was more than maxHarm


def simulate(
    runs: int,
    seed: int,
    rows: Sequence[Row] = ROWS,
    rates: Sequence[float] = RATES,
    weigh: Weigh = bounded,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> list[Figures]:
    """All rules on the same requests.

    Args:
        runs: of each canary at each rate.
        seed: the same one gives the same numbers.
        rows: kinds of canaries.
        rates: requests a second.
        weigh: the rule of Slipway's ramp.
        on_progress: called with the row, and how many are done of all.
    """
    found, cells = [], [(rate, row) for rate in rates for row in rows]
    shadows: dict[tuple[float, float, int], Shadows] = {}
    for done, (rate, row) in enumerate(cells):
        parts: dict[str, list[Released]] = {rule: [] for rule in RULES}
        for first in range(0, runs, BATCH):
            arrivals = requests(rate, first, min(BATCH, runs - first), seed)
            key = rate, row.copies, first
            if key not in shadows:
                shadows[key] = shadowed(row, rate, first, seed, arrivals)
            parts[OURS].append(slipway.released(row, rate, first, seed, arrivals, shadows[key], weigh))
            for name in others.OTHERS:
                parts[name].append(others.released(name, row, rate, first, seed, arrivals))
        found += [_figures(row, rate, rule, _joined(each)) for rule, each in parts.items()]
        on_progress(f"releases, {row.name}, {rate:g}/s", done + 1, len(cells))
    return found


def _joined(parts: Sequence[Released]) -> Released:
    return Released(*(np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(Released)))


def _figures(row: Row, rate: float, rule: str, found: Released) -> Figures:
    promoted, rejected = np.isfinite(found.promoted_s), np.isfinite(found.rejected_s)
    after_s = np.where(np.isfinite(found.released_s), np.maximum(0.0, TWO_HOURS_S - found.released_s), 0.0)
    baked = found.bake_harm[promoted] if promoted.any() else np.zeros(1)
    return Figures(
        row, rate, rule, promoted.size, int(promoted.sum()), int(np.isfinite(found.released_s).sum()),
        int(rejected.sum()), Time.of(found.promoted_s), Time.of(found.released_s),
        float(np.median(found.rejected_s[rejected])) if rejected.any() else math.nan,
        Mean.of(found.harm), Mean.of(baked),
        float((found.harm + found.bake_harm + rate * row.clients * after_s).mean()),
        float(found.spent.max()), int((found.harm > MAX_HARM).sum()),
    )  # fmt: skip
