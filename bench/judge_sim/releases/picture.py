"""The picture of releases: what bad canaries cost users before they are promoted or rejected, and how long good ones
take; one mark for each rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.judge_sim.plot import OTHERS_COLOUR, OURS_COLOUR
from bench.judge_sim.releases.figures import RULES, Figures
from bench.judge_sim.releases.rows import HEALTHY
from bench.judge_sim.running import OURS

RATE = 5.0
ROOM = 3.2  # times the largest harm: labels stand to the right


@dataclass(frozen=True)
class Mark:
    """One rule: mean extra bad responses of the bad canaries of all rows, and minutes to promote half of the good."""

    before: float
    two_hours: float
    minutes: float
    false: float  # percent of healthy ones that are rejected


def marks(found: Sequence[Figures]) -> dict[str, Mark]:
    """By rule, at RATE requests a second; none without healthy and bad canaries."""
    made = {}
    for rule in RULES:
        here = [item for item in found if item.rule == rule and item.rate == RATE]
        good, bad = ([item for item in here if item.row.healthy is kind] for kind in (True, False))
        if good and bad:
            before, late = (
                sum(sums) / len(bad) for sums in zip(*((b.harm.value, b.two_hours) for b in bad), strict=True)
            )
            median, rejected = good[0].to_promotion.median, good[0].rejected / good[0].runs
            made[rule] = Mark(before, late, median / 60, 100 * rejected)
    return made


def draw(found: Sequence[Figures], path: Path) -> None:
    """Writes the picture as PNG, where there are healthy and bad canaries."""
    placed = marks(found)
    if not placed:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.8), layout="constrained", facecolor="white")
    for above, level in _sides(placed):
        for rule in level:
            _mark(axes, rule, placed[rule], above=above)
    least, most = min(mark.before for mark in placed.values()), max(mark.two_hours for mark in placed.values())
    axes.set(xscale="log", xlim=(max(0.1, least) / 1.6, most * ROOM), ylim=(0, 56))
    ticks = [tick for tick in (0.1, 1, 10, 100, 1000, 10_000) if max(0.1, least) / 1.6 <= tick <= most * ROOM]
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(
        "extra bad responses to users, mean of seven bad canaries: before the decision (filled), in two hours (hollow)"
    )
    axes.set_ylabel(f"minutes to promote half of the {HEALTHY.name} ones")
    axes.set_title(f"{RATE:g} requests a second. Below and to the left is better", fontsize=10, loc="left")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _sides(placed: Mapping[str, Mark]) -> list[tuple[bool, list[str]]]:
    """Rules with labels above and below their marks: in turn from the left, among rules of about one height."""
    sides: dict[bool, list[str]] = {True: [], False: []}
    levels: dict[int, int] = {}
    for rule in sorted(placed, key=lambda rule: placed[rule].before):
        level = round(placed[rule].minutes / 10)
        turn = levels[level] = levels.get(level, 0) + 1
        sides[turn % 2 == 1].append(rule)
    return list(sides.items())


def _mark(axes: Any, rule: str, mark: Mark, *, above: bool) -> None:
    colour = OURS_COLOUR if rule == OURS else OTHERS_COLOUR
    axes.plot([mark.before, mark.two_hours], [mark.minutes] * 2, color=colour, linewidth=1, zorder=2)
    for harm, face in ((mark.before, colour), (mark.two_hours, "white")):
        axes.scatter(harm, mark.minutes, s=95 if rule == OURS else 45, zorder=3, edgecolors=colour, facecolors=face)
    name = f"{rule} ({mark.false:.1f} % of good ones rejected)" if mark.false >= 0.05 else rule
    axes.annotate(
        name, (mark.before, mark.minutes), xytext=(-4, 9 if above else -17), textcoords="offset points", fontsize=9,
        color=colour if rule == OURS else "#202124", fontweight="bold" if rule == OURS else "normal",
    )  # fmt: skip
