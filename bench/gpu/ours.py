"""Our engine on random weights that are made where they are used: no folder, no disk."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from bench.engine.shapes import Shape
from bench.gpu.roofline import config_of
from bench.random_weights import RandomWeights
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels.api import BLOCK_TOKENS, Kernels
from slipway_server.kernels.in_triton import TritonKernels
from slipway_server.models.decoder import Decoder
from slipway_server.models.families import shape_of

STEP_TOKENS = 8192
WARM_STEPS, STEPS = 4, 32


def decoder_of(config: dict[str, Any], kernels: Kernels, context_tokens: int) -> Decoder:
    shape = shape_of(config, context_tokens)
    weights: Any = RandomWeights(shape, kernels.dtype, kernels.device)
    return Decoder(shape, weights, kernels, context_tokens)


def engine_of(shape: Shape, device: str, slots: int, context_tokens: int) -> EngineCore:
    kernels = TritonKernels(torch.bfloat16, device)
    decoder = decoder_of(config_of(shape), kernels, context_tokens)
    blocks = slots * -(-context_tokens // BLOCK_TOKENS)
    limits = SchedulerConfig(slots, STEP_TOKENS, blocks * BLOCK_TOKENS, BLOCK_TOKENS, prefix_cache=False)
    runner = DecoderRunner(decoder, slots=slots, context_tokens=context_tokens, blocks=blocks)
    return EngineCore(Scheduler(limits, hash_key=bytes(32)), runner, launches=runner)


@dataclass(frozen=True, slots=True)
class Decodes:
    """Medians of steps in which all sequences decode; and how fast their prompts went in."""

    step_s: float  # of the whole engine: scheduling, model, sampling, and the tokens on the host
    model_s: float  # of the captured graph alone
    context_tokens: float
    prefill_tokens_per_s: float


@contextmanager
def async_scheduling(engine: EngineCore, on: bool) -> Iterator[None]:
    """`on` as the server does it on a GPU; off as with `--async-scheduling off`. The engine is idle around it."""
    launches, engine._launches = engine._launches, engine._launches if on else None
    try:
        yield
    finally:
        engine._launches, engine._in_flight = launches, None


def decodes(engine: EngineCore, batch: int, prompt_tokens: int) -> Decodes:
    """Prompts of so many tokens for `batch` sequences, then steps in which each of them goes on by one token."""
    names = submit(engine, batch, prompt_tokens, WARM_STEPS + STEPS + batch + 8)
    began, prefilled = time.perf_counter(), 0
    while prefilled < batch * prompt_tokens:
        # Those whose prompts are in decode beside the others already.
        prefilled = sum(min(prompt_tokens, item.num_computed_tokens) for item in engine.scheduler.running.values())
        engine.step()
    prefill_s = time.perf_counter() - began
    for _ in range(WARM_STEPS):
        engine.step()
    times = [_timed(engine.step) for _ in range(STEPS)]
    context = sum(item.length for item in engine.scheduler.running.values()) / batch - STEPS / 2
    model_s = _replays(engine, batch)
    for name in names:
        engine.cancel(name)
    engine.step()
    return Decodes(median(times), model_s, context, batch * prompt_tokens / prefill_s)


def submit(
    engine: EngineCore, batch: int, prompt_tokens: int, new_tokens: int, *, temperature: float = 0.0, top_p: float = 1.0
) -> list[str]:
    """Requests that end by length alone, each with a prompt and a seed of its own."""
    names = [f"{batch}-{number}" for number in range(batch)]
    for number, name in enumerate(names):
        prompt = tuple(600 + (number * 31 + place * 7) % 4000 for place in range(prompt_tokens))
        params = SamplingParams(new_tokens, temperature=temperature, top_p=top_p, seed=number)
        engine.submit(Request(name, prompt, params))
    return names


def closed(engine: EngineCore, batch: int, prompt_tokens: int, new_tokens: int, **sampling: float) -> float:
    """Output tokens per second of `batch` requests that come at once, to the last token of the last one."""
    submit(engine, batch, prompt_tokens, new_tokens, **sampling)
    began, tokens = time.perf_counter(), 0
    while engine.scheduler.busy:
        tokens += sum(event.token is not None for event in engine.step().events)
    assert tokens == batch * new_tokens, f"{tokens} tokens came of {batch * new_tokens}"
    return tokens / (time.perf_counter() - began)


def _replays(engine: EngineCore, batch: int) -> float:
    """Seconds of the graph that the last steps replayed, by the device's own clock."""
    steps: Any = engine._runner._logits.__self__  # type: ignore[attr-defined]
    graph = steps._graphs[min(size for size in steps._graphs if size >= batch)]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(STEPS):
        graph.logits()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / STEPS


def _timed(step: Any) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
