"""How many healthy releases are promoted within half an hour, at few and many requests a second.

Where requests belong to sessions, a session is one pair of a shadow in each epoch, and one unit of a ramp, which is bad
if one of its requests is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.judge_sim.intervals import wilson
from bench.judge_sim.releases import slipway
from bench.judge_sim.releases.rows import BAD, BATCH, Row, requests
from bench.judge_sim.tables import table
from testkit.report import Bar

RATES, HALF_HOUR_S = (1.0, 10.0, 100.0), 1800
LEAST = {1: 0.85, 6: 0.60}  # requests of a session -> share of the releases, over all rates


@dataclass(frozen=True)
class HalfHour:
    """Releases at one rate of requests."""

    session: int  # requests of each
    rate: float
    runs: int
    promoted: int

    @property
    def unit(self) -> str:
        return "requests" if self.session == 1 else f"sessions of {self.session} requests"


def half_hours(runs: int, seed: int) -> list[HalfHour]:
    """`runs` releases of each kind at each rate; the same seed gives the same numbers."""
    return [_half_hour(session, rate, runs, seed) for session in LEAST for rate in RATES]


def _half_hour(session: int, rate: float, runs: int, seed: int) -> HalfHour:
    row, units, promoted = Row(f"healthy, {session}"), rate / session, 0
    for first in range(0, runs, BATCH):
        arrivals = requests(units, first, min(BATCH, runs - first), seed)
        shadows = slipway.shadowed(row, units, first, seed, arrivals)
        bad = 1 - (1 - BAD) ** session
        found = slipway.released(row, units, first, seed, arrivals, shadows, unit_bad=bad)
        promoted += int(np.count_nonzero(found.promoted_s <= HALF_HOUR_S))
    return HalfHour(session, rate, runs, promoted)


def bars(found: Sequence[HalfHour]) -> list[Bar]:
    """Not held where the whole interval is below the limit."""
    made = []
    for session, least in LEAST.items():
        mine = [item for item in found if item.session == session]
        if mine:
            hits, runs = sum(item.promoted for item in mine), sum(item.runs for item in mine)
            name = f"healthy promoted within half an hour, {mine[0].unit}"
            made.append(Bar(name, round(hits / runs, 4), f">= {least:g}", wilson(hits, runs)[1] >= least))
    return made


def half_hour_table(found: Sequence[HalfHour]) -> str:
    """A row for each unit, a column for each rate."""
    by_unit = {item.unit: [one for one in found if one.unit == item.unit] for item in found}
    rows = [(unit, *(f"{100 * one.promoted / one.runs:.0f}" for one in each)) for unit, each in by_unit.items()]
    return table(("promoted within half an hour, %", *(f"{rate:g}/s" for rate in RATES)), rows)
