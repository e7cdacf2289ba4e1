"""Where a step of our engine spends its time: linears, attention, norms, sampling, and Python with the rest.

    python -m bench.engine.split MODEL_FOLDER none|int8

The engine itself, scheduler and all, in this process, on prompts that it has to process and answer. The C kernels count
what their layers spent; every other operation of the decoder is timed from outside. Operations run one after the other
on the CPU, so what no clock covers is Python: scheduling, packing, the encoding of the step for the HTTP process.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from bench.engine.ceilings import READ_BYTES, Reader
from bench.engine.peers import KV_DTYPES, KV_TOKENS, SLOTS, cores
from slipway_server.engine.build import build_generator
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.sampler import Sampler
from slipway_server.engine.messages import Start, encode
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.kernels.in_torch import TorchKernels
from slipway_server.kernels.native import NativeKernels, NativeLayers

BATCHES = (1, 8, 32)
PROMPT_TOKENS = 256
DECODES = 24  # steps at each batch size
OPERATIONS = {
    "linear": "linears", "gated": "linears", "head": "linears", "tied": "linears", "norm": "norms",
    "attention": "attention",
}  # fmt: skip
PARTS = ("linears", "attention", "norms", "sampling")
NATIVE_PARTS = PARTS[:3]


@dataclass(slots=True)
class Clocks:
    """Seconds of the step that runs, by part."""

    spent_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    native: list[NativeLayers] = field(default_factory=list)  # they count what they spend

    def clear(self) -> None:
        self.spent_s.clear()
        for layers in self.native:
            layers.spent_ns[:] = [0] * len(NATIVE_PARTS)

    def read(self) -> dict[str, float]:
        for layers in self.native:
            for part, spent_ns in zip(NATIVE_PARTS, layers.spent_ns, strict=True):
                self.spent_s[part] += spent_ns / 1e9
        return {part: self.spent_s[part] for part in PARTS}

    def keeping(self, make: Callable[..., NativeLayers]) -> Callable[..., NativeLayers]:
        def made(*arguments: Any) -> NativeLayers:
            self.native.append(make(*arguments))
            return self.native[-1]

        return made

    def timing(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                self.spent_s[part] += time.perf_counter() - began

        return timed


@contextmanager
def clocked(clocks: Clocks) -> Iterator[None]:
    """Kernels and samplers that are made and used inside are timed."""

    def making(part: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **more: Any) -> Any:
            operations = make(*arguments, **more)
            if isinstance(operations, tuple):  # an embedding and its head
                return tuple(_Timed(each, part, clocks) for each in operations)
            return _Timed(operations, part, clocks)

        return made

    patches = [
        patch.object(kernels, name, making(part, getattr(kernels, name)))
        for kernels in (NativeKernels, TorchKernels)
        for name, part in OPERATIONS.items()
    ]
    patches.append(patch.object(NativeKernels, "layers", clocks.keeping(NativeKernels.layers)))
    patches.append(patch.object(Sampler, "sample", clocks.timing("sampling", Sampler.sample)))
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


class _Timed:
    """An operation with a clock around it; what else is known of it stays known."""

    def __init__(self, operation: Any, part: str, clocks: Clocks) -> None:
        self._operation = operation
        self._timed = clocks.timing(part, operation)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        return self._timed(*arguments, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)


def measure(model: Path, quantization: str) -> list[dict[str, Any]]:
    """A row for the decode at each batch size and one for steps that are mostly prefill: medians in milliseconds."""
    clocks = Clocks()
    with clocked(clocks):
        engine = _engine(model, quantization)
        measured = [_one_batch(engine, clocks, batch) for batch in BATCHES]
        share = _bandwidth_share(engine, clocks, weight_bytes(model, quantization))
    decodes = [
        {"step": f"decode, batch {batch}", **_medians(steps)}
        for batch, (_, steps) in zip(BATCHES, measured, strict=True)
    ]
    decodes[0]["bandwidth_share"] = round(share, 3)
    return [*decodes, {"step": "prefill beside others", **_medians(measured[-1][0])}]


def _engine(model: Path, quantization: str) -> EngineCore:
    start = Start(
        model=str(model), task="generate", dtype="bfloat16", quantization=quantization, device="cpu",
        context_tokens=1024, slots=SLOTS, step_tokens=0, step_s=0.0, kv_tokens=KV_TOKENS, prefix_cache=False,
        kv_cache_dtype=KV_DTYPES[quantization],
    )  # fmt: skip
    torch.set_num_threads(cores())  # as the engine process does
    engine, _ = build_generator(start, cores())
    return engine


def weight_bytes(model: Path, quantization: str) -> float:
    """Bytes of the weights in memory; the files have them in bfloat16."""
    stored = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    return stored / 2 if quantization == "int8" else stored


def _bandwidth_share(engine: EngineCore, clocks: Clocks, weights: float) -> float:
    """Share of the memory's bandwidth that decoding one sequence takes: the median over steps.

    Before and after each step the same cores read memory: other virtual machines leave this one half of the bandwidth
    or all of it, which changes every few seconds.
    """
    reads = [(reader := Reader(cores())).read_s()]
    _, steps = _one_batch(engine, clocks, 1, after_step=lambda: reads.append(reader.read_s()))
    reads = reads[-len(steps) - 1 :]
    pairs = zip(steps, reads, reads[1:], strict=False)
    return median(weights / READ_BYTES * (before + after) / 2 / step["total"] for step, before, after in pairs)


def _one_batch(
    engine: EngineCore, clocks: Clocks, batch: int, after_step: Callable[[], None] = lambda: None
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Steps until all prompts are in, then steps in which all decode."""
    for number in range(batch):
        # The first answers go on until the last prompt is in.
        prompt = tuple(600 + (number * 31 + place) % 4000 for place in range(PROMPT_TOKENS))
        sampling = SamplingParams(max_tokens=512, temperature=0.0)
        engine.submit(Request(f"{batch}-{number}", prompt, sampling))
    prefills: list[dict[str, float]] = []
    decodes: list[dict[str, float]] = []
    while len(decodes) < DECODES + 2:
        row, tokens = _step(engine, clocks)
        (decodes if tokens == batch and len(engine.scheduler.running) == batch else prefills).append(row)
        after_step()
    for number in range(batch):
        engine.cancel(f"{batch}-{number}")
    while engine.scheduler.busy:
        engine.step()
    return prefills, decodes[2:]


def _step(engine: EngineCore, clocks: Clocks) -> tuple[dict[str, float], int]:
    clocks.clear()
    began = time.perf_counter()
    step = engine.step()
    encode(step)
    seconds = time.perf_counter() - began
    spent = clocks.read()
    return {"total": seconds, **spent, "python": seconds - sum(spent.values()), "tokens": step.tokens}, step.tokens


def _medians(steps: list[dict[str, float]]) -> dict[str, float]:
    medians = {
        f"{name}_ms": round(median(step[name] for step in steps) * 1e3, 3) for name in ("total", *PARTS, "python")
    }
    return {"steps": len(steps), "tokens": median(step["tokens"] for step in steps), **medians}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2])))
