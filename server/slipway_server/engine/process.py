"""The engine process: loads the model, then steps until the HTTP process hangs up."""

import gc

gc.disable()  # while modules by the thousand are imported, none of which is garbage; `serve` takes it up again

# ruff: noqa: E402
import logging
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from ..kernels.api import BLOCK_TOKENS, Kernels
from ..machine import free_memory_bytes, settle_memory
from ..models import checkpoint
from ..models.decoder import Decoder
from ..models.devices import LoadError, pick_device
from ..models.generator import load_generator, self_test
from ..telemetry import logs
from ..telemetry.heartbeat import Heartbeat
from .budget import Budget
from .engine import Engine
from .memory import DeviceMemory, for_cache
from .messages import (
    LENGTH_BYTES,
    Begun,
    Commands,
    Failed,
    FromEngine,
    Profile,
    Profiled,
    Ready,
    Start,
    Step,
    ToEngine,
    encode,
    to_engine,
)
from .profiler import Profiler
from .runner import DecoderRunner
from .scheduler import MAX_PROMPT_LOGPROBS, Limits, Scheduler

log = logging.getLogger("slipway.engine")

IDLE_BEAT_S = 0.5
CPU_STEP_TOKENS, GPU_STEP_TOKENS = 512, 8192
CPU_STEP_S, GPU_STEP_S = 0.4, 0.05
LEAST_PREFILL_TOKENS = 64  # of a step beside its decodes, however slow the machine
# Of what is free once the weights are loaded. Activations, the tokenizer and the page cache need the rest.
CPU_SHARE = 0.5
# Of what is free, for the steps of models of which no more is known than that they run.
FOREIGN_STEP_SHARE = 0.15


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

    def receive(self) -> ToEngine:
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
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    try:
        engine, told = (generating if start.task == "generate" else embedding)(start, threads)
    except LoadError as error:
        wire.send(Failed(str(error)))
        sys.exit(1)
    # What is here stays: a step is not to be held up by looks at all of torch.
    gc.freeze()
    gc.enable()
    wire.send(msgspec.structs.replace(told, load_seconds=round(time.monotonic() - began, 3)))
    step_until_hang_up(wire, heartbeat, engine, Trace(start.trace))


def generating(start: Start, threads: int) -> tuple[Engine, Ready]:
    folder = Path(start.model)
    config = checkpoint.read_config(folder)
    decoder = load_generator(
        folder,
        config,
        dtype=start.dtype,
        quantization=start.quantization,
        device=start.device,
        context_tokens=start.context_tokens,
        threads=threads,
        kv_cache_dtype=start.kv_cache_dtype,
        allow_slow=start.allow_slow,
    )
    settle_memory()
    kernels = decoder.kernels
    if start.kernels == "native" and kernels.name != "native":
        raise LoadError(
            f"--kernels native: {kernels.name} would compute this model. The C kernels are for bfloat16 and int8 on "
            "CPUs with AVX512-BF16 and AVX512-VNNI."
        )
    limits = limits_for(start, kernels.device, blocks_that_fit(decoder, start))
    runner = DecoderRunner(
        decoder, slots=limits.slots, context_tokens=start.context_tokens, blocks=limits.kv_tokens // BLOCK_TOKENS
    )
    self_test(decoder, decoder.vocab_size)
    if start.kv_tokens:  # asked for by number; else it is half of what is free, and others may need that sooner
        kernels.populate()
    scope = f"{start.revision}/{kernels.dtype}/{start.quantization}/{start.kv_cache_dtype}"
    least = min(limits.step_tokens, start.slots + LEAST_PREFILL_TOKENS)
    suits_s = CPU_STEP_S if kernels.device.type == "cpu" else GPU_STEP_S
    budget = Budget(least, limits.step_tokens, start.step_s or suits_s)
    dtype, device, known = name_of(kernels.dtype), str(kernels.device), decoder.vocab_size
    told = Ready(limits.kv_tokens, BLOCK_TOKENS, 0.0, dtype, device, kernels.name, known)
    return Engine(Scheduler(limits, scope=scope), runner, budget, vocab_size=known), told


