"""The picture: time to detection against false rollbacks, one point for each judge."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.judge_sim.intervals import wilson
from bench.judge_sim.report import Outcome, is_held
from bench.judge_sim.running import OURS, TUNED_KAYENTA, TUNED_RULE, AlternativeResult, cap_s

MISSING = "no picture: matplotlib is not installed (it is in the dev extra: make setup)"
TUNED = (TUNED_KAYENTA, TUNED_RULE)
LEAST_PERCENT = 0.01  # where a judge that never erred stands: the axis is logarithmic
OURS_COLOUR, OTHERS_COLOUR, BOUND_COLOUR = "#0b6e4f", "#5f6368", "#b3261e"
BESIDE, LABEL_HEIGHT = 1.13, 0.042  # of a label: times the point's x, part of the picture's height
RIGHT_OF_BOUND, CROWDED = 1.0, 5.0  # percent between which labels have room on the right only


@dataclass(frozen=True)
class Point:
    """One judge: percent of healthy canaries rolled back with its 95 % interval, and seconds to detection."""

    percent: float
    low: float
    high: float
    seconds: float


def possible() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def points(outcome: Outcome) -> dict[str, Point]:
    """By judge; none without both healthy and bad canaries.

    False rollbacks are over all gated nulls together, or the mean of what a judge was tuned to; seconds are a geometric
    mean over the regressions of the medians, the whole hour where a median run was missed.
    """
    gated = [item for item in outcome.nulls if item.null.gated]
    seen = [item for item in outcome.alternatives if is_held(item)]
    if not gated or not seen:
        return {}
    runs = sum(item.runs for item in gated)
    found = {}
    for name in seen[0].judges:
        seconds = _typical_s(seen, name)
        if name in TUNED:
            percent = 100 * sum(item.tuned_to for item in seen) / len(seen)
            found[name] = Point(percent, percent, percent, seconds)
        else:
            hits = sum(item.rollbacks[name] for item in gated)
            low, high = wilson(hits, runs)
            found[name] = Point(100 * hits / runs, 100 * low, 100 * high, seconds)
    return found


def _typical_s(results: Sequence[AlternativeResult], judge: str) -> float:
    logs = [math.log(min(item.judges[judge].median_s, cap_s(item))) for item in results]
    return math.exp(sum(logs) / len(logs))


def draw(outcome: Outcome, path: Path) -> None:
    """Writes the picture as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.4), layout="constrained", facecolor="white")
    found = points(outcome)
    axes.set(xscale="log", yscale="log", xlim=(LEAST_PERCENT * 0.8, 130), ylim=_limits(found))
    for name, point in found.items():
        _mark(axes, name, point)
    _name(axes, found)
    axes.axvline(1, color=BOUND_COLOUR, linewidth=1, linestyle="--", zorder=1)
    axes.annotate("promised: at most 1 %", (1, 0), xycoords=("data", "axes fraction"), xytext=(-4, 6),
                  textcoords="offset points", ha="right", fontsize=9, color=BOUND_COLOUR)  # fmt: skip
    axes.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    axes.set_yticks([30, 60, 120, 300, 600, 1800, 3600], ["30 s", "1 min", "2 min", "5 min", "10 min", "30 min", "1 h"])
    axes.minorticks_off()
    axes.set_xlabel(
        "healthy canaries that are rolled back, % (hollow: tuned to as many as Slipway, on that very traffic)"
    )
    axes.set_ylabel("typical time until a bad one is rolled back")
    axes.set_title("Below and to the left is better", fontsize=10, loc="left")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _limits(found: Mapping[str, Point]) -> tuple[float, float]:
    seconds = [point.seconds for point in found.values()]
    return min(seconds, default=60.0) / 1.6, max(seconds, default=3600.0) * 1.25


def _mark(axes: Any, name: str, point: Point) -> None:
    colour = OURS_COLOUR if name == OURS else OTHERS_COLOUR
    if name not in TUNED:
        ends = [max(end, LEAST_PERCENT) for end in (point.low, point.high)]
        axes.plot(ends, [point.seconds] * 2, color=colour, linewidth=1.2, zorder=2)
    axes.scatter(
        max(point.percent, LEAST_PERCENT), point.seconds, s=95 if name == OURS else 45, zorder=3,
        edgecolors=colour, facecolors="white" if name in TUNED else colour,
    )  # fmt: skip


def _name(axes: Any, found: Mapping[str, Point]) -> None:
    """Labels beside their points, on the side that has room, and apart from those above and below."""
    low, high = (math.log(end) for end in _limits(found))
    last: dict[bool, float] = {}
    for name, point in sorted(found.items(), key=lambda item: item[1].seconds):
        crowded = point.percent >= CROWDED
        height = max(math.log(point.seconds), last.get(crowded, -math.inf) + LABEL_HEIGHT * (high - low))
        last[crowded] = height
        to_right = RIGHT_OF_BOUND < point.percent < CROWDED
        end = point.high * BESIDE if to_right else point.low / BESIDE
        axes.annotate(
            name, (max(end, LEAST_PERCENT), math.exp(height)), fontsize=9, va="center",
            ha="left" if to_right else "right", color=OURS_COLOUR if name == OURS else "#202124",
            fontweight="bold" if name == OURS else "normal",
        )  # fmt: skip
