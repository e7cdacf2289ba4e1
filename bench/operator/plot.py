"""The picture: time from cold and memory against the number of ModelDeployments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.operator.fleet import Json
from bench.operator.report import COLD_LIMIT_S, REFERENCE, RSS_LIMIT_MB

LINES = {False: ("without pods", "#0b6e4f"), True: ("with pods", "#b3261e")}
GREY = "#5f6368"


def draw(rows: Sequence[Json], path: Path) -> None:
    """Writes it as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (time, memory) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained", facecolor="white")
    for pods, (label, colour) in LINES.items():
        of_kind = sorted((row for row in rows if row["pods"] is pods), key=lambda row: row["deployments"])
        if not of_kind:
            continue
        sizes = [row["deployments"] for row in of_kind]
        time.plot(sizes, [row["cold_s"] for row in of_kind], "o-", color=colour, label=label)
        memory.plot(sizes, [row["peak_rss_mb"] for row in of_kind], "o-", color=colour, label=label)
        _linear(time, of_kind)
        time.plot([REFERENCE], [COLD_LIMIT_S[pods]], "v", color=colour, markersize=8, fillstyle="none")
    memory.plot([REFERENCE], [RSS_LIMIT_MB], "v", color=GREY, markersize=8, fillstyle="none")
    time.set(xscale="log", yscale="log", xlabel="ModelDeployments", ylabel="seconds from cold")
    time.set_title("hollow: the bar at 1,000; dashed: linear growth from there", fontsize=9, loc="left")
    memory.set(xscale="log", xlabel="ModelDeployments", ylabel="peak resident memory, MB", ylim=(0, None))
    for axes in (time, memory):
        axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
        axes.legend(fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _linear(axes: Any, rows: Sequence[Json]) -> None:
    at = next((row for row in rows if row["deployments"] == REFERENCE), None)
    if at:
        sizes = [REFERENCE, rows[-1]["deployments"]]
        axes.plot(sizes, [at["cold_s"] * size / REFERENCE for size in sizes], "--", color=GREY, linewidth=1)
