"""The command line: `python -m bench.routing`. Exit status 0: every bar held; 1: one did not; 2: not measured."""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from bench.engine.environments import Unavailable
from bench.engine.machine import BUSY_SHARE, foreign_share
from bench.page import publish
from bench.routing import cost, real, report
from bench.routing.pods import ACCELERATOR
from bench.routing.policies import POLICIES
from bench.routing.report import Json
from bench.routing.simulate import simulate
from bench.routing.trace import TraceShape, sessions
from devcluster.steps.progress import print_line
from testkit.report import report as as_report

QUICK = bool(os.environ.get("QUICK"))
# Pods, and sessions for each of them. They begin at the same pace for any number: engines are busy with prompts then.
PODS = {4: 80, 16: 80} if QUICK else {4: 80, 16: 80, 64: 40, 200: 20}
BEGIN_S = 0.375  # times the sessions of a pod
ROUNDS = 1 if QUICK else 4
STAGGER_S = 2.5


def simulated(console: Console) -> list[Json]:
    rows = []
    for pods, count in PODS.items():
        agents = TraceShape(applications=2 * pods, sessions=count * pods)
        alone = TraceShape(sessions=count * pods, shares_prefixes=False)
        for trace, shape in {"agents": agents, "alone": alone}.items():
            drawn = sessions(shape, seed=1)
            for policy in POLICIES:
                print_line(console, f"{time.strftime('%H:%M:%S')}  {pods} pods, {trace}, {policy}")
                outcome = simulate(drawn, pods, policy, ACCELERATOR, BEGIN_S * count)
                rows.append(report.simulated_row(trace, pods, policy, outcome))
    return rows


def on_real_pods(console: Console) -> list[Json]:
    rounds: dict[str, list[real.Measured]] = {real.LEAST: [], real.AFFINE: []}
    shape = real.QUICK_SHAPE if QUICK else real.SHAPE
    with tempfile.TemporaryDirectory() as folder, real.deployment(Path(folder), console) as urls:
        # Which rule comes first alternates; no round shares a prefix with another.
        for number in range(ROUNDS):
            for rule in (real.LEAST, real.AFFINE) if number % 2 else (real.AFFINE, real.LEAST):
                print_line(console, f"{time.strftime('%H:%M:%S')}  two real pods, {rule}, round {number + 1}")
                drawn = real.conversations(shape, f"{number} {rule}")
                rounds[rule].append(asyncio.run(real.drive(urls[rule], drawn, STAGGER_S)))
    return [report.real_row(rule, measured) for rule, measured in rounds.items()]


@click.command(help=__doc__)
@click.option("--part", "parts", type=click.Choice(["simulated", "real", "cost"]), multiple=True, help="Only these.")
@click.option("--busy-ok", is_flag=True, help="Measure real pods although something else uses the processor.")
def main(parts: tuple[str, ...], busy_ok: bool) -> None:
    console = Console(stderr=True)
    parts = parts or ("simulated", "real", "cost")
    if "real" in parts and not busy_ok and (share := foreign_share(1.0)) > BUSY_SHARE:
        console.print(f"Something else uses {share:.0%} of the processor: measured times would not be ours.")
        sys.exit(2)
    rows: list[Json] = []
    try:
        if "simulated" in parts:
            rows += simulated(console)
        if "real" in parts:
            rows += on_real_pods(console)
    except Unavailable as error:
        console.print(str(error))
        sys.exit(2)
    if "cost" in parts:
        rows += [report.cost_row(cost.measure(pods)) for pods in (2, 20, 200)]
    bars = report.bars(rows)
    sys.exit(publish(as_report("routing", rows, bars), bars, report.tables(rows), None))


if __name__ == "__main__":
    main()
