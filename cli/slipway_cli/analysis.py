"""What `slipway status` shows of analyses: the verdict, how long it takes, and each metric with its numbers; pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipway_cli.deployment import Json
from slipway_cli.moments import duration
from slipway_cli.table import lines as table

_COLUMNS = ("metric", "finding", "bad on canary", "bad on stable", "evidence", "needs")


@dataclass(frozen=True, slots=True)
class AnalysisView:
    """One analysis: a title, and lines below it."""

    title: str
    lines: tuple[str, ...]


def views(rollout: Json) -> Iterator[AnalysisView]:
    """The analysis of the step, and that in the background."""
    for field, where in (("analysis", ""), ("background", " in the background")):
        run = rollout.get(field)
        if run:
            yield AnalysisView(f"analysis {run.get('template', '')}{where}", tuple(_lines(run)))


def _lines(run: Json) -> Iterator[str]:
    verdict = run.get("verdict")
    if not verdict:
        yield "counting; no verdict yet"
        return
    left = verdict.get("secondsLeft")
    expected = f"; about {duration(left)} left" if left is not None else ""
    yield f"{verdict['outcome']} ({verdict['reason']}): {verdict['message']}{expected}"
    if compared := verdict.get("metrics"):
        yield f"evidence {verdict.get('evidence', '?')} of {verdict.get('threshold', '?')} that rejects"
        yield from table(_COLUMNS, (cells(item) for item in compared))
    yield from map(measured, run.get("measured") or ())


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
