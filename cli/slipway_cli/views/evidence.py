"""What `slipway analyze` shows: an analysis judged again, its evidence over time and its numbers; pure.

The only module that calls the operator's judge, through `slipway_operator.planning.analysis.retrial`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from slipway_cli.api import Json
from slipway_cli.objects.times import format_duration
from slipway_cli.views import analysis, chart
from slipway_cli.views.table import format_table
from slipway_operator.planning.analysis import retrial
from slipway_operator.planning.analysis.retrial import RunStatus

ALL = "all metrics"
LOWEST = -3  # of a picture, in decimal logs: evidence below a thousandth is no evidence against the revision
ABOVE = 2  # above the threshold, in decimal logs: a picture shows no evidence beyond a hundred times the threshold
_COLUMNS = ("metric", "finding", "bad on canary", "bad on stable", "evidence", "over time", "forecast")
_DECIDED = ("Worse", "NotWorse")


@dataclass(frozen=True, slots=True)
class MetricReview:
    """One metric: the row of the verdict as the status would have it, and decimal logs of its evidence over time."""

    row: Json
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Review:
    """One analysis. Evidence in decimal logs, times in seconds since it began."""

    title: str
    outcome: str
    reason: str
    message: str
    forecast: str
    evidence: str
    threshold: str
    seconds: int
    log10_threshold: float
    points: tuple[tuple[int, float], ...]  # of all metrics together
    metrics: tuple[MetricReview, ...]
    notes: tuple[str, ...]
    measured: tuple[str, ...] = ()  # metrics with a provider, one line for each
    ramp: str = ""  # what a ramp may have cost
    pairs: tuple[str, ...] = ()  # of a twin shadow: probes, texts and tokens, results of a scorer

    @property
    def span(self) -> tuple[int, int]:
        """The lowest and the highest power of ten in a picture of the evidence."""
        values = [value for _, value in self.points]
        low = math.floor(min([0.0, *values]))
        high = math.ceil(max([self.log10_threshold, *values]))
        return max(LOWEST, low), min(math.ceil(self.log10_threshold) + ABOVE, high)


def read_runs(obj: Json, find: Callable[[str], Json | None]) -> dict[str, RunStatus]:
    """The runs that a ModelDeployment's status names, by field; `find` returns an AnalysisRun by its name.

    Raises:
        ValueError: when one is missing or cannot be read, with a sentence for users.
    """
    runs = {}
    for field, name in retrial.named(obj).items():
        if (found := find(name)) is None:
            raise ValueError(
                f"AnalysisRun {name} does not exist: it was deleted, or not saved with the ModelDeployment"
            )
        runs[field] = retrial.parse(found)
    return runs


def judge_again(obj: Json, runs: Mapping[str, RunStatus], specs: Mapping[str, Json]) -> list[Review]:
    """Analyses of a ModelDeployment, judged again; `specs` of AnalysisTemplates by name, where they exist.

    Raises:
        ValueError: when something cannot be read, with a sentence for users.
    """
    return [
        _review(retrial.again(obj, run, specs.get(run.template)), " in the background" if field == "background" else "")
        for field, run in runs.items()
    ]


def format_review(review: Review) -> Iterator[str]:
    """The lines of a review for a terminal."""
    yield review.title
    yield from (f"note: {note}" for note in review.notes)
    yield f"{review.outcome} ({review.reason}): {review.message}"
    yield from ([review.ramp] if review.ramp else [])
    yield from review.pairs
    if review.metrics:
        yield from _compared(review)
    yield from review.measured


def _compared(review: Review) -> Iterator[str]:
    """The lines of the judge's evidence, which a template with thresholds alone does not have."""
    low, high = review.span
    yield f"evidence of all metrics together: {review.evidence}; {review.threshold} rejects"
    yield from ([review.forecast] if review.forecast else [])
    yield from chart.draw_plot(review.points, review.log10_threshold, low=low, high=high, end=review.seconds)
    yield from format_table(_COLUMNS, (_cells(item, review) for item in review.metrics))


def format_legend(item: MetricReview) -> str:
    """A metric with its counts, for a picture."""
    bad_c, all_c = item.row.get("canaryBad", 0), item.row.get("canarySamples", 0)
    bad_s, all_s = item.row.get("stableBad", 0), item.row.get("stableSamples", 0)
    return f"{item.row['name']}: {bad_c} of {all_c}, stable {bad_s} of {all_s}; {item.row['finding']}"


def _review(again: retrial.Retrial, where: str) -> Review:
    run, verdict = again.run, again.verdict
    return Review(
        title=f"analysis {run.template}{where}: {run.id}, from {run.started_at:%Y-%m-%d %H:%M:%S} UTC, read last after "
        f"{format_duration(again.looks[-1].seconds)}",
        outcome=verdict["outcome"],
        reason=verdict["reason"],
        message=verdict["message"],
        forecast=_forecast(verdict),
        evidence=verdict["evidence"],
        threshold=verdict["threshold"],
        seconds=max(1, again.looks[-1].seconds),
        log10_threshold=_log10(again.looks[-1].verdict.log_threshold),
        points=tuple((look.seconds, _log10(look.verdict.log_evidence)) for look in again.looks),
        metrics=tuple(MetricReview(row, _points(again, row["name"])) for row in verdict.get("metrics", ())),
        measured=tuple(map(analysis.format_measured, again.measured)),
        ramp=again.ramp,
        pairs=tuple(analysis.format_pairs(verdict)),
        notes=again.notes,
    )


def _points(again: retrial.Retrial, name: str) -> tuple[tuple[int, float], ...]:
    """A metric's part of the evidence, from when it had requests on both sides."""
    found = ((look.seconds, row) for look in again.looks for row in look.verdict.metrics if row.name == name)
    return tuple((seconds, _log10(row.log_evidence)) for seconds, row in found if row.canary_units and row.stable_units)


def _cells(item: MetricReview, review: Review) -> tuple[str, ...]:
    low, high = review.span
    over_time = chart.draw_sparkline(item.points, low=low, high=high, end=review.seconds)
    *numbers, needs = analysis.format_cells(item.row)
    return (*numbers, over_time, "decided" if item.row["finding"] in _DECIDED else needs)


def _forecast(verdict: Json) -> str:
    if "needed" not in verdict:
        return ""
    left = f", in about {format_duration(verdict['secondsLeft'])}" if "secondsLeft" in verdict else ""
    return f"a verdict is expected with about {verdict['needed']} canary requests{left}; there are {verdict['samples']}"


def _log10(natural: float) -> float:
    return natural / math.log(10)
