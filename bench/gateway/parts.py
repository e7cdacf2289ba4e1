"""The parts of the measurement. Each starts what it needs, loads one program at a time, and adds rows to the run."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bench.engine.environments import Unavailable
from bench.gateway import control, report, traced
from bench.gateway.load import Answered, latencies
from bench.gateway.messages import CLASSIC, PREDICT
from bench.gateway.peers import PEERS, Start, routes_file
from bench.gateway.programs import certificate, started
from bench.gateway.run import Run
from bench.gateway.stream_load import EVENTS_PER_S, events, memory, shape_of
from bench.gateway.upstream import StreamShape
from bench.predict import grpc_load
from bench.predict import programs as predict_programs
from bench.processes import Program, free_port, on_core
from testkit.report import quantile

RATE_PER_S = 200
GRPC_CALLS, PREDICT_CONNECTIONS = 8, 64
WARM_UP_S = 2.0


def throughput(run: Run) -> None:
    """CPU time of a request of JSON, without keys, with them, and with limits at Redis."""
    names = run.peers_of("throughput")
    with run.upstream() as url, ExitStack() as stack:
        at_redis = run.redis(stack, names)

        def start_of(name: str) -> Start:
            return replace(run.start_of(name, url), redis=at_redis if PEERS[name].needs_redis else "")

        programs = run.start_all(stack, names, start_of)
        with on_core(run.cores.load):
            _closed_loops(run, "throughput", programs)


def _closed_loops(run: Run, kind: str, programs: list[Program]) -> None:
    loop = run.closed_loop()
    for program in programs:
        replace(loop, seconds=min(run.seconds, WARM_UP_S)).measure(program)
    for name, blocks in run.in_turns(programs, run.rounds, loop.measure).items():
        _add_cost(run, kind, name, blocks)


def _add_cost(run: Run, kind: str, name: str, blocks: list[Answered], **more: object) -> None:
    row = report.cost_row(kind, name, blocks, **more)
    run.rows.append(row)
    run.note(f"{kind}, {name}: {row['us']:.1f} µs ({row['least']:.1f} to {row['most']:.1f}), {row['failed']} failed")


def latency(run: Run) -> None:
    """What a peer adds to a request while 200 come in a second."""
    with run.upstream() as url, ExitStack() as stack:
        programs = run.start_all(stack, run.peers_of("latency"), lambda name: run.start_of(name, url))
        with on_core(run.cores.load):
            measured = run.in_turns(
                programs, run.rounds, lambda program: asyncio.run(latencies(program, url, RATE_PER_S, run.seconds))
            )
    for name, blocks in measured.items():
        row = report.latency_row(name, blocks)
        run.rows.append(row)
        run.note(f"{name} adds {row['added_p50_ms']:.2f} ms, p99 {row['added_p99_ms']:.2f} ms")


def event_costs(run: Run) -> None:
    """CPU time of an event, while streams of 50 events a second run."""
    shape, rounds = shape_of(EVENTS_PER_S, run.seconds), max(1, run.rounds - 1)
    with run.upstream(shape) as url, ExitStack() as stack:
        programs = run.start_all(stack, run.peers_of("events"), lambda name: run.start_of(name, url))
        with on_core(run.cores.load):
            for count in run.event_streams:
                blocks = run.in_turns(programs, rounds, _events(count, shape, run.seconds))
                for name, found in blocks.items():
                    _add_cost(run, "events", name, found, streams=count, intended_per_s=count * EVENTS_PER_S)


def _events(count: int, shape: StreamShape, seconds: float) -> Callable[[Program], Answered]:
    return lambda program: asyncio.run(events(program, count, shape, seconds))


def stream_memory(run: Run) -> None:
    """One peer after the other, each fresh: memory that earlier requests left would hide what streams take."""
    # They last for as long as it takes to open all, and some seconds more.
    shape = StreamShape(max(5, run.streams // 100), 1.0, marks=True)
    for name in run.peers_of("streams"):
        with run.upstream(shape) as url, ExitStack() as stack:
            programs = run.start_all(stack, [name], lambda name: run.start_of(name, url))
            with on_core(run.cores.load):
                for program in programs:
                    row = {"kind": "streams", "peer": name, **asyncio.run(memory(program, run.streams, shape))}
                    run.rows.append(row)
                    run.note(
                        f"{name}: {row['open']} streams, {row['broken']} broken, {row['kib_each']:.0f} KiB for each"
                    )


def busy_control(run: Run) -> None:
    """Latency while the control side parses big tables, in turns with the same while it is idle."""
    with run.upstream() as url:
        for name in run.peers_of("busy"):
            start = run.start_of(name, url)
            # All cores: where a lane waits for the control side, it is not for a core.
            cores = frozenset((run.cores.load, run.cores.measured))
            try:
                with started(PEERS[name], start, cores) as program, on_core(run.cores.load):
                    log = start.folder / "log"
                    before = control.tables_loaded(log)
                    pairs = [asyncio.run(_idle_and_busy(run, program, url)) for _ in range(run.rounds)]
                    tables = control.tables_loaded(log) - before
            except Unavailable as error:
                run.leave_out(name, error)
                continue
            row = report.busy_row(name, pairs, tables)
            run.rows.append(row)
            run.note(f"{name}: p99 {row['idle_p99_ms']:.1f} ms, {row['busy_p99_ms']:.1f} ms beside {tables} tables")


async def _idle_and_busy(run: Run, program: Program, url: str) -> tuple[float, float]:
    """p99 of both, in seconds."""
    found = []
    for busy in (False, True):
        async with control.changing(routes_file(run.folder / program.name), url, busy=busy):
            routed, _ = await latencies(program, url, RATE_PER_S, run.seconds)
        found.append(quantile(routed, 0.99))
    return found[0], found[1]


def tls(run: Run) -> None:
    """CPU time of a request over connections with TLS, beside nginx with the same certificate."""
    proof = certificate(run.folder)
    with run.upstream() as url, ExitStack() as stack:
        programs = run.start_all(stack, run.peers_of("tls"), lambda name: run.start_of(name, url, proof))
        with on_core(run.cores.load):
            _closed_loops(run, "tls", programs)


def grpc(run: Run) -> None:
    """CPU time of a unary call of gRPC, which the upstream gets as HTTP."""
    ports = {name: free_port() for name in run.peers_of("grpc")}
    with run.upstream() as url, ExitStack() as stack:
        programs = run.start_all(stack, list(ports), lambda name: run.start_of(name, url, grpc_port=ports[name]))
        with on_core(run.cores.load):
            for name, blocks in run.in_turns(programs, run.rounds, lambda one: _calls(run, one, ports)).items():
                _add_cost(run, "grpc", name, blocks)


def _calls(run: Run, program: Program, ports: Mapping[str, int]) -> Answered:
    body, cpu_s = grpc_load.message(CLASSIC), program.cpu_s()
    done = asyncio.run(grpc_load.closed_loop(ports[program.name], body, GRPC_CALLS, run.seconds))
    return Answered(len(done.took_s), done.failed, program.cpu_s() - cpu_s, done.wall_s)


@dataclass(frozen=True, slots=True)
class Predicted:
    """One block of predictions through a gateway. `server_us`: of the model server for each, as `answered.us` is the
    gateway's."""

    answered: Answered
    server_us: float


