"""What an AnalysisRun shows: the bound of each metric against its limit, harm, verdict and decisions; pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from slipway_cli.api import Json
from slipway_cli.objects.times import parse_time
from slipway_cli.views.analysis import format_cells, format_measured, format_pairs
from slipway_console.views.chart import Chart, Point, draw, format_number

MOST_ROWS = 12  # of the numbers below a picture
# Unit of a series → what it bounds, and what its numbers are called in a sentence.
UNITS = {
    "ExtraPerThousand": ("extra bad responses per 1,000", "extra bad responses per 1,000 compared with stable"),
    "CostRatio": (
        "cost of a token or prediction, divided by stable's",
        "times stable's cost of a token or prediction, in the mean of the minutes",
    ),
    "Ratio": ("rate of bad requests, divided by stable's", "times stable's rate of bad requests"),
}


@dataclass(frozen=True, slots=True)
class BoundRow:
    """Numbers of one reading, as text."""

    at: str
    low: str
    high: str
    samples: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A metric with its picture."""

    metric: str
    axis: str
    sentence: str
    holds: bool  # whether the bound is below its limit
    chart: Chart
    rows: tuple[BoundRow, ...]


@dataclass(frozen=True, slots=True)
class Harm:
    """What a ramp may have cost, of what it may cost."""

    spent: float
    most: float
    weight: int
    sentence: str
    chart: Chart | None
    rows: tuple[tuple[str, str, str], ...]  # when, extra bad responses, weight


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A change of the verdict."""

    at: datetime | None
    outcome: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that one run shows."""

    name: str
    title: str
    template: str
    subject: str
    outcome: str
    reason: str
    message: str
    since: datetime | None
    started_at: datetime | None
    read_at: datetime | None
    bounds: tuple[Bound, ...]
    without_bound: tuple[str, ...]  # metrics with a limit of which nothing was counted yet
    harm: Harm | None
    decisions: tuple[DecisionRow, ...]
    totals: str  # the evidence of all metrics against what rejects
    metrics: tuple[tuple[str, ...], ...]  # cells, in METRIC_COLUMNS
    pairs: tuple[str, ...]  # differences of pairs, in numbers
    measured: tuple[str, ...]


METRIC_COLUMNS = ("Metric", "Finding", "Bad on canary", "Bad on stable", "Evidence", "Needs")


def read_evidence(run: Json) -> Evidence:
    """Read an AnalysisRun as the API server gave it."""
    status = run.get("status") or {}
    verdict, started_at = status.get("verdict") or {}, parse_time(status.get("startedAt"))
    decisions = tuple(map(_decision, status.get("decisions") or ()))
    marks = [
        (item.at - started_at).total_seconds() for item in decisions if item.at and started_at and item.at >= started_at
    ]
    series = [item for item in status.get("series") or () if isinstance(item, dict)]
    found = {item.get("metric", ""): _bound(item, marks) for item in series}
    return Evidence(
        name=str(run["metadata"]["name"]),
        title=_title(str(status.get("id") or "")),
        template=str(status.get("template") or ""),
        subject=str(((run.get("spec") or {}).get("subjectRef") or {}).get("name") or ""),
        outcome=str(verdict.get("outcome") or ""),
        reason=str(verdict.get("reason") or ""),
        message=str(verdict.get("message") or "Counting; there is no verdict yet."),
        since=parse_time(verdict.get("since")),
        started_at=started_at,
        read_at=parse_time(status.get("readAt")),
        bounds=tuple(bound for bound in found.values() if bound),
        without_bound=tuple(name for name, bound in found.items() if bound is None),
        harm=_harm(status, marks),
        decisions=decisions,
        totals=f"{verdict['evidence']} of {verdict.get('threshold', '?')}" if verdict.get("evidence") else "",
        metrics=tuple(format_cells(item) for item in verdict.get("metrics") or () if isinstance(item, dict)),
        pairs=tuple(format_pairs(verdict)),
        measured=tuple(format_measured(item) for item in status.get("measured") or () if isinstance(item, dict)),
    )


def _title(run_id: str) -> str:
    """`revision R, attempt 1, step 2`, counted from 1 as everywhere on the pages."""
    revision, _, rest = run_id.partition("/")
    attempt, _, step = rest.partition("/")
    if not step:
        return run_id
    where = f"step {int(step) + 1}" if step.isdecimal() else "in the background of the steps"
    return f"revision {revision}, attempt {attempt}, {where}"


def _bound(series: Json, marks: Sequence[float]) -> Bound | None:
    points = [
        Point(float(item["seconds"]), float(item["low"]), float(item["high"])) for item in series.get("points") or ()
    ]
    if not points:
        return None
    limit, unit = float(series.get("limit", 0.0)), str(series.get("unit", ""))
    axis, words = UNITS.get(unit, (unit, unit))
    end, name = points[-1], str(series.get("metric", ""))
    holds = end.high < limit
    relation = "below" if holds else "not below"
    sentence = f"at most {format_number(end.high)} {words}: {relation} the limit of {format_number(limit)}"
    return Bound(name, axis, sentence, holds, draw(points, limit, marks), tuple(_rows(series["points"])))


def _rows(points: Sequence[Json]) -> Iterator[BoundRow]:
    for item in _some(points):
        low, high = format_number(float(item["low"])), format_number(float(item["high"]))
        yield BoundRow(_clock(item["seconds"]), low, high, str(item.get("samples", 0)))


def _harm(status: Json, marks: Sequence[float]) -> Harm | None:
    ramp = status.get("ramp")
    if not isinstance(ramp, dict) or not ramp:
        return None
    spent, most, weight = float(ramp.get("spent") or 0.0), float(ramp.get("maxHarm") or 0), ramp.get("weight") or 0
    readings = status.get("harm") or ()
    points = [Point(float(item["seconds"]), 0.0, float(item["spent"])) for item in readings]
    share = f" ({spent / most:.0%})" if most > 0 and math.isfinite(spent) else ""
    sentence = (
        f"The ramp may have cost {format_number(spent)} of {format_number(most)} extra bad responses{share}; "
        f"weight {weight} %."
    )
    rows = tuple(
        (_clock(item["seconds"]), format_number(float(item["spent"])), f"{item.get('weight', 0)} %")
        for item in _some(readings)
    )
    return Harm(spent, most, int(weight), sentence, draw(points, most, marks, floor=0.0) if points else None, rows)


def _decision(item: Json) -> DecisionRow:
    return DecisionRow(
        at=parse_time(item.get("at")),
        outcome=str(item.get("outcome", "")),
        reason=str(item.get("reason", "")),
        message=str(item.get("message", "")),
    )


def _some(items: Sequence[Json]) -> list[Json]:
    """At most MOST_ROWS of them, evenly, with the newest one first."""
    step = max(1, -(-len(items) // MOST_ROWS))
    return list(items[::-1][::step])


def _clock(seconds: int) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
