"""The engine process: loads the model, then steps until the HTTP process hangs up."""

import logging
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ..models.encoder import EncoderRunner
from ..models.loader import LoadError, load, pick_device
from ..telemetry import logs
from ..telemetry.heartbeat import Heartbeat
from .engine import Engine
from .kv_cache import tokens_that_fit
from .messages import LENGTH_BYTES, Commands, Failed, FromEngine, Ready, Start, encode, to_engine
from .runner import DecoderRunner
from .scheduler import Limits, Scheduler

log = logging.getLogger("slipway.engine")

IDLE_BEAT_S = 0.5
CPU_STEP_TOKENS, GPU_STEP_TOKENS = 512, 8192


class HungUp(Exception):
    """The HTTP process closed its end: nobody is left to serve."""


class Wire:
    """The engine's blocking end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, message: FromEngine) -> None:
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            raise HungUp from error

    def readable(self, timeout_s: float) -> bool:
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def receive(self) -> Start | Commands:
        return to_engine.decode(self._read(int.from_bytes(self._read(LENGTH_BYTES), "big")))

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = self._socket.recv(size - len(received))
            except OSError as error:
                raise HungUp from error
            if not part:
                raise HungUp
            received += part
        return bytes(received)


def main() -> None:
    logs.configure(os.environ.get("SLIPWAY_LOG_LEVEL", "INFO"))
    # The HTTP process decides when to end, after its drain; a signal to the whole group must not overtake it.
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
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        device = pick_device(start.device)
        model = load(Path(start.model), task=start.task, dtype=start.dtype, device=device)
        runner = DecoderRunner(model) if start.task == "generate" else EncoderRunner(model, Path(start.model))
        runner.self_test()
    except LoadError as error:
        wire.send(Failed(str(error)))
        sys.exit(1)
    limits = limits_for(model, start)
    seconds = round(time.monotonic() - began, 3)
    wire.send(Ready(limits.kv_tokens, seconds, str(model.dtype).removeprefix("torch."), device))
    step_until_hang_up(wire, heartbeat, Engine(Scheduler(limits), runner))


def limits_for(model: PreTrainedModel, start: Start) -> Limits:
    suits = CPU_STEP_TOKENS if model.device.type == "cpu" else GPU_STEP_TOKENS
    most = start.slots * start.context_tokens
    kv_tokens = min(most, start.kv_tokens or tokens_that_fit(model))
    # Every running sequence decodes in every step, so that a step holds one more at least: a prefill's.
    step_tokens = max(start.step_tokens or suits, start.slots + 1)
    return Limits(start.slots, step_tokens, kv_tokens, chunked=start.task == "generate")


def step_until_hang_up(wire: Wire, heartbeat: Heartbeat, engine: Engine) -> None:
    steps = 0
    while True:
        heartbeat.beat(time.monotonic(), steps=steps)
        news = take_commands(wire, engine, timeout_s=0.0 if engine.scheduler.busy else IDLE_BEAT_S)
        # After a cancel there may be nothing to run, and still something to report.
        if news or engine.scheduler.busy:
            steps += 1
            wire.send(engine.step())


def take_commands(wire: Wire, engine: Engine, timeout_s: float) -> bool:
    news = False
    while wire.readable(0.0 if news else timeout_s):
        commands = wire.receive()
        assert isinstance(commands, Commands), "the engine is started only once"
        for request in commands.submit:
            engine.submit(request)
        for request_id in commands.cancel:
            engine.cancel(request_id)
        news = True
    return news


if __name__ == "__main__":
    main()
