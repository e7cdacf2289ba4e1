"""Simulated years of spec.accuracy: false alarms a year, and labels until a drop is found.

    python -m bench.accuracy_sim          # 1,000 years a row; some minutes of one core; writes bench/accuracy_sim.md
    QUICK=1 python -m bench.accuracy_sim  # 100 years a row, and writes nothing

It calls the functions that the operator calls, `slipway_operator.judging.watching`, with a reading each day. It fails
when more false alarms are raised in a year than was stated.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from slipway_operator.api.v1alpha1.accuracy_status import FEEDBACK, PREDICTIONS, AccuracyMonitor
from slipway_operator.judging import watching
from slipway_operator.model.deployment.accuracy import SignalTerms

START, DAY = datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=1)
YEAR_DAYS = 365
PAGE = Path(__file__).with_suffix(".md")
Chance = np.random.Generator
Day = Callable[[Chance, int], tuple[int, ...]]  # the counts of a day, by its number


@dataclass(frozen=True, slots=True)
class Quiet:
    """A kind of years in which nothing exceeds a limit. `years`: that one revision serves."""

    title: str
    terms: SignalTerms
    day: Day
    years: int = 10


@dataclass(frozen=True, slots=True)
class Change:
    """A change for the worse after half a year. `before`, `after`: shares of the observations by place."""

    title: str
    terms: SignalTerms
    before: tuple[float, ...]
    after: tuple[float, ...]
    each_day: int


def labels(rate: float, **limits: float) -> SignalTerms:
    """Terms of labels."""
    least = int(limits.pop("baseline", 0))
    return SignalTerms(FEEDBACK, rate, limits.get("limit"), limits.get("drop"), least)


def predictions(rate: float, shift: float) -> SignalTerms:
    """Terms of predictions, with a reference of a week."""
    return SignalTerms(PREDICTIONS, rate, None, shift, 1000, timedelta(days=7))


def wrong(share: float, each_day: int, every: int = 1) -> Day:
    """Labels that come at this rate, each `every` days at once."""

    def day(chance: Chance, number: int) -> tuple[int, ...]:
        total = 0 if number % every else each_day * every
        bad = int(chance.binomial(total, share))
        return total - bad, bad

    return day


def bursts(share: float, each_day: int) -> Day:
    """Labels of which there are none on half of the days and many on a few."""

    def day(chance: Chance, number: int) -> tuple[int, ...]:
        total = int(each_day * chance.pareto(1.2)) if chance.random() < 0.5 else 0
        bad = int(chance.binomial(min(total, 50_000), share))
        return min(total, 50_000) - bad, bad

    return day


def better_at_first(first: float, later: float, days: int, each_day: int) -> Day:
    """Labels that are wrong more often once the baseline is taken: by exactly what is allowed."""

    def day(chance: Chance, number: int) -> tuple[int, ...]:
        return wrong(first if number < days else later, each_day)(chance, number)

    return day


def binned(shares: Sequence[float], each_day: int, later: Sequence[float] | None = None, days: int = 8) -> Day:
    """Predictions in 17 bins; `later` from this day on."""

    def day(chance: Chance, number: int) -> tuple[int, ...]:
        now = later if later is not None and number >= days else shares
        drawn = chance.multinomial(each_day, _filled(now))
        return tuple(map(int, drawn))

    return day


def _filled(shares: Sequence[float]) -> list[float]:
    return [*shares, *(0.0,) * (17 - len(shares))]


def false_alarms(kind: Quiet, years: int, seed: int) -> int:
    """Alarms in so many years, each revision with a monitor of its own."""
    chance, alarms = np.random.default_rng(seed), 0
    for _ in range(max(1, years // kind.years)):
        monitor = AccuracyMonitor(kind.terms.signal, START)
        for number in range(kind.years * YEAR_DAYS):
            now = START + number * DAY
            monitor = watching.renewed(monitor, kind.terms, kind.day(chance, number), now, DAY)
            monitor = replace(monitor, periods=())  # which only people read
        alarms += monitor.alarms
    return alarms


def observations_until_found(change: Change, runs: int, seed: int, *, most: int = 200_000) -> list[int]:
    """Observations after a change until its alarm, for each run; readings after each fiftieth of a day."""
    chance, found = np.random.default_rng(seed), []
    for _ in range(runs):
        monitor, now = AccuracyMonitor(change.terms.signal, START), START
        for _ in range(YEAR_DAYS // 2):
            now += DAY
            monitor = _read(monitor, change, chance, change.before, change.each_day, now, DAY)
        # A false alarm before the change would hide it.
        monitor, seen, part = replace(monitor, alarm_since=None, after=()), 0, max(1, change.each_day // 50)
        while monitor.alarm_since is None and seen < most:
            elapsed = DAY * part / change.each_day
            now, seen = now + elapsed, seen + part
            monitor = _read(monitor, change, chance, change.after, part, now, elapsed)
        found.append(seen)
    return found


def _read(
    monitor: AccuracyMonitor,
    change: Change,
    chance: Chance,
    shares: Sequence[float],
    number: int,
    now: datetime,
    elapsed: timedelta,
) -> AccuracyMonitor:
    drawn = tuple(map(int, chance.multinomial(number, shares)))
    return replace(watching.renewed(monitor, change.terms, drawn, now, elapsed), periods=())


EQUAL = (0.1,) * 10
QUIET = (
    Quiet("labels wrong in 10 %, the limit, 20 a day", labels(1, limit=0.1), wrong(0.1, 20)),
    Quiet("the same, 100 a day", labels(1, limit=0.1), wrong(0.1, 100)),
    Quiet("the same, 1,000 a day", labels(1, limit=0.1), wrong(0.1, 1000)),
    Quiet("the same, 3,000 at once each 30 days", labels(1, limit=0.1), wrong(0.1, 100, 30)),
    Quiet("the same, in bursts", labels(1, limit=0.1), bursts(0.1, 100)),
    Quiet("the same, 100 a day, 0.1 a year", labels(0.1, limit=0.1), wrong(0.1, 100)),
    Quiet("labels wrong in 9 %, limit 10 %, 100 a day", labels(1, limit=0.1), wrong(0.09, 100)),
    Quiet(
        "`maxDrop` 2 points, baseline of 5,000, nothing changes", labels(1, drop=0.02, baseline=5000), wrong(0.1, 100)
    ),
    Quiet(
        "the same, a drop of exactly 2 points after the baseline",
        labels(1, drop=0.02, baseline=5000),
        better_at_first(0.1, 0.12, 50, 100),
    ),
    Quiet("the same, baseline of 200", labels(1, drop=0.02, baseline=200), better_at_first(0.1, 0.12, 2, 100)),
    Quiet("predictions in ten bins, nothing changes, 1,000 a day", predictions(1, 0.1), binned(EQUAL, 1000)),
    Quiet(
        "the same, one bin 10 points larger, which is allowed",
        predictions(1, 0.1),
        binned(EQUAL, 1000, (0.2, *(0.8 / 9,) * 9)),
    ),
)
SHARES = tuple(_filled(EQUAL))
CHANGES = (
    Change(
        "right in 90 %, then 85 %; `minAccuracy: 0.9`, 1 a year",
        *(labels(1, limit=0.1), (0.9, 0.1), (0.85, 0.15), 100),
    ),
    Change("the same, 0.1 a year", labels(0.1, limit=0.1), (0.9, 0.1), (0.85, 0.15), 100),
    Change("right in 92 %, then 87 %; the same", labels(0.1, limit=0.1), (0.92, 0.08), (0.87, 0.13), 100),
    Change("right in 90 %, then 70 %; the same", labels(0.1, limit=0.1), (0.9, 0.1), (0.7, 0.3), 100),
    Change(
        "right in 95 %, then 90 %; `minAccuracy: 0.95`, 0.1 a year",
        *(labels(0.1, limit=0.05), (0.95, 0.05), (0.9, 0.1), 100),
    ),
    Change(
        "right in 90 %, then 85 %; `maxDrop: 0.01`, baseline of 5,000, 1 a year",
        *(labels(1, drop=0.01, baseline=5000), (0.9, 0.1), (0.85, 0.15), 100),
    ),
    Change(
        "right in 90 %, then 85 %; `maxDrop: 0.02`, baseline of 10,000, 0.1 a year",
        *(labels(0.1, drop=0.02, baseline=10_000), (0.9, 0.1), (0.85, 0.15), 100),
    ),
    Change(
        "one of ten bins 20 points larger; `maxShift: 0.1`, 0.1 a year",
        *(predictions(0.1, 0.1), SHARES, tuple(_filled((0.3, *(0.7 / 9,) * 9))), 1000),
    ),
    Change(
        "the same prediction for all requests; `maxShift: 0.1`, 0.1 a year",
        *(predictions(0.1, 0.1), SHARES, tuple(_filled((1.0,))), 1000),
    ),
)


def tables(years: int, runs: int) -> Iterator[str]:
    """Both tables, a line each."""
    yield f"| nothing exceeds the limit, {years:,} years | stated, a year | false alarms a year |"
    yield "|---|---|---|"
    for seed, kind in enumerate(QUIET):
        alarms = false_alarms(kind, years, seed)
        if alarms > kind.terms.rate * years:
            raise SystemExit(f"{kind.title}: {alarms} alarms in {years} years, stated are {kind.terms.rate * years:g}")
        yield f"| {kind.title} | {kind.terms.rate:g} | {alarms / years:.3g} |"
    yield ""
    yield f"| change after half a year, {runs} runs | half found within | nine of ten within |"
    yield "|---|---|---|"
    for seed, change in enumerate(CHANGES):
        found = observations_until_found(change, runs, 100 + seed)
        half, most = (int(np.quantile(found, share)) for share in (0.5, 0.9))
        what = "labels" if change.terms.signal == FEEDBACK else "predictions"
        yield f"| {change.title} | {half:,} {what} | {most:,} |"


def main() -> None:
    """Prints the tables, and writes them where it simulated all."""
    quick = os.environ.get("QUICK") == "1"
    lines = []
    for line in tables(100 if quick else 1000, 20 if quick else 200):
        print(line, flush=True)
        lines.append(line)
    if not quick:
        words = "Written by `make accuracy-sim`; [docs/accuracy.md](../docs/accuracy.md) explains them."
        PAGE.write_text("\n".join(["# Simulated years of spec.accuracy", "", words, "", *lines, ""]))


if __name__ == "__main__":
    main()
