"""What `slipway status` shows of analyses: the verdict, how long it takes, and each metric with its numbers; pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipway_cli.deployment import Json
from slipway_cli.moments import duration, parse_time, since
from slipway_cli.table import lines as table

FORECAST_S = 300  # for how long after its last count a forecast is one
# As the operator puts it at the end of what it says of an analysis.
_FORECAST = re.compile(r"; about \d+ (?:s|min|h) left")
_COLUMNS = ("metric", "finding", "bad on canary", "bad on stable", "evidence", "needs")


@dataclass(frozen=True, slots=True)
class AnalysisView:
    """One analysis: a title, and lines below it."""

    title: str
    lines: tuple[str, ...]


def views(rollout: Json, now: datetime, *, kept: bool) -> Iterator[AnalysisView]:
    """The analysis of the step, and that in the background. `kept`: an operator keeps the status up to date."""
    for field, where in (("analysis", ""), ("background", " in the background")):
        run = rollout.get(field)
        if run:
            yield AnalysisView(f"analysis {run.get('template', '')}{where}", tuple(_lines(run, now, kept=kept)))


def is_recent(run: Json, now: datetime) -> bool:
    """Whether requests were counted lately, so that a forecast still holds."""
    read_at = parse_time(run.get("readAt"))
    return read_at is None or (now - read_at).total_seconds() <= FORECAST_S


def without_forecast(message: str) -> str:
    """What the operator said of an analysis, but for how long it takes."""
    return _FORECAST.sub("", message)


def _lines(run: Json, now: datetime, *, kept: bool) -> Iterator[str]:
    verdict = run.get("verdict")
    if not verdict:
        yield "counting; no verdict yet"
        return
    yield f"{verdict['outcome']} ({verdict['reason']}): {verdict['message']}{_forecast(run, now, kept=kept)}"
    if compared := verdict.get("metrics"):
        yield f"evidence {verdict.get('evidence', '?')} of {verdict.get('threshold', '?')} that rejects"
        yield from table(_COLUMNS, (cells(item) for item in compared))
    yield from map(measured, run.get("measured") or ())


def _forecast(run: Json, now: datetime, *, kept: bool) -> str:
    """How long it takes, as long as requests are counted."""
    if not (kept and is_recent(run, now)):
        return f"; last counted {since(parse_time(run.get('readAt')), now)} ago"
    left = run["verdict"].get("secondsLeft")
    return f"; about {duration(left)} left" if left is not None else ""


def cells(item: Json) -> tuple[str, ...]:
    """One metric of a verdict, as the status has it, in the columns of the table."""
    needed = item.get("needed")
    return (
        item.get("name", ""),
        item.get("finding", ""),
        _side(item, "canary"),
        _side(item, "stable"),
        f"{item.get('evidence', '?')} of {item.get('threshold', '?')}",
        "-" if needed is None else f"{item.get('canarySamples', 0)} of {needed} samples",
    )


def measured(item: Json) -> str:
    """A metric with a provider: what became of its measurements, and the last one."""
    counts = ", ".join(
        f"{item[field]} {field}" for field in ("successful", "failed", "inconclusive", "error") if item.get(field)
    )
    last = next(reversed(item.get("measurements") or ()), None)
    value = f"; last value {last['value']}" if last and last.get("value") else ""
    return f"{item.get('name', '')}: {item.get('phase', '')}; {counts or 'not measured yet'}{value}"


def _side(item: Json, side: str) -> str:
    samples: Any = item.get(f"{side}Samples", 0)
    return f"{item.get(f'{side}Bad', 0)} of {samples} ({item.get(f'{side}Rate', '-')})"
