"""The command line: `python -m bench.predict`. Exit status 0: every bar held; 1: one did not; 2: not measured."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from bench.engine.environments import Unavailable
from bench.engine.machine import BUSY_SHARE, foreign_share
from bench.page import publish
from bench.predict import grpc_load, report
from bench.predict.load import Measured, Target, closed_loop, highest_sustained, open_loop, repeated_until_on_time
from bench.predict.models import MODELS, ModelFile, protocol_body
from bench.predict.programs import BATCH_ROWS, PEERS, Peer, gateway, prepare, started
from bench.predict.report import Json
from bench.processes import Cores, Program, free_port, on_core
from devcluster.steps.progress import print_line
from testkit import ROOT
from testkit.report import report as as_report

PAGE = ROOT / "bench" / "predict.md"
QUICK = bool(os.environ.get("QUICK"))
CONNECTIONS = 64
WARM_UP_S, IDLE_S = 1.5, 1.0
SEARCH_STEPS = 6  # of 1.1 times the closed loop's rate: to 1.7 % of it


@dataclass
class Run:
    """One run: what is wished for, and what came of it."""

    console: Console
    peers: Sequence[str]
    rounds: int
    seconds: float
    folder: Path
    cores: Cores = field(default_factory=Cores.pick)
    rows: list[Json] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)

    def available(self) -> list[str]:
        return [peer for peer in self.peers if peer not in self.not_measured]

    def note(self, text: str) -> None:
        print_line(self.console, f"{time.strftime('%H:%M:%S')}  {text}")


@dataclass
class Found:
    """Of one peer with one model, over all rounds."""

    batch: int = 1
    estimate_per_s: float = 0.0
    saturation: list[Measured] = field(default_factory=list)
    sustained_per_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    own: list[Measured] = field(default_factory=list)
    common: list[Measured] = field(default_factory=list)


def _measure(run: Run, model: ModelFile) -> dict[str, Found]:
    file = model.make(run.folder)
    run.rows.append(_alone(run, model, file))
    found: dict[str, Found] = {}
    for name in run.available():
        try:
            found[name] = _choose_batch(run, PEERS[name], model, file)
        except Unavailable as error:
            run.not_measured[name] = str(error)
            run.note(str(error))
    peers = [name for name in found if PEERS[name].has_bar and name != report.OURS] or list(found)
    common_per_s = report.COMMON_SHARE * max(found[name].estimate_per_s for name in peers)
    for number in range(run.rounds):
        for name in list(found)[:: -1 if number % 2 else 1]:
            _round(run, PEERS[name], model, file, found[name], number, common_per_s)
    for name, one in found.items():
        run.rows.append(report.saturation_row(model.name, name, one.batch, one.saturation))
        run.rows.append(report.sustained_row(model.name, name, one.sustained_per_s))
        own_per_s = report.OWN_SHARE * run.rows[-1]["per_s"]
        if one.own:
            run.rows.append(report.latency_row(model.name, name, "own", own_per_s, one.own))
        run.rows.append(report.idle_row(model.name, name, one.idle_s))
        if one.common:
            run.rows.append(report.latency_row(model.name, name, "common", common_per_s, one.common))
    return found


def _alone(run: Run, model: ModelFile, file: Path) -> Json:
    command = [sys.executable, "-m", "bench.predict.alone", json.dumps(model.row()), str(BATCH_ROWS)]
    with on_core(run.cores.measured):
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"BENCH_MODEL": str(file)}, capture_output=True, text=True, check=True
        )
    made = json.loads(done.stdout)
    run.note(f"{model.name} alone: {made['service_ms']:.3f} ms, {made['rows_per_s']:,.0f} rows a second in batches")
    return {
        "kind": "alone", "model": model.name, "peer": "alone", "p50_ms": made["service_ms"],
        "rows_per_s": made["rows_per_s"],
    }  # fmt: skip


def _choose_batch(run: Run, peer: Peer, model: ModelFile, file: Path) -> Found:
    """With batches or without, whichever is faster: no peer is measured in the worse of two settings."""
    rates = {}
    for batch in (1, BATCH_ROWS) if peer.batches else (1,):
        with (
            started(peer, model, file, batch, run.cores.measured, run.folder) as (_, target),
            on_core(run.cores.load),
        ):
            asyncio.run(closed_loop(target, CONNECTIONS, WARM_UP_S))
            rates[batch] = asyncio.run(closed_loop(target, CONNECTIONS, min(3.0, run.seconds))).per_s
    batch = max(rates, key=lambda one: rates[one])
    shown = ", ".join(f"{'batches' if one > 1 else 'no batches'} {rate:,.0f}/s" for one, rate in rates.items())
    run.note(f"{model.name}, {peer.name}: {shown}")
    return Found(batch, rates[batch])


def _round(run: Run, peer: Peer, model: ModelFile, file: Path, found: Found, number: int, common_per_s: float) -> None:
    with (
        started(peer, model, file, found.batch, run.cores.measured, run.folder) as (_, target),
        on_core(run.cores.load),
    ):
        asyncio.run(closed_loop(target, CONNECTIONS, WARM_UP_S))
        done = asyncio.run(closed_loop(target, CONNECTIONS, run.seconds))
        found.saturation.append(done)
        found.idle_s += asyncio.run(closed_loop(target, 1, IDLE_S)).took_s
        sustained_per_s = asyncio.run(
            highest_sustained(
                lambda per_s, seconds: open_loop(target, per_s, seconds, number),
                1.1 * done.per_s,
                SEARCH_STEPS,
                2 * run.seconds,
            )
        )
        found.sustained_per_s.append(sustained_per_s)
        if sustained_per_s:
            found.own.append(_latency(target, report.OWN_SHARE * sustained_per_s, 2 * run.seconds, number))
        if common_per_s < 0.95 * done.per_s:
            found.common.append(_latency(target, common_per_s, 2 * run.seconds, number))
    run.note(
        f"{model.name}, round {number + 1}, {peer.name}: {done.per_s:,.0f}/s in a closed loop, "
        f"{sustained_per_s:,.0f}/s of random arrivals"
    )


def _latency(target: Target, per_s: float, seconds: float, number: int) -> Measured:
    return repeated_until_on_time(lambda: asyncio.run(open_loop(target, per_s, seconds, number)))


def _through_gateway(run: Run, model: ModelFile) -> None:
    file, body, message = model.make(run.folder), protocol_body(model), grpc_load.message(model)
    rounds: dict[str, list[tuple[Measured, float]]] = {"http": [], "grpc": []}
    core, ours = run.cores.measured, PEERS[report.OURS]
    with (
        started(ours, model, file, BATCH_ROWS, core, run.folder) as (server, _),
        gateway(server, core, run.folder, body) as (both, target, port),
        on_core(run.cores.load),
    ):
        for number in range(-1, 2 * run.rounds):  # the first turn warms both up
            for protocol in ("http", "grpc")[:: -1 if number % 2 else 1]:
                done = _turn(protocol, both, target, port, message, run.seconds)
                if number >= 0:
                    rounds[protocol].append(done)
    for protocol, found in rounds.items():
        run.rows.append(report.gateway_row(model.name, protocol, found))
        run.note(f"{model.name} through the gateway, {protocol}: {run.rows[-1]['per_s']:,.0f}/s")


def _grpc_of_peer(run: Run, peer: Peer, model: ModelFile, found: Found) -> None:
    """With batches or without, whichever was faster over HTTP."""
    file, message, port = model.make(run.folder), grpc_load.message(model), free_port()
    core = run.cores.measured
    with (
        started(peer, model, file, found.batch, core, run.folder, port) as (server, target),
        on_core(run.cores.load),
    ):
        turns = [_turn("grpc", server, target, port, message, run.seconds) for _ in range(2 * run.rounds + 1)]
    run.rows.append(report.grpc_row(model.name, peer.name, turns[1:]))  # the first turn warms it up
    run.note(f"{model.name}, {peer.name}'s own gRPC: {run.rows[-1]['per_s']:,.0f}/s")


def _turn(
    protocol: str, both: Program, target: Target, port: int, message: bytes, seconds: float
) -> tuple[Measured, float]:
    before_s = both.cpu_s()
    load = (
        closed_loop(target, CONNECTIONS, seconds)
        if protocol == "http"
        else grpc_load.closed_loop(port, message, CONNECTIONS, seconds)
    )
    return asyncio.run(load), both.cpu_s() - before_s


def _names(known: Sequence[str], text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if unknown := set(chosen).difference(known):
        raise click.BadParameter(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    return chosen


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--peers", callback=lambda _, __, text: _names(tuple(PEERS), text), show_default=True,
              default="slipway" if QUICK else ",".join(PEERS), help="Which, with commas.")  # fmt: skip
@click.option("--models", callback=lambda _, __, text: _names(tuple(MODELS), text), default=",".join(MODELS),
              show_default=True, help="Which, with commas.")  # fmt: skip
@click.option("--rounds", default=1 if QUICK else 3, show_default=True, help="The order of peers turns each time.")
@click.option(
    "--seconds", default=2.0 if QUICK else 5.0, show_default=True, help="Of one closed loop; open ones: twice."
)
@click.option("--busy-ok", is_flag=True, help="Measure on a busy machine; the page stays as it is.")
@click.option("--prepare", "only_prepare", is_flag=True, help="Install the peers and measure nothing.")
def main(
    peers: tuple[str, ...], models: tuple[str, ...], *, rounds: int, seconds: float, busy_ok: bool, only_prepare: bool
) -> None:
    """Our server of classic models beside Python's model servers, one core each; QUICK=1: a minute, ours alone."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Console(soft_wrap=True), peers, rounds, seconds, Path(folder))
        for peer in peers:
            try:
                prepare(PEERS[peer], run.console)
            except Unavailable as error:
                run.not_measured[peer] = str(error)
                run.note(f"{peer} is not measured: {error}")
        if only_prepare:
            sys.exit(0)
        if (share := foreign_share()) > BUSY_SHARE:
            run.note(f"the machine is busy: other work takes {share:.0%} of all cores")
            if not busy_ok:
                sys.exit(2)
        for name in models:
            found = _measure(run, MODELS[name])
            if report.OURS in found:
                _through_gateway(run, MODELS[name])
            for peer, one in found.items():
                if PEERS[peer].grpc:
                    _grpc_of_peer(run, PEERS[peer], MODELS[name], one)
    sys.exit(_conclude(run, page=not (QUICK or busy_ok) and (len(peers), len(models)) == (len(PEERS), len(MODELS))))


def _conclude(run: Run, *, page: bool) -> int:
    """Prints and writes the report; the exit status."""
    made = report.bars(run.rows, [name for name, peer in PEERS.items() if peer.has_bar and name != report.OURS])
    settings = {
        "day": time.strftime("%Y-%m-%d"),
        "connections": CONNECTIONS,
        "batch_rows": BATCH_ROWS,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "cores_apart": run.cores.load != run.cores.measured,
        "not_measured": run.not_measured,
    }
    whole = as_report("predict", run.rows, made, **settings)
    titles = {name: peer.title for name, peer in PEERS.items()} | {name: model.title for name, model in MODELS.items()}
    text = report.markdown(run.rows, made, whole, titles)
    return publish(whole, made, text, PAGE if page else None)


if __name__ == "__main__":
    main()
