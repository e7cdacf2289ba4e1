"""What `slipway status` shows of analyses: the verdict, how long it takes, and each metric with its numbers; pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipway_cli.api import Json
from slipway_cli.objects.times import format_age, format_duration, parse_time
from slipway_cli.views.table import format_table

FORECAST_S = 300  # how long after the last count of requests a forecast still holds
# The forecast at the end of the operator's message about an analysis.
_FORECAST = re.compile(r"; about \d+ (?:s|min|h) left")
_SIDES = ("canary", "stable")
_COLUMNS = ("metric", "finding", "bad on canary", "bad on stable", "evidence", "needs")


@dataclass(frozen=True, slots=True)
class AnalysisView:
    """One analysis: a title, and lines below it."""

    title: str
    lines: tuple[str, ...]


def list_runs(obj: Json) -> tuple[str, ...]:
    """Names of the AnalysisRuns that the status of a ModelDeployment names."""
    return tuple(str(reference["run"]) for _, reference in _references(obj) if reference.get("run"))


def read_analyses(obj: Json, runs: Mapping[str, Json], now: datetime, *, kept: bool) -> Iterator[AnalysisView]:
    """The analysis of the step, and that in the background.

    Args:
        obj: the ModelDeployment.
        runs: AnalysisRuns by name. Of one that is missing, or that is another object, only the verdict is shown.
        now: the time.
        kept: whether an operator keeps the status up to date.
    """
    for where, reference in _references(obj):
        title = f"analysis {reference.get('template', '')}{where}"
        yield AnalysisView(title, tuple(_lines(reference, find_run(reference, runs), now, kept=kept)))


def find_run(reference: Json, runs: Mapping[str, Json]) -> Json:
    """The status of the AnalysisRun that a part of a ModelDeployment's status names; empty where it is another one."""
    run = runs.get(str(reference.get("run")), {})
    same = (run.get("metadata") or {}).get("uid") == reference.get("uid")
    return run["status"] if same and isinstance(run.get("status"), dict) else {}


def _references(obj: Json) -> Iterator[tuple[str, Json]]:
    rollout = (obj.get("status") or {}).get("rollout") or {}
    for field, where in (("analysis", ""), ("background", " in the background")):
        if isinstance(reference := rollout.get(field), dict) and reference:
            yield where, reference


def is_recent(run: Json, now: datetime) -> bool:
    """Whether requests were counted lately, so that a forecast still holds."""
    read_at = parse_time(run.get("readAt"))
    return read_at is None or (now - read_at).total_seconds() <= FORECAST_S


def strip_forecast(message: str) -> str:
    """The operator's message about an analysis without its forecast."""
    return _FORECAST.sub("", message)


def _lines(reference: Json, run: Json, now: datetime, *, kept: bool) -> Iterator[str]:
    verdict = reference.get("verdict")
    if not isinstance(verdict, dict) or not verdict:
        yield "counting; no verdict yet"
        return
    forecast = _forecast(run, verdict, now, kept=kept)
    yield f"{verdict['outcome']} ({verdict['reason']}): {verdict['message']}{forecast}"
    found = run.get("verdict")
    numbers: Json = found if isinstance(found, dict) else {}
    yield from format_pairs(numbers)
    if compared := [row for row in numbers.get("metrics") or () if isinstance(row, dict)]:
        yield f"evidence {numbers.get('evidence', '?')} of {numbers.get('threshold', '?')} that rejects"
        yield from format_table(_COLUMNS, (format_cells(item) for item in compared))
    yield from (format_measured(item) for item in run.get("measured") or () if isinstance(item, dict))


def _forecast(run: Json, verdict: Json, now: datetime, *, kept: bool) -> str:
    """The end of the verdict's line: the time left, or when requests were last counted, if not lately."""
    if not (kept and is_recent(run, now)):
        return f"; last counted {format_age(parse_time(run.get('readAt')), now)} ago"
    left = verdict.get("secondsLeft")
    return f"; about {format_duration(left)} left" if isinstance(left, int) else ""


def format_cells(item: Json) -> tuple[str, ...]:
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


def format_measured(item: Json) -> str:
    """A metric with a provider in one line: its measurements by result, and the last value."""
    counts = ", ".join(
        f"{item[field]} {field}" for field in ("successful", "failed", "inconclusive", "error") if item.get(field)
    )
    last = next(reversed(item.get("measurements") or ()), None)
    value = f"; last value {last['value']}" if last and last.get("value") else ""
    return f"{item.get('name', '')}: {item.get('phase', '')}; {counts or 'not measured yet'}{value}"


def format_pairs(verdict: Json) -> Iterator[str]:
    """Lines about a twin shadow (copies and probes, texts and tokens, a scorer's results) and about predictions."""
    pairs, quality, scores = (
        found if isinstance(found := verdict.get(name), dict) else {} for name in ("pairs", "quality", "scores")
    )
    if pairs.get("probes"):
        canary, twin = pairs.get("probesBadOnCanary", 0), pairs.get("probesBadOnTwin", 0)
        bad = f"{canary} bad on canary alone, {twin} on its twin alone"
        yield f"pairs: {pairs.get('users', 0)} copies of clients' requests, {pairs['probes']} probes ({bad})"
    if quality.get("texts"):
        tokens, canary, twin = (quality.get(name, 0) for name in ("tokens", "flipsOnCanary", "flipsOnTwin"))
        yield f"texts: {quality.get('textsDiffer', 0)} of {quality['texts']} pairs differ"
        yield f"tokens of stable: {canary} of {tokens} are not canary's first choice, {twin} not stable's"
    if scores:
        yield f"scorer: {_scores(scores)}"
    if isinstance(found := verdict.get("predictions"), dict):
        read = (
            f"{found.get('canary', 0)} on canary, {found.get('stable', 0)} on stable, {found.get('unread', 0)} not read"
        )
        index = (
            f"population stability index {found.get('psi', '?')} ({found.get('chance', '?')} of chance is taken off)"
        )
        yield f"predictions: {read}; {index}; evidence {found.get('evidence', '?')} that they differ at all"
    if isinstance(cost := verdict.get("cost"), dict):
        yield _cost(cost)


def _cost(cost: Json) -> str:
    if not cost.get("minutes"):
        return f"cost: {cost.get('problem') or 'no minute compared yet'}"
    prices = [found.get("price", "?") if isinstance(found := cost.get(side), dict) else "?" for side in _SIDES]
    used = f"{cost.get('minutes')} minutes compared, {cost.get('idle', 0)} idle ones left out"
    pods = f"a pod costs {prices[0]} an hour on canary and {prices[1]} on stable"
    return f"cost: {cost.get('low', '?')} to {cost.get('high', '?')} times stable's at equal load; {used}; {pods}"


def _scores(scores: Json) -> str:
    lower = f"canary lower in {scores.get('lowerOnCanary', 0)}, stable in {scores.get('lowerOnTwin', 0)}"
    parts = [f"of {scores.get('pairs', 0)} pairs {lower}"]
    if "canaryMean" in scores:
        parts.append(f"mean {scores['canaryMean']} on canary, {scores.get('twinMean', '-')} on stable")
    parts += [f"{scores[name]} {name}" for name in ("unanswered", "invalid", "dropped", "blocked") if scores.get(name)]
    return "; ".join(parts)


def _side(item: Json, side: str) -> str:
    samples: Any = item.get(f"{side}Samples", 0)
    return f"{item.get(f'{side}Bad', 0)} of {samples} ({item.get(f'{side}Rate', '-')})"
