"""What a step of answers takes in bfloat16, int8 and int4: `python -m bench.quantization`, on a CPU, without a server.

One shape with random weights, in all three at once. Steps of 1, 8 and 32 answers are timed in turns, so that whatever
else the machine does meets all of them; the ratio of a round is between steps beside each other. Writes
build/reports/quantization.json. SLIPWAY_KERNELS=avx2 masks better instruction sets.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from bench.adapters import answers, decoder_with, timed
from bench.engine.shapes import SHAPES, Shape
from slipway_process import machine
from slipway_server.kernels.native import NativeKernels
from slipway_server.models.decoder import Decoder

BATCHES = (1, 8, 32)
REPORT = Path("build/reports/quantization.json")
# Times int8's speed with one answer; times the better of bf16's and int8's with more.
BARS = {1: 1.5, 8: 0.95, 32: 0.95}
HEAD_BITS = {"bf16": 16, "int8": 8, "int4": 8}
LAYER_BITS = {"bf16": 16, "int8": 8, "int4": 4 + 40 / 64}  # with scales and zero points


def decoders(shape: Shape) -> dict[str, Decoder]:
    threads = machine.cores()
    kinds: dict[str, dict[str, bool]] = {"bf16": {}, "int8": {"int8": True}, "int4": {"int4": True}}
    return {
        name: decoder_with(shape, NativeKernels(threads, **more), max(BATCHES))  # type: ignore[arg-type]
        for name, more in kinds.items()
    }


def step_bytes(shape: Shape, name: str) -> float:
    """Bytes of the weights that a step reads."""
    head = shape.vocabulary * shape.hidden
    return (head * HEAD_BITS[name] + (shape.parameters - head) * LAYER_BITS[name]) / 8


def measure(models: dict[str, Decoder], batch_size: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of each kind of step, by round."""
    batch = answers(None, batch_size)
    for decoder in models.values():
        decoder.logits(batch)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, decoder in models.items():
            seconds[name].append(timed(decoder, batch))
    return seconds


def row_of(shape: Shape, batch_size: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    others = seconds["int8"] if batch_size == 1 else list(map(min, seconds["bf16"], seconds["int8"]))
    ratio = statistics.median(other / own for other, own in zip(others, seconds["int4"], strict=True))
    return {
        "answers": batch_size,
        "ms": {name: round(median * 1e3, 2) for name, median in medians.items()},
        "GB/s": {name: round(step_bytes(shape, name) / median / 1e9, 1) for name, median in medians.items()},
        "int4 by int8" if batch_size == 1 else "int4 by the better": round(ratio, 3),
        "bar": BARS[batch_size],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen06")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    torch.set_num_threads(machine.cores())
    models = decoders(shape)
    rows = [row_of(shape, size, measure(models, size, options.rounds)) for size in BATCHES]
    for row in rows:
        print(json.dumps(row))
    kernels: Any = models["int4"].kernels
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    report = {"shape": options.shape, "threads": machine.cores(), "kernels": kernels.instruction_set, "rows": rows}
    REPORT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