def embedding(start: Start, threads: int) -> tuple[Engine, Ready]:
    # With transformers, which a decoder of ours does without: it takes seconds to import.
    from ..models.encoder import EncoderRunner
    from ..models.loader import load

    if start.kv_cache_dtype != "auto":
        raise LoadError(
            f"--kv-cache-dtype {start.kv_cache_dtype} is for models that generate: this one has no such cache."
        )
    device = pick_device(start.device)
    model = load(Path(start.model), task="embed", dtype=start.dtype, device=device)
    runner = EncoderRunner(model, Path(start.model))
    runner.self_test()
    limits = limits_for(start, model.device, 0)
    embeddings: Any = model.get_input_embeddings()
    known = int(embeddings.weight.shape[0])
    told = Ready(limits.kv_tokens, BLOCK_TOKENS, 0.0, name_of(model.dtype), device, "transformers", known)
    return Engine(Scheduler(limits), runner, vocab_size=known), told


def limits_for(start: Start, device: torch.device, blocks: int) -> Limits:
    wanted = start.kv_tokens or start.slots * start.context_tokens
    return Limits(
        slots=start.slots,
        step_tokens=step_tokens(start, device),
        kv_tokens=min(max(1, wanted // BLOCK_TOKENS), blocks) * BLOCK_TOKENS if blocks else 0,
        block_tokens=BLOCK_TOKENS,
        chunked=start.task == "generate",
        prefix_cache=start.prefix_cache,
    )


def step_tokens(start: Start, device: torch.device) -> int:
    """Every running sequence decodes in every step, so that a step holds one more at least: a prefill's."""
    suits = CPU_STEP_TOKENS if device.type == "cpu" else GPU_STEP_TOKENS
    return max(start.step_tokens or suits, start.slots + 1)


def blocks_that_fit(decoder: Any, start: Start) -> int:
    """In the memory that is left beside the weights. On a CPU pages are only taken when they are written to."""
    kernels: Kernels = decoder.kernels
    if kernels.device.type == "cpu":
        return max(1, int(free_memory_bytes() * CPU_SHARE) // kernels.bytes_per_block)
    torch.cuda.empty_cache()  # what loading left behind
    free, total = torch.cuda.mem_get_info()
    step_bytes = int(free * FOREIGN_STEP_SHARE)
    if isinstance(decoder, Decoder):
        rows = start.slots + MAX_PROMPT_LOGPROBS
        step_bytes = decoder.shape.step_bytes(step_tokens(start, kernels.device), rows, kernels.dtype.itemsize)
    fit = for_cache(DeviceMemory(total, free), start.gpu_memory, step_bytes) // kernels.bytes_per_block
    if fit < 2:  # one of them is nobody's
        raise LoadError(
            f"The GPU has no room for keys and values beside the weights: of {total >> 20} MiB {free >> 20} are free, "
            f"--gpu-memory-utilization is {start.gpu_memory}, and a step needs {step_bytes >> 20} MiB."
        )
    return fit - 1


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Trace:
    """One line of JSON for each step, when a file is named."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1) if path else None  # noqa: SIM115 - as long as the process

    def write(self, step: Step) -> None:
        if self._file:
            told = msgspec.structs.asdict(step) | {"events": len(step.events), "at": time.time()}
            self._file.write(msgspec.json.encode(told).decode() + "\n")


def step_until_hang_up(wire: Wire, heartbeat: Heartbeat, engine: Engine, trace: Trace) -> None:
    steps, profiler = 0, Profiler()
    engine.announce = lambda started: wire.send(Begun(started))
    while True:
        heartbeat.beat(time.monotonic(), steps=steps)
        news = take_commands(wire, engine, profiler, timeout_s=0.0 if engine.scheduler.busy else IDLE_BEAT_S)
        # After a cancel there may be nothing to run, and still something to report.
        if news or engine.scheduler.busy:
            steps += 1
            step = profiler.run(engine.step)
            wire.send(step)
            trace.write(step)
        if table := profiler.take():
            wire.send(Profiled(table))


def take_commands(wire: Wire, engine: Engine, profiler: Profiler, timeout_s: float) -> bool:
    news = False
    while wire.readable(0.0 if news else timeout_s):
        commands = wire.receive()
        if isinstance(commands, Profile):
            profiler.begin(commands)
            continue
        assert isinstance(commands, Commands), "the engine is started only once"
        for request in commands.submit:
            engine.submit(request)
        for request_id in commands.cancel:
            engine.cancel(request_id)
        news = True
    return news


if __name__ == "__main__":
    main()
