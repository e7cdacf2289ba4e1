"""The command line: `python -m bench.gateway`. Exit status 0: every bar held; 1: one did not; 2: not measured."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console

from bench.engine.machine import BUSY_SHARE, foreign_share
from bench.gateway import report, tables
from bench.gateway.load import CONNECTIONS
from bench.gateway.parts import MEASURE, RATE_PER_S
from bench.gateway.peers import PARTS, PEERS
from bench.gateway.run import EVENT_STREAMS, Run
from bench.gateway.stream_load import EVENTS_PER_S
from bench.page import publish
from testkit import ROOT
from testkit.report import report as as_report

PAGE = ROOT / "bench" / "gateway.md"
QUICK = bool(os.environ.get("QUICK"))
# Of the quick form: what the bars compare the gateway with, and nothing that takes long to install or to start.
QUICK_PEERS = ("slipway", "keys", "plane", "plane-keys", "nginx", "aiohttp")


def _names(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    def check(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if unknown := set(chosen).difference(known):
            raise click.BadParameter(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        return chosen

    return check


def _counts(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and 0 < int(part) <= report.STREAMS for part in parts):
        raise click.BadParameter(f"write numbers from 1 to {report.STREAMS}, with commas")
    return tuple(map(int, parts))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--peers", callback=_names(tuple(PEERS)), show_default=True, help="Which, with commas.",
              default=",".join(QUICK_PEERS if QUICK else PEERS))  # fmt: skip
@click.option("--parts", callback=_names(PARTS), default=",".join(PARTS), show_default=True, help="Of the measurement.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=2 if QUICK else 4,
    show_default=True,
    help="The order of peers turns each time.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=2.0 if QUICK else 3.0,
    show_default=True,
    help="Of one peer in one round.",
)
@click.option(
    "--streams",
    type=click.IntRange(min=1),
    default=200 if QUICK else report.STREAMS,
    show_default=True,
    help="Open at once.",
)
@click.option("--event-streams", callback=_counts, default=",".join(map(str, EVENT_STREAMS)), show_default=True,
              help="Of 50 events a second, with commas.")  # fmt: skip
@click.option("--busy-ok", is_flag=True, help="Measure on a busy machine; the page stays as it is.")
@click.option("--no-downloads", is_flag=True, help="Load by aiohttp and a model server in Python, not wrk and Rust.")
@click.option("--prepare", "only_prepare", is_flag=True, help="Install the peers and measure nothing.")
def main(
    peers: tuple[str, ...], parts: tuple[str, ...], *, rounds: int, seconds: float, streams: int,
    event_streams: tuple[int, ...], only_prepare: bool, **flags: bool,
) -> None:  # fmt: skip
    """Measure the gateway beside its peers, one process on one core each; QUICK=1: three minutes, with fewer peers."""
    with tempfile.TemporaryDirectory() as folder:
        # nginx gives up root, and then cannot enter a folder of root's.
        os.chmod(folder, 0o755)
        downloads = not flags["no_downloads"]
        run = Run(Console(soft_wrap=True), peers, rounds, seconds, streams, Path(folder), downloads, event_streams)
        run.prepare()
        if only_prepare:
            sys.exit(0)
        if (share := foreign_share()) > BUSY_SHARE:
            run.note(f"the machine is busy: other work takes {share:.0%} of all cores")
            if not flags["busy_ok"]:
                sys.exit(2)
        for part in parts:
            with run.noise_of(part):
                MEASURE[part](run)
    whole = not (QUICK or flags["busy_ok"]) and len(peers) == len(PEERS) and parts == PARTS
    sys.exit(_conclude(run, page=whole))


def _conclude(run: Run, *, page: bool) -> int:
    """Prints and writes the report; the exit status."""
    made = report.bars(run.rows, run.streams, run.not_measured)
    about = {
        "day": time.strftime("%Y-%m-%d"), "generator": "wrk" if run.by_wrk else "aiohttp",
        "upstream": "Rust" if run.in_rust else "Python", "connections": CONNECTIONS, "rounds": run.rounds,
        "seconds": run.seconds, "rate_per_s": RATE_PER_S, "events_per_s": EVENTS_PER_S,
        "cores_apart": run.cores.load != run.cores.measured, "lane": report.Rows(run.rows).lane, "noise": run.noise,
        "versions": run.versions(), "not_measured": run.not_measured, "awaited": sorted(report.awaited(run.rows)),
    }  # fmt: skip
    whole = as_report("gateway", run.rows, made, **about)
    text = tables.page(run.rows, made, whole, {name: peer.title for name, peer in PEERS.items()})
    return publish(whole, made, text, PAGE if page else None, awaited=report.awaited(run.rows))


if __name__ == "__main__":
    main()
