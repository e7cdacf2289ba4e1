"""The engine process: loads the model, then steps until the HTTP process hangs up."""

import gc

gc.disable()  # while thousands of modules are imported, none of which is garbage; `serve` enables it again

# ruff: noqa: E402
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from slipway_process import cuda_stubs, logs, machine

from .. import environment, placement

with cuda_stubs.for_torch():
    import torch

from slipway_process.serving.heartbeat import Heartbeat

from ..models.devices import LoadError
from .build import build_engine
from .engine import EngineCore
from .execution.profiler import Profiler
from .messages import Commands, Failed, LoadAdapter, Profile, Profiled, Start, Started, Step, UnloadAdapter
from .wire import HungUp, Wire

log = logging.getLogger("slipway.engine")

IDLE_BEAT_S = 0.5


def main() -> None:
    logs.configure(environment.log_level())
    # The HTTP process decides when to end, after its drain: a signal to the whole group must not end this one first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    heartbeat = Heartbeat(int(sys.argv[2]))
    try:
        start = wire.receive()
        assert isinstance(start, Start), "the first message starts the engine"
        serve(wire, heartbeat, start)
    except HungUp:
        log.info("the HTTP process is gone")
    except Exception:
        log.exception("the engine failed")
        sys.exit(1)


def serve(wire: Wire, heartbeat: Heartbeat, start: Start) -> None:
    began = time.monotonic()
    try:
        threads, cpus = place(start, environment.engine_threads())
        torch.set_num_threads(threads)
        engine, ready = build_engine(start, threads)
    except LoadError as error:
        wire.send(Failed(str(error)))
        sys.exit(1)
    placement.bind_workers(cpus)
    # These objects live as long as the process: a collection during a step must not scan all of torch.
    gc.freeze()
    gc.enable()
    wire.send(msgspec.structs.replace(ready, load_seconds=round(time.monotonic() - began, 3)))
    run_steps(wire, heartbeat, engine, Trace(start.trace))


def place(start: Start, threads: int) -> tuple[int, tuple[int, ...]]:
    """Binds this process to CPUs and memory nodes; to be called before it starts threads.

    Returns how many threads compute and on which CPUs; no CPUs: the Linux kernel chooses them.

    Raises:
        LoadError: a setting names a CPU that this process may not use.
    """
    allowed = os.sched_getaffinity(0)
    try:
        topology = placement.read_topology()
        chosen = placement.choose(start.cpu_threads_bind, start.numa, allowed, machine.cores(), topology)
    except ValueError as error:
        raise LoadError(str(error)) from None
    for warning in filter(None, (chosen.warning, placement.apply(chosen))):
        log.warning(warning)
    if chosen.cpus or chosen.nodes:
        log.info("the engine's place", extra={"cpus": list(chosen.cpus), "interleaved_nodes": list(chosen.nodes)})
    return min(threads, len(chosen.cpus) or threads), chosen.cpus


class Trace:
    """Appends a line of JSON for each step to the file `path`; with an empty path, does nothing."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1) if path else None  # noqa: SIM115 - as long as the process

    def write(self, step: Step) -> None:
        if self._file:
            fields = msgspec.structs.asdict(step) | {"events": len(step.events), "at": time.time()}
            self._file.write(msgspec.json.encode(fields).decode() + "\n")


def run_steps(wire: Wire, heartbeat: Heartbeat, engine: EngineCore, trace: Trace) -> None:
    steps, profiler = 0, Profiler()
    engine.announce = lambda started: wire.send(Started(started))
    if engine.masks:
        wire.wake_for(engine.masks.fileno())
    if engine.adapters:
        wire.wake_for(engine.adapters.fileno())
    while True:
        heartbeat.beat(time.monotonic(), steps=steps)
        received = receive_commands(wire, engine, profiler, timeout_s=0.0 if engine.scheduler.busy else IDLE_BEAT_S)
        # After a cancel there may be nothing to run, but there is a step to report.
        if engine.look() or received:
            steps += 1
            step = profiler.run(engine.step)
            wire.send(step)
            trace.write(step)
        for report in engine.adapters.take_reports() if engine.adapters else ():
            wire.send(report)
        if table := profiler.take():
            wire.send(Profiled(table))


def receive_commands(wire: Wire, engine: EngineCore, profiler: Profiler, timeout_s: float) -> bool:
    received = False
    while wire.readable(0.0 if received else timeout_s):
        commands = wire.receive()
        if isinstance(commands, Profile):
            profiler.begin(commands)
            continue
        if isinstance(commands, LoadAdapter | UnloadAdapter):
            change_adapters(engine, commands)
            continue
        assert isinstance(commands, Commands), "the engine is started only once"
        for request in commands.submit:
            engine.submit(request)
        for request_id in commands.cancel:
            engine.cancel(request_id)
        received = True
    return received


def change_adapters(engine: EngineCore, command: LoadAdapter | UnloadAdapter) -> None:
    assert engine.adapters, "the HTTP process sends these only where there are adapters"
    if isinstance(command, LoadAdapter):
        engine.adapters.load(command.path, command.digest)
    else:
        engine.adapters.unload(command.digest)


if __name__ == "__main__":
    main()
