"""The picture: time to detection against false rollbacks, one point for each judge."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

from bench.judge_sim.report import UNSEEN, Outcome
from bench.judge_sim.running import OURS, AlternativeResult, cap_s

MISSING = "no picture: matplotlib is not installed (it is in the dev extra: make setup)"


def possible() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def points(outcome: Outcome) -> dict[str, tuple[float, float]]:
    """Judge to percent of healthy canaries rolled back and seconds to detection.

    The first over all gated nulls together; the second a geometric mean over the regressions of the medians, the whole
    hour where a median run was missed. Judges without both have no point.
    """
    gated = [item for item in outcome.nulls if item.null.gated]
    seen = [item for item in outcome.alternatives if item.cell.metric != UNSEEN]
    if not gated or not seen:
        return {}
    runs = sum(item.runs for item in gated)
    names = [name for name in gated[0].rollbacks if name in seen[0].judges]
    return {name: (100 * sum(item.rollbacks[name] for item in gated) / runs, _typical_s(seen, name)) for name in names}


def _typical_s(results: Sequence[AlternativeResult], judge: str) -> float:
    logs = [math.log(min(item.judges[judge].median_s, cap_s(item))) for item in results]
    return math.exp(sum(logs) / len(logs))


def draw(outcome: Outcome, path: Path) -> None:
    """Writes the picture as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, (percent, seconds) in points(outcome).items():
        mine = name == OURS
        # A judge that never erred has its place at the left edge of a logarithmic axis.
        x = max(percent, 0.01)
        axes.scatter(x, seconds, s=90 if mine else 45, color="#0b6e4f" if mine else "#8a8a8a", zorder=3)
        axes.annotate(name, (x, seconds), xytext=(7, 4), textcoords="offset points", fontsize=9,
                      fontweight="bold" if mine else "normal")  # fmt: skip
    axes.axvline(1, color="#b3261e", linewidth=1, linestyle="--")
    axes.annotate("promised: 1 %", (1, 1), xycoords=("data", "axes fraction"), xytext=(4, -12),
                  textcoords="offset points", fontsize=8, color="#b3261e")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(0.008, 180))
    axes.set_xlabel("healthy canaries rolled back, %")
    axes.set_ylabel("typical time until a bad one is rolled back, s")
    axes.set_title("Below and to the left is better", fontsize=10, loc="left")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
