"""The command line: `python -m bench.judge_sim`. Exit status 0 means that every bar held."""

import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.judge_sim import margins, plot, report
from bench.judge_sim.cells import ALTERNATIVES, NULLS
from bench.judge_sim.kept import Kept
from bench.judge_sim.releases import figures, picture, section
from bench.judge_sim.releases.half_hour import HalfHour, half_hours
from bench.judge_sim.releases.rows import HEALTHY, ROWS
from bench.judge_sim.report import Outcome
from testkit.report import write

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURES = ROOT / "bench" / "judge_sim.md", ROOT / "docs" / "pictures"
PICTURE, HARM_PICTURE = PICTURES / "judge-sim.png", PICTURES / "judge-harm.png"
KEPT = ROOT / "build" / "judge-sim"
NULL_RUNS, ALTERNATIVE_RUNS, QUICK_RUNS = 10_000, 2_000, 200
LINE_S = 20.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--quick", is_flag=True, envvar="QUICK", help="200 runs of each cell; page and picture stay as they are.")
@click.option("--seed", default=1, show_default=True)
@click.option("--only", default="", help="Only cells with this in their name; page and picture stay as they are.")
@click.option("--releases", is_flag=True, help="Whole releases alone: their section of the page, and their picture.")
def main(quick: bool, seed: int, only: str, releases: bool) -> None:
    """Simulate healthy and bad canaries, and judge them by Slipway's and the others' rules.

    Cells that are done are kept in build/judge-sim, so a run that was interrupted goes on where it was.
    """
    console = Console(soft_wrap=True)
    runs = (QUICK_RUNS, QUICK_RUNS) if quick else (NULL_RUNS, ALTERNATIVE_RUNS)
    if releases:
        outcome = Outcome([], [], seed, (), *simulated_releases(console, runs[1], seed, only))
    else:
        outcome = simulate(console, Kept(KEPT, seed), runs, only)
    if not (outcome.nulls or outcome.alternatives or outcome.bounded or outcome.releases):
        raise click.UsageError(f"no cell has {only!r} in its name")
    made = report.bars(outcome)
    page = section.markdown(outcome.releases, outcome.half_hours, seed) if releases else report.markdown(outcome, made)
    if not quick and not only:
        PAGE.write_text(section.inserted(PAGE.read_text(), page) if releases else page)
        draw(console, outcome)
    console.out(page, highlight=False)
    path = write(report.as_json(outcome, made))
    missed = [bar for bar in made if not bar.ok]
    for bar in missed:
        console.out(f"not held: {bar.bar} is {bar.value:g}, must be {bar.limit}", highlight=False)
    console.out(f"{len(made) - len(missed)} of {len(made)} bars held; report {path.relative_to(ROOT)}", highlight=False)
    sys.exit(1 if missed else 0)


def draw(console: Console, outcome: Outcome) -> None:
    """The pictures of what was simulated."""
    if not plot.possible():
        console.out(plot.MISSING)
        return
    if outcome.nulls:
        plot.draw(outcome, PICTURE)
    picture.draw(outcome.releases, HARM_PICTURE)


def simulated_releases(
    console: Console, runs: int, seed: int, only: str = ""
) -> tuple[list[figures.Figures], list[HalfHour]]:
    """Releases of canaries with `only` in their name, or in "releases"; of healthy ones also within half an hour."""
    rows = [row for row in ROWS if only in row.name or only in "releases"]
    began = last = time.monotonic()

    def show_progress(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > LINE_S:
            last = time.monotonic()
            console.out(f"{last - began:5.0f} s  {what}: {done} of {total}", highlight=False)

    found = figures.simulate(runs, seed, rows, on_progress=show_progress)
    return found, half_hours(runs, seed) if HEALTHY in rows else []


def simulate(console: Console, kept: Kept, runs: tuple[int, int], only: str = "") -> Outcome:
    """All cells, or those with `only` in their name, with progress on the terminal or a line now and then."""
    nulls = [null for null in NULLS if only in null.name]
    alternatives = [cell for cell in ALTERNATIVES if only in cell.name]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        began = last = time.monotonic()

        def show_progress(what: str, done: int, total: int) -> None:
            nonlocal last
            progress.update(task, description=what, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - last > LINE_S:
                last = time.monotonic()
                console.out(f"{last - began:5.0f} s  {what}: {done} of {total}", highlight=False)

        healthy = [kept.null(null, runs[0], show_progress) for null in nulls]
        bad = [kept.alternative(cell, runs[1], show_progress) for cell in alternatives]
        bounded = [margins.result(cell, runs[0], kept.seed) for cell in margins.CELLS if only in cell.name]
    # Names of releases are those of other cells in part, so they are simulated with all cells or by their own option.
    released, halves = ([], []) if only else simulated_releases(console, runs[1], kept.seed)
    return Outcome(healthy, bad, kept.seed, bounded, released, halves)


if __name__ == "__main__":
    main()
