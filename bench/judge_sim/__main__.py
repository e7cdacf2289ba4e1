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
from bench.judge_sim.report import Outcome
from testkit.report import write

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURE = ROOT / "bench" / "judge_sim.md", ROOT / "docs" / "pictures" / "judge-sim.png"
KEPT = ROOT / "build" / "judge-sim"
NULL_RUNS, ALTERNATIVE_RUNS, QUICK_RUNS = 10_000, 2_000, 200
LINE_S = 20.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--quick", is_flag=True, envvar="QUICK", help="200 runs of each cell; page and picture stay as they are.")
@click.option("--seed", default=1, show_default=True)
@click.option("--only", default="", help="Only cells with this in their name; page and picture stay as they are.")
def main(quick: bool, seed: int, only: str) -> None:
    """Simulate healthy and bad canaries, and judge them by Slipway's and the others' rules.

    Cells that are done are kept in build/judge-sim, so a run that was interrupted goes on where it was.
    """
    console = Console(soft_wrap=True)
    runs = (QUICK_RUNS, QUICK_RUNS) if quick else (NULL_RUNS, ALTERNATIVE_RUNS)
    outcome = simulate(console, Kept(KEPT, seed), runs, only)
    if not outcome.nulls and not outcome.alternatives and not outcome.bounded:
        raise click.UsageError(f"no cell has {only!r} in its name")
    made = report.bars(outcome)
    page = report.markdown(outcome, made)
    if not quick and not only:
        PAGE.write_text(page)
        if plot.possible():
            plot.draw(outcome, PICTURE)
        else:
            console.out(plot.MISSING)
    console.out(page, highlight=False)
    path = write(report.as_json(outcome, made))
    missed = [bar for bar in made if not bar.ok]
    for bar in missed:
        console.out(f"not held: {bar.bar} is {bar.value:g}, must be {bar.limit}", highlight=False)
    console.out(f"{len(made) - len(missed)} of {len(made)} bars held; report {path.relative_to(ROOT)}", highlight=False)
    sys.exit(1 if missed else 0)


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
    return Outcome(healthy, bad, kept.seed, bounded)


if __name__ == "__main__":
    main()
