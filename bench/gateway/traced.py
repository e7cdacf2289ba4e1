"""What traces cost: one gateway without them, two that record 1 % of their requests and one that records all, in turns.

A second gateway without traces shows by how much two equal processes differ.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bench.engine.environments import Unavailable
from bench.gateway import receiver, report
from bench.gateway.load import Answered
from bench.gateway.peers import PEERS, Start, Tracing
from bench.gateway.programs import started
from bench.gateway.run import Run
from bench.processes import Program, free_port, on_core

# By the name of a row: flags of a gateway that records; None: no receiver is named. The first share is the default,
# with the default bound on a second; the others have none.
_UNBOUND = "--trace-per-second=1000000"
SHARES: dict[str, tuple[str, ...] | None] = {
    "off": None,
    "off-again": None,
    "1%": ("--trace-sample=0.01",),
    "1%-unbound": ("--trace-sample=0.01", _UNBOUND),
    "100%": ("--trace-sample=1", _UNBOUND),
}
# Short blocks, and many of them: the figure is of 2 %, and what disturbs a host lasts for seconds.
BLOCK_S, BLOCKS_EACH_ROUND, LEAST_BLOCKS = 1.0, 5, 4
_EXPORTED_S = 7.0  # the SDK sends spans each 5 s


@dataclass(frozen=True, slots=True)
class _Traced:
    """One gateway by the name of its row, and under which name its spans come."""

    row: str
    service: str
    program: Program


def measure(run: Run) -> None:
    """Adds a row for each lane and share."""
    for lane in run.peers_of("traces"):
        with run.upstream() as url, receiver.running(run.cores.load, run.folder) as sink, ExitStack() as stack:
            try:
                gateways = [_start(run, stack, lane, name, url, sink) for name in SHARES]
            except Unavailable as error:
                run.leave_out(lane, error)
                continue
            with on_core(run.cores.load):
                _add_rows(run, lane, gateways, sink)


def _start(run: Run, stack: ExitStack, lane: str, name: str, url: str, sink: str) -> _Traced:
    flags, service = SHARES[name], f"{lane}-{name}"
    tracing = None if flags is None else Tracing(sink, service, flags)
    start = Start(run.folder / service, free_port(), url, tracing=tracing)
    program = stack.enter_context(started(PEERS[lane], start, run.cores.measured))
    return _Traced(name, service, replace(program, name=name))


def _add_rows(run: Run, lane: str, gateways: list[_Traced], sink: str) -> None:
    loop = replace(run.closed_loop(), seconds=min(run.seconds, BLOCK_S))
    programs = [gateway.program for gateway in gateways]
    run.in_turns(programs, 1, loop.measure)
    blocks = run.in_turns(programs, max(LEAST_BLOCKS, run.rounds * BLOCKS_EACH_ROUND), loop.measure)
    time.sleep(_EXPORTED_S)
    came = receiver.spans(sink)
    for gateway in gateways:
        _add_row(run, lane, gateway.row, blocks[gateway.row], came.get(gateway.service, 0))


def _add_row(run: Run, lane: str, name: str, blocks: list[Answered], spans: int) -> None:
    row = report.cost_row("traces", lane, blocks, share=name, spans=spans)
    run.rows.append(row)
    run.note(f"traces, {lane}, {name}: {row['us']:.1f} µs, {spans} spans came, {row['failed']} failed")
