"""The command line: `python -m bench.gateway`. Exit status 0: every bar held; 1: one did not; 2: not measured."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from bench.engine.environments import Unavailable, ensure
from bench.engine.machine import BUSY_SHARE, foreign_share
from bench.gateway import load, report
from bench.gateway.programs import PEERS, prepare, started, upstream, wrk
from bench.gateway.report import Json
from bench.page import publish
from bench.processes import Cores, Program, on_core
from devcluster.steps.progress import print_line
from testkit.report import report as as_report

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "bench" / "gateway.md"
QUICK = bool(os.environ.get("QUICK"))
PARTS = ("throughput", "latency", "streams")
RATE_PER_S = 200


@dataclass
class Run:
    """One run: what is wished for, and what came of it."""

    console: Console
    peers: Sequence[str]
    rounds: int
    seconds: float
    streams: int
    cores: Cores = field(default_factory=Cores.pick)
    by_wrk: bool = False
    rows: list[Json] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)

    def available(self) -> list[str]:
        return [peer for peer in self.peers if peer not in self.not_measured]

    def note(self, text: str) -> None:
        print_line(self.console, f"{time.strftime('%H:%M:%S')}  {text}")


def _prepare(run: Run) -> None:
    for peer in run.peers:
        try:
            prepare(PEERS[peer], run.console)
        except Unavailable as error:
            run.not_measured[peer] = str(error)
            run.note(f"{peer} is not measured: {error}")
    try:
        if not QUICK:
            ensure(wrk(), run.console)
            run.by_wrk = True
    except Unavailable as error:
        run.note(f"no wrk, so clients of aiohttp make the load: {error}")


def _together(run: Run, parts: Sequence[str], folder: Path) -> None:
    """Throughput and latency: all peers run, and one at a time has work."""
    with upstream(run.cores, folder) as url, ExitStack() as stack:
        programs: list[Program] = []
        for peer in run.available():
            try:
                programs.append(stack.enter_context(started(PEERS[peer], url, run.cores.measured, folder)))
            except Unavailable as error:
                run.not_measured[peer] = str(error)
                run.note(str(error))
        with on_core(run.cores.load):
            if "throughput" in parts:
                _throughput(run, programs, folder)
            if "latency" in parts:
                _latency(run, programs, url)


def _throughput(run: Run, programs: Sequence[Program], folder: Path) -> None:
    blocks: dict[str, list[load.Answered]] = {program.name: [] for program in programs}
    for program in programs:
        load.closed_loop(program, min(run.seconds, 2.0), folder, by_wrk=run.by_wrk)
    for number in range(run.rounds):
        for program in programs[:: -1 if number % 2 else 1]:
            done = load.closed_loop(program, run.seconds, folder, by_wrk=run.by_wrk)
            blocks[program.name].append(done)
            run.note(f"round {number + 1}, {program.name}: {done.per_cpu_s:,.0f} requests per CPU-second")
    for name, found in blocks.items():
        per_s = sum(block.requests for block in found) / sum(block.wall_s for block in found)
        failed = sum(block.failed for block in found)
        run.rows.append(report.throughput_row(name, [block.per_cpu_s for block in found], failed, per_s))


def _latency(run: Run, programs: Sequence[Program], url: str) -> None:
    blocks: dict[str, list[tuple[list[float], list[float]]]] = {program.name: [] for program in programs}
    for number in range(run.rounds):
        for program in programs[:: -1 if number % 2 else 1]:
            blocks[program.name].append(asyncio.run(load.latencies(program, url, RATE_PER_S, run.seconds)))
    run.rows += [report.latency_row(name, found) for name, found in blocks.items()]
    for row in run.rows[-len(blocks) :]:
        run.note(f"{row['peer']}: adds {row['added_p50_ms']:.2f} ms, p99 {row['added_p99_ms']:.2f} ms")


def _streams(run: Run, folder: Path) -> None:
    """One peer after the other, each fresh: memory that earlier requests left would hide what streams take."""
    for peer in run.available():
        if peer == "pipe":
            continue
        with upstream(run.cores, folder) as url:
            try:
                with (
                    started(PEERS[peer], url, run.cores.measured, folder) as program,
                    on_core(run.cores.load),
                ):
                    row = {"kind": "streams", "peer": peer, **asyncio.run(load.streams(program, run.streams))}
            except Unavailable as error:
                run.not_measured[peer] = str(error)
                continue
        run.rows.append(row)
        run.note(f"{peer}: {row['open']} streams, {row['broken']} broken, {row['kib_each']:.0f} KiB each")


def _names(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    def check(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if unknown := set(chosen).difference(known):
            raise click.BadParameter(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        return chosen

    return check


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--peers", callback=_names(tuple(PEERS)), show_default=True, help="Which, with commas.",
              default="slipway,keys,aiohttp,pipe" if QUICK else ",".join(PEERS))  # fmt: skip
@click.option("--parts", callback=_names(PARTS), default=",".join(PARTS), show_default=True, help="Of the measurement.")
@click.option("--rounds", default=2 if QUICK else 4, show_default=True, help="The order of peers turns each time.")
@click.option("--seconds", default=2.0 if QUICK else 4.0, show_default=True, help="Of one peer in one round.")
@click.option("--streams", default=200 if QUICK else report.STREAMS, show_default=True, help="Open at once.")
@click.option("--busy-ok", is_flag=True, help="Measure on a busy machine; the page stays as it is.")
@click.option("--prepare", "only_prepare", is_flag=True, help="Install the peers and measure nothing.")
def main(
    peers: tuple[str, ...], parts: tuple[str, ...], *, rounds: int, seconds: float, streams: int, busy_ok: bool,
    only_prepare: bool,
) -> None:  # fmt: skip
    """Measure the gateway beside its peers, one process on one core each; QUICK=1: a minute, without downloads."""
    run = Run(Console(soft_wrap=True), peers, rounds, seconds, streams)
    _prepare(run)
    if only_prepare:
        sys.exit(0)
    if (share := foreign_share()) > BUSY_SHARE:
        run.note(f"the machine is busy: other work takes {share:.0%} of all cores")
        if not busy_ok:
            sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        if {"throughput", "latency"}.intersection(parts):
            _together(run, parts, Path(folder))
        if "streams" in parts:
            _streams(run, Path(folder))
    sys.exit(_conclude(run, page=not (QUICK or busy_ok) and len(peers) == len(PEERS) and parts == PARTS))


def _conclude(run: Run, *, page: bool) -> int:
    """Prints and writes the report; the exit status."""
    made = report.bars(run.rows, run.streams)
    settings = {
        "day": time.strftime("%Y-%m-%d"),
        "generator": "wrk" if run.by_wrk else "aiohttp",
        "connections": load.CONNECTIONS,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "rate_per_s": RATE_PER_S,
        "cores_apart": run.cores.load != run.cores.measured,
        "not_measured": run.not_measured,
    }
    whole = as_report("gateway", run.rows, made, **settings)
    text = report.markdown(run.rows, made, whole, {name: peer.title for name, peer in PEERS.items()})
    return publish(whole, made, text, PAGE if page else None)


if __name__ == "__main__":
    main()
