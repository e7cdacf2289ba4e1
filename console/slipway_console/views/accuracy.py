"""What status.accuracy shows: the share of wrong labels by day against its limit, and shares of bins; pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from slipway_cli.api import Json
from slipway_cli.objects.times import parse_time
from slipway_console.views.chart import Chart, Point, draw, format_number

FEEDBACK = "Feedback"
_WRONG, _SIGMAS = 1, 1.96
_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class DayRow:
    """Labels of one day, as text."""

    day: str
    labels: str
    wrong: str


@dataclass(frozen=True, slots=True)
class BinRow:
    """Share of one bin, as text."""

    name: str
    reference: str
    week: str


@dataclass(frozen=True, slots=True)
class Watched:
    """One signal of one revision."""

    revision: str
    signal: str
    serves: bool
    sentence: str
    evidence: float  # an alarm is raised at 1
    alarm_since: datetime | None
    finding: str
    chart: Chart | None
    days: tuple[DayRow, ...]
    bins: tuple[BinRow, ...]


def read_accuracy(obj: Json) -> tuple[Watched, ...]:
    """Read what is watched of a ModelDeployment as the API server gave it, the serving revision first."""
    status = obj.get("status") or {}
    accuracy = status.get("accuracy") or {}
    now = parse_time(accuracy.get("readAt"))
    found = [
        _watched(one, monitor, now, serves=one.get("revision") == status.get("stableRevision"))
        for one in accuracy.get("revisions") or ()
        for monitor in one.get("monitors") or ()
    ]
    return tuple(sorted(found, key=lambda watched: not watched.serves))


def _watched(revision: Json, monitor: Json, now: datetime | None, *, serves: bool) -> Watched:
    signal, days = str(monitor.get("signal") or ""), _days(monitor)
    alarm_since, until = parse_time(monitor.get("alarmSince")), parse_time(monitor.get("referenceUntil"))
    week = _sum([counts for day, counts in days if now is None or now - day < _WEEK])
    reference = _numbers(monitor.get("reference"))
    taken = bool(monitor.get("referenceRule")) and until is None
    is_feedback = signal == FEEDBACK
    return Watched(
        revision=str(revision.get("revision") or ""),
        signal=signal,
        serves=serves,
        sentence=_sentence(monitor, week, taken=taken),
        evidence=min(1.0, float(monitor.get("evidence") or 0.0)),
        alarm_since=alarm_since,
        finding=str(monitor.get("finding") or "") if alarm_since else "",
        chart=_chart(days, monitor.get("limit")) if is_feedback else None,
        days=tuple(DayRow(f"{day:%Y-%m-%d}", str(sum(n)), str(n[_WRONG])) for day, n in reversed(days))
        if is_feedback
        else (),
        bins=() if is_feedback else tuple(_bins(revision.get("bins") or {}, reference, week)),
    )


def _sentence(monitor: Json, week: Sequence[int], *, taken: bool) -> str:
    total, limit = sum(week), monitor.get("limit")
    reference = sum(_numbers(monitor.get("reference")))
    if monitor.get("signal") != FEEDBACK:
        what = f"{total:,} predictions in the last seven days"
        return f"{what}; the reference is being taken, of {reference:,} so far" if taken else what
    wrong = f", {week[_WRONG] / total:.2%} wrong" if total else ""
    what = f"{total:,} labels in the last seven days{wrong}"
    if taken:
        return f"{what}; the baseline is being taken, of {reference:,} labels so far"
    return f"{what}; the limit is {float(limit):.2%}" if limit is not None else what


def _days(monitor: Json) -> list[tuple[datetime, list[int]]]:
    found = []
    for line in monitor.get("periods") or ():
        start, _, numbers = str(line).partition(" ")
        day, counts = parse_time(start), [int(one) for one in numbers.split(":") if one.isdecimal() and len(one) <= 16]
        if day is not None and len(counts) > _WRONG:
            found.append((day, counts))
    return found


def _chart(days: Sequence[tuple[datetime, list[int]]], limit: object) -> Chart | None:
    """Wilson's interval of each day's share of wrong labels, at 95 %."""
    counted = [(day, counts) for day, counts in days if sum(counts)]
    if not counted or not isinstance(limit, int | float):
        return None
    start = counted[0][0]
    points = [Point((day - start).total_seconds(), *_interval(n[_WRONG], sum(n))) for day, n in counted]
    return draw(points, float(limit), floor=0.0)


def _interval(events: int, total: int) -> tuple[float, float]:
    share, spread = events / total, _SIGMAS**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = _SIGMAS * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def _bins(bins: Json, reference: Sequence[int], week: Sequence[int]) -> list[BinRow]:
    """Bins with predictions, in their order; the last one has all others."""
    names, rows = _names(bins), []
    size = max(len(reference), len(week))
    for place in range(size):
        before, now = (counts[place] if place < len(counts) else 0 for counts in (reference, week))
        if before or now:
            name = names[place] if place < len(names) else "other"
            rows.append(BinRow(name, _share(before, sum(reference)), _share(now, sum(week))))
    return rows


def _names(bins: Json) -> list[str]:
    cuts = [format_number(float(cut)) for cut in bins.get("cuts") or ()]
    if cuts:
        return [f"up to {cuts[0]}", *(f"{low} to {high}" for low, high in pairwise(cuts)), f"above {cuts[-1]}"]
    return [f"label with CRC-32 {crc:08x}" for crc in bins.get("labels") or ()]


def _share(part: int, total: int) -> str:
    return f"{part / total:.1%}" if total else "-"


def _sum(days: Sequence[Sequence[int]]) -> list[int]:
    size = max(map(len, days), default=0)
    return [sum(counts[place] for counts in days if place < len(counts)) for place in range(size)]


def _numbers(counts: object) -> list[int]:
    return [one for one in counts if isinstance(one, int)] if isinstance(counts, list | tuple) else []
