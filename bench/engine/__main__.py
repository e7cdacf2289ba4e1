"""The command line: `python -m bench.engine`. Exit status 0 means that every bar held, 2 that nothing was measured."""

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from bench.engine import machine, report
from bench.engine.bars import bars, concurrencies_with_bars
from bench.engine.ceilings import measured_apart
from bench.engine.environments import Unavailable
from bench.engine.figures import Row
from bench.engine.measure import Plan, order, turn
from bench.engine.models import ensure_model
from bench.engine.peers import PEERS, PEERS_OF_A_FULL_RUN, QUANTIZATION_OF, QUICK_PEERS, Place
from bench.engine.result import Result
from bench.engine.shapes import SHAPES, Shape, ceiling_tokens_per_s
from bench.engine.workload import mean_open_lengths
from devcluster.errors import DevclusterError
from devcluster.places import write_whole
from devcluster.processes import run
from devcluster.steps.progress import print_line
from testkit.report import commit, write

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "bench" / "RESULTS.md"
QUICK = bool(os.environ.get("QUICK"))
OPEN_LOAD = 0.4  # of what the bf16 ceiling of the machine would let through
# Of one load. A peer that is slower is cut off there; a quick run gives others less time than ours.
LEVEL_LIMIT_S, QUICK_OURS_LIMIT_S, QUICK_OTHERS_LIMIT_S = 150.0, 60.0, 25.0
OPEN_S = 60.0


