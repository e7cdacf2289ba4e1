"""The command line: `python -m bench.operator`. Exit status 0: every bar held; 1: one did not; 2: not measured."""

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from bench.engine.machine import BUSY_SHARE, foreign_share
from bench.operator import plot, report
from bench.operator.cluster import NEEDED
from bench.operator.fleet import Json
from bench.operator.measure import Wish, measure
from bench.operator.programs import Died
from devcluster.controlplane import assets
from devcluster.errors import DevclusterError
from devcluster.places import places
from devcluster.steps.progress import print_line
from slipway_operator.kube.errors import ApiError
from testkit.report import commit, machine, write
from testkit.report import report as as_report

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE, PICTURE = REPOSITORY / "bench" / "operator.md", REPOSITORY / "docs" / "pictures" / "bench-operator.png"
QUICK = bool(os.environ.get("QUICK"))
SIZES = (100,) if QUICK else (100, 1000, 5000)
CHANGES = 100 if QUICK else 600


def _numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and 1 <= int(part) <= 20_000 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of numbers from 1 to 20000, such as 100,1000")
    return tuple(sorted({int(part) for part in parts}))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--sizes", callback=_numbers, default=",".join(map(str, SIZES)), show_default=True, help="How many.")
@click.option("--pods", type=click.Choice(["both", "no", "yes"]), default="both", show_default=True,
              help="With simulated pods and nodes, without, or one after the other.")  # fmt: skip
@click.option("--changes", default=CHANGES, show_default=True, help="Of specs, ten in a second.")
@click.option("--busy-ok", is_flag=True, help="Measure on a busy machine; page and picture stay as they are.")
def main(sizes: tuple[int, ...], pods: str, changes: int, busy_ok: bool) -> None:
    """Start an operator on many ModelDeployments and change them; QUICK=1: a hundred, two minutes."""
    console = Console(soft_wrap=True)
    kinds = {"both": (False, True), "no": (False,), "yes": (True,)}[pods]
    wishes = [Wish(size, kind, min(changes, size)) for kind in kinds for size in sizes]
    try:
        _look_round(console, busy_ok)
        _demand(kinds)
        rows = _rows(console, wishes)
    except (DevclusterError, ApiError, Died, TimeoutError) as error:
        print_line(console, f"\nnot measured: {error}")
        sys.exit(2)
    sys.exit(_conclude(console, rows, full=(sizes, pods, busy_ok) == ((100, 1000, 5000), "both", False)))


def _look_round(console: Console, busy_ok: bool) -> None:
    share = foreign_share()
    if share <= BUSY_SHARE:
        return
    busy = f"the machine is busy: other work takes {share:.0%} of all cores"
    if not busy_ok:
        raise DevclusterError(f"{busy}. End it, or measure all the same with --busy-ok.")
    print_line(console, f"{busy}; these figures are not to be quoted")


def _demand(kinds: Sequence[bool]) -> None:
    where = places()
    missing = [name for name in NEEDED if True in kinds and not where.binary(name).exists()]
    if missing or assets(where) is None:
        wanted = " ".join(["control-plane", *NEEDED])
        raise DevclusterError(f"programs are not built: run `python -m devcluster build {wanted}` first.")


def _rows(console: Console, wishes: Sequence[Wish]) -> list[Json]:
    rows: list[Json] = []
    for wish in wishes:
        what = f"{wish.size:,} ModelDeployments {'with' if wish.pods else 'without'} pods"
        print_line(console, f"{time.strftime('%H:%M:%S')}  {what} ...")
        folder = REPOSITORY / "build" / "bench-operator" / f"{wish.size}-{'pods' if wish.pods else 'bare'}"
        folder.mkdir(parents=True, exist_ok=True)
        row = report.finished(asyncio.run(measure(wish, folder)))
        rows.append(row)
        print_line(
            console,
            f"{time.strftime('%H:%M:%S')}  {what}: {row['cold_s']:.1f} s from cold ({row['cold_cpu_s']:.1f} s CPU),"
            f" event to apply p99 {row['apply_p99_s']:.3f} s, {row['peak_rss_mb']:.0f} MB,"
            f" {row['calls_per_reconcile']:.2f} calls per reconcile",
        )
        # What was measured stays, should the run be stopped.
        write(as_report("operator", rows, report.bars(rows)))
    return rows


def _conclude(console: Console, rows: Sequence[Json], full: bool) -> int:
    """Prints and writes the report; the exit status."""
    made, version = report.bars(rows), commit()
    page = report.markdown(rows, made, machine(), version, time.strftime("%Y-%m-%d"))
    print(f"\n{page}", flush=True)
    path = write(as_report("operator", rows, made))
    if full:
        PAGE.write_text(page)
        if importlib.util.find_spec("matplotlib"):
            plot.draw(rows, PICTURE)
        else:
            print_line(console, "no picture: matplotlib is not installed (it is in the dev extra: make setup)")
    missed = [bar for bar in made if not bar.ok]
    for bar in missed:
        print_line(console, f"not held: {bar.bar} is {bar.value:g}, must be {bar.limit}")
    print_line(console, f"{len(made) - len(missed)} of {len(made)} bars held; report {path.relative_to(REPOSITORY)}")
    return 1 if missed else 0


if __name__ == "__main__":
    main()