def predict(run: Run) -> None:
    """Predictions of a classic model by the server alone, and through each lane on the server's core."""
    file = CLASSIC.make(run.folder)
    peer = predict_programs.PEERS["slipway"]
    loop = run.closed_loop(PREDICT, PREDICT_CONNECTIONS)
    with ExitStack() as stack:
        batch = predict_programs.BATCH_ROWS
        try:
            server, _ = stack.enter_context(
                predict_programs.started(peer, CLASSIC, file, batch, run.cores.measured, run.folder)
            )
        except Unavailable as error:
            run.leave_out(report.SERVER, error)
            return
        gateways = run.start_all(stack, run.peers_of("predict"), lambda name: run.start_of(name, server.url), PREDICT)
        programs = [replace(server, name=report.SERVER), *gateways]

        def measure(program: Program) -> Predicted:
            before_s = server.cpu_s()
            done = loop.measure(program)
            return Predicted(done, (server.cpu_s() - before_s) / max(done.count, 1) * 1e6)

        with on_core(run.cores.load):
            run.in_turns(programs, 1, measure)
            for name, blocks in run.in_turns(programs, run.rounds, measure).items():
                server_us = [block.server_us for block in blocks]
                _add_cost(run, "predict", name, [block.answered for block in blocks], server_us=server_us)


MEASURE: dict[str, Callable[[Run], None]] = {
    "throughput": throughput,
    "latency": latency,
    "events": event_costs,
    "streams": stream_memory,
    "busy": busy_control,
    "tls": tls,
    "grpc": grpc,
    "predict": predict,
    "traces": traced.measure,
}
