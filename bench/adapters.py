"""What LoRA adapters cost a step: `python -m bench.adapters`, on a CPU, without a server.

The 0.6B shape with random weights and 64 adapters of rank 16. Steps of eight answers are timed in turns: without the
feature; with it, and no row with an adapter; all rows with the same one; each row with one of eight. A step of answers
reads all weights once, so what bytes allow is base / (base + adapters of the step). Then steps are timed while adapters
are loaded beside them.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.engine.shapes import SHAPES, Shape
from bench.gpu.roofline import config_of
from bench.random_weights import RandomWeights
from slipway_process import machine
from slipway_server.engine.adapters.loader import AdapterLoader, LoadedAdapter
from slipway_server.kernels.api import BLOCK_TOKENS, Batch
from slipway_server.kernels.low_rank import AdapterRoom
from slipway_server.kernels.native import NativeKernels
from slipway_server.models.adapters.folder import AdapterLimits
from slipway_server.models.adapters.targets import parts_of, targets_of
from slipway_server.models.decoder import Decoder
from slipway_server.models.families import shape_of
from testkit.report import quantile

ROWS, ADAPTERS, RANK, CONTEXT = 8, 64, 16, 256
STEP_TARGET_S = 0.18  # of answers, on a CPU: `scheduling.budget.CPU_TIMES`
BARS = {"none": 0.99, "one": 0.95, "eight of what bytes allow": 0.9, "longest gap by the step target": 1.25}


def decoder_of(shape: Shape, room: AdapterRoom, *, int8: bool) -> Decoder:
    return decoder_with(shape, NativeKernels(machine.cores(), int8=int8, adapters=room), ROWS)


def decoder_with(shape: Shape, kernels: NativeKernels, rows: int) -> Decoder:
    """A decoder with random weights, and a cache for `rows` answers."""
    layers = shape_of(config_of(shape), CONTEXT)
    weights: Any = RandomWeights(layers)
    decoder = Decoder(layers, weights, kernels, CONTEXT)
    kernels.reserve(rows * CONTEXT // BLOCK_TOKENS)
    return decoder


def answers(slots: list[int] | None, count: int = ROWS) -> Batch:
    """A step of `count` answers, each with CONTEXT - 1 tokens before it."""
    blocks = CONTEXT // BLOCK_TOKENS
    rows = torch.arange(count, dtype=torch.int32)
    return Batch(
        ids=torch.arange(count) + 600,
        positions=torch.full((count,), CONTEXT - 1, dtype=torch.int32),
        slot_mapping=(rows + 1) * CONTEXT - 1,
        first=rows,
        counts=torch.ones_like(rows),
        starts=torch.full_like(rows, CONTEXT - 1),
        block_tables=torch.arange(count * blocks, dtype=torch.int32).view(count, blocks),
        rows=torch.arange(count),
        adapters=None if slots is None else torch.tensor(slots, dtype=torch.int32),
        num_decodes=count,
    )


def write_adapters(root: Path, decoder: Decoder, count: int) -> None:
    fields = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "base_model_name_or_path": None}
    tensors = {}
    for name, target in targets_of(decoder.shape).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, target.inputs).to(torch.bfloat16) * 0.02
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(target.outputs, RANK).to(torch.bfloat16) * 0.02
    for number in range(count):
        folder = root / f"a{number}"
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(fields))
        save_file(tensors, folder / "adapter_model.safetensors")


def timed(decoder: Decoder, batch: Batch) -> float:
    began_s = time.perf_counter()
    decoder.logits(batch)
    return time.perf_counter() - began_s


def steps(plain: Decoder, adapted: Decoder, rounds: int) -> dict[str, float]:
    """The median seconds of each kind of step."""
    kinds = {
        "without the feature": (plain, answers(None)),
        "none": (adapted, answers(None)),
        "one": (adapted, answers([5] * ROWS)),
        "eight": (adapted, answers(list(range(0, ADAPTERS, ADAPTERS // ROWS)))),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, (decoder, batch) in kinds.items():
            seconds[name].append(timed(decoder, batch))
    return {name: statistics.median(each) for name, each in seconds.items()}


def gaps(adapted: Decoder, loader: AdapterLoader, seconds: float) -> tuple[list[float], list[float], int]:
    """The seconds of steps without loading and with adapters loaded one after another; and how many were loaded."""
    alone: list[float] = []
    beside: list[float] = []
    batch, loaded = answers(list(range(ROWS))), 0
    for times, loads in ((alone, False), (beside, True)):
        end_s = time.perf_counter() + seconds
        if loads:
            loader.load("a0")
        last_s = time.perf_counter()
        while last_s < end_s:
            adapted.logits(batch)
            if loads and (result := loader.take()) is not None:
                assert isinstance(result, LoadedAdapter), result
                install(adapted, ADAPTERS - 1, result)
                loaded += 1
                loader.load(f"a{loaded % ROWS}")
            now_s = time.perf_counter()
            times.append(now_s - last_s)
            last_s = now_s
    while loader.take() is None:  # the thread must not be at work when the process ends
        time.sleep(0.01)
    return alone, beside, loaded


def install(decoder: Decoder, slot: int, loaded: LoadedAdapter) -> None:
    for (layer, operation), prepared in loaded.prepared.items():
        decoder.operations[layer][operation].adapt(slot, prepared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--int8", action="store_true", help="the base in int8")
    parser.add_argument("--gap-seconds", type=float, default=15.0)
    options = parser.parse_args()
    shape = SHAPES["qwen06"]
    torch.set_num_threads(machine.cores())
    plain = decoder_of(shape, AdapterRoom(), int8=options.int8)
    adapted = decoder_of(shape, AdapterRoom(ADAPTERS, RANK), int8=options.int8)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_adapters(root, adapted, ROWS)
        limits = AdapterLimits(RANK, 1 << 30, root, frozenset())
        loader = AdapterLoader(limits, targets_of(adapted.shape), parts_of(adapted.shape), adapted.operations)
        for slot in range(ADAPTERS):
            loaded = loader.read(f"a{slot % ROWS}")
            assert isinstance(loaded, LoadedAdapter), loaded
            install(adapted, slot, loaded)
        assert isinstance(loaded, LoadedAdapter)
        report(shape, options, steps(plain, adapted, options.rounds), loaded)
        report_gaps(*gaps(adapted, loader, options.gap_seconds))


def report(shape: Shape, options: argparse.Namespace, medians: dict[str, float], loaded: LoadedAdapter) -> None:
    base = shape.parameters * (1 if options.int8 else 2)
    allowed = base / (base + ROWS * loaded.size_bytes)
    print(f"base {base / 1e6:.0f} MB, an adapter {loaded.size_bytes / 1e6:.1f} MB, {ADAPTERS} loaded")
    before = medians["without the feature"]
    for name, seconds in medians.items():
        print(f"{name:20} {seconds * 1e3:7.2f} ms a step, {before / seconds:.3f} of without the feature")
    of_allowed = before / medians["eight"] / allowed
    print(f"eight: bytes allow {allowed:.3f}, it is {of_allowed:.3f} of that (bar {BARS['eight of what bytes allow']})")
    for name in ("none", "one"):
        print(f"{name}: {before / medians[name]:.3f} (bar {BARS[name]})")


def report_gaps(alone: list[float], beside: list[float], loaded: int) -> None:
    for name, times in (("no loading", alone), (f"{loaded} adapters loaded beside", beside)):
        print(
            f"steps with {name}: median {statistics.median(times) * 1e3:.1f} ms, "
            f"p99 {quantile(times, 0.99) * 1e3:.1f}, "
            f"longest {max(times) * 1e3:.1f}, {max(times) / STEP_TARGET_S:.2f} of the step target "
            f"(bar {BARS['longest gap by the step target']})"
        )


if __name__ == "__main__":
    main()