def _names(_: click.Context, __: click.Parameter, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PEERS]:
        raise click.BadParameter(f"{', '.join(unknown)}: known are {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def _numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and 1 <= int(part) <= 32 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of numbers from 1 to 32, such as 1,8,32")
    return tuple(sorted({int(part) for part in parts}))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--peers",
    callback=_names,
    default=",".join(QUICK_PEERS if QUICK else PEERS_OF_A_FULL_RUN),
    show_default=True,
    help="Who runs.",
)
@click.option("--concurrency", callback=_numbers, default="1,8,32", show_default=True, help="Of the closed loop.")
@click.option("--rounds", type=click.IntRange(1, 20), default=1 if QUICK else 3, show_default=True)
@click.option("--sampled", callback=_numbers, default="8,32", show_default=True, help="Of the load that is sampled.")
@click.option(
    "--limit", type=click.FloatRange(5.0), default=LEVEL_LIMIT_S, show_default=True, help="Of one load, in s."
)
@click.option("--model", type=click.Choice(list(SHAPES)), default="qwen06", show_default=True)
@click.option("--open/--no-open", "with_open", default=not QUICK, show_default=True, help="The open loop, once.")
@click.option("--bars-only", is_flag=True, help="Peers run only the loads that a bar compares: half the time.")
@click.option("--prepare", is_flag=True, help="Install the peers and make the models, measure nothing.")
@click.option("--busy-ok", is_flag=True, help="Measure on a busy machine; the report notes it.")
@click.option("--results/--no-results", default=None, help="Write bench/RESULTS.md; as given: a full run does.")
def main(
    peers: list[str],
    concurrency: tuple[int, ...],
    rounds: int,
    sampled: tuple[int, ...],
    limit: float,
    model: str,
    with_open: bool,
    bars_only: bool,
    prepare: bool,
    busy_ok: bool,
    results: bool | None,
) -> None:
    """Our engine and its peers on this machine: the same weights, workload and run; QUICK=1 takes five minutes."""
    sampled = tuple(at for at in sampled if at in concurrency)
    wish = Wish(peers, concurrency, rounds, SHAPES[model], with_open, busy_ok, sampled, limit, bars_only)
    bench = Bench(wish, Console(soft_wrap=True))
    try:
        places = bench.prepare()
        if prepare:
            sys.exit(0)
        bench.measure(places)
    except (DevclusterError, Busy) as error:
        print_line(bench.console, f"\nnothing was measured: {error}")
        sys.exit(2)
    full = not QUICK and set(peers) == set(PEERS_OF_A_FULL_RUN) and model == "qwen06" and not busy_ok
    bench.conclude(results=full if results is None else results)
    sys.exit(0 if all(bar.ok for bar in bars(bench.result)) else 1)


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of a run."""

    peers: list[str]
    concurrencies: tuple[int, ...]
    rounds: int
    shape: Shape
    with_open: bool
    busy_ok: bool
    sampled: tuple[int, ...]
    limit_s: float
    bars_only: bool


class Busy(Exception):
    """The machine has other work: figures taken now would be worthless."""


class Bench:
    """One run, from installing to the report."""

    def __init__(self, wish: Wish, console: Console) -> None:
        self.wish, self.console = wish, console
        self.result = Result(wish.shape, machine.describe(), concurrencies=wish.concurrencies)

    def prepare(self) -> dict[str, Place]:
        """Everything that is downloaded, built or converted; a peer that cannot be had is named and left out."""
        model = ensure_model(self.wish.shape, self.console)
        places = {}
        for name in self.wish.peers:
            try:
                places[name] = PEERS[name].prepare(self.wish.shape, model, self.console)
            except Unavailable as reason:
                self.result.missing[name] = str(reason)
                print_line(self.console, f"{name} takes no part: {reason}")
        self.result.peers = list(places)
        return places

    def measure(self, places: dict[str, Place]) -> None:
        """Raises Busy."""
        self._look_round()
        self.result.ceilings.append(measured_apart())
        self._log(f"ceilings: {self.result.ceilings[0]}")
        plan = self._plan()
        for number in range(1, self.wish.rounds + 1):
            # The open loop is long: once, in the first round.
            in_this = plan if number == 1 else replace(plan, rate_per_s=0.0)
            for name in order(list(places), number):
                self._turn(name, places[name], in_this, number)
            self.result.rounds = number
            if number < self.wish.rounds:
                self.result.ceilings.append(measured_apart())
        if not QUICK:
            self._look_inside(places)

    def conclude(self, *, results: bool) -> None:
        """Prints and writes the report."""
        version, day = commit(), time.strftime("%Y-%m-%d")
        section = report.markdown(self.result, version, day)
        print(f"\n{section}", flush=True)
        figures = report.as_json(self.result)
        path = write(figures)
        print_line(self.console, f"report   {path.relative_to(REPOSITORY)}")
        if results:
            page = RESULTS.read_text() if RESULTS.exists() else "# What was measured\n"
            write_whole(RESULTS, report.spliced(page, section))
            write_whole(RESULTS.with_name("engine.json"), json.dumps(figures, indent=1) + "\n")
            print_line(self.console, f"results  {RESULTS.relative_to(REPOSITORY)}, bench/engine.json")

    def _look_round(self) -> None:
        share = machine.foreign_share()
        if share <= machine.BUSY_SHARE:
            return
        busy = f"THE MACHINE WAS BUSY: other work took {share:.0%} of all cores before the run."
        if not self.wish.busy_ok:
            raise Busy(f"{busy} End it, or measure all the same with --busy-ok.")
        self.result.warnings.append(f"{busy} These figures are not to be quoted.")
        self._log(busy)

    def _plan(self) -> Plan:
        rate = 0.0
        if self.wish.with_open:
            prompt, output = mean_open_lengths()
            gflops = self.result.ceilings[0].bf16_gflops
            per_s = ceiling_tokens_per_s(self.wish.shape, gflops, round(prompt), round(output), 1) / round(output)
            rate = round(OPEN_LOAD * per_s, 2)
        wish = self.wish
        return Plan(wish.shape, wish.concurrencies, wish.sampled, wish.limit_s, rate, OPEN_S, self.result.objective)

    def _turn(self, name: str, place: Place, plan: Plan, number: int) -> None:
        began = time.monotonic()
        if self.wish.bars_only and not PEERS[name].ours:
            compared = concurrencies_with_bars(name)
            plan = replace(plan, sampled=(), concurrencies=tuple(at for at in plan.concurrencies if at in compared))
        if QUICK:
            plan = replace(plan, level_limit_s=QUICK_OURS_LIMIT_S if PEERS[name].ours else QUICK_OTHERS_LIMIT_S)
        log = REPOSITORY / "build" / "bench-engine" / f"{name}-{number}.log"
        rows = turn(PEERS[name], place, plan, number, log)
        self.result.rows += rows
        loads = [row for row in rows if row["kind"] in ("closed", "sampled")]
        results = [f"{row['kind'][0]}{row['concurrency']} {row['output_tokens_per_s']}" for row in loads]
        results += [str(row["why"]) for row in rows if row["kind"] == "failed"]
        self._log(f"round {number} {name}: {', '.join(results)} tok/s, {time.monotonic() - began:.0f} s")
        # What was measured stays, should the run be stopped.
        write(report.as_json(self.result))

    def _look_inside(self, places: dict[str, Place]) -> None:
        """The split of a step and the second look at the ceilings; without them the rest is a result still."""
        try:
            for name, quantization in QUANTIZATION_OF.items():
                if name in places:
                    self.result.split[quantization] = split(places[name].model, quantization)
            self.result.ceilings.append(measured_apart())
        except DevclusterError as error:
            self.result.warnings.append(f"The look inside the engine failed: {str(error).splitlines()[-1].strip()}")

    def _log(self, text: str) -> None:
        print_line(self.console, f"{time.strftime('%H:%M:%S')}  {text}")


def split(model: Path, quantization: str) -> list[Row]:
    """Of a step of our engine, measured in a process of its own."""
    command = [sys.executable, "-m", "bench.engine.split", str(model), quantization]
    paths = os.pathsep.join([str(REPOSITORY / "server"), str(REPOSITORY)])
    # As the server sets it for its engine: threads of torch that spin would take the cores from the kernels' own.
    variables = {"PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"}
    rows: list[Row] = json.loads(run(command, env=variables, cwd=REPOSITORY, timeout=300).splitlines()[-1])
    return rows


if __name__ == "__main__":
    main()
