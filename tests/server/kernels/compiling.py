"""Compiles every Triton kernel that a set of attention layers launches, for a Hopper GPU, on a machine without one.

    python -m tests.server.kernels.compiling [NUMBER OF LAYERS]

The launches are the real ones; in place of running, each is compiled down to machine code by Triton's own compiler and
assembler. Prints one line of JSON for each: kernel, registers of a thread, bytes spilled, bytes of shared memory.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from slipway_server.kernels import in_triton
from slipway_server.kernels.api import AttentionSpec, Rotary
from slipway_server.kernels.draws import Draws, draw_by
from slipway_server.kernels.in_triton import TritonKernels
from slipway_server.kernels.low_rank import AdapterRoom
from tests.server.kernels.batches import POSITIONS, a_batch, made, width_of

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32"}
TYPES |= {torch.int64: "i64", torch.uint8: "u8"}
# dtype, heads, heads of keys and values, their size, window, cap.
LAYERS: list[tuple[torch.dtype, int, int, int, int, float]] = [
    (torch.bfloat16, 16, 8, 128, 0, 0.0),
    (torch.bfloat16, 32, 8, 128, 0, 0.0),
    (torch.float16, 14, 2, 64, 0, 0.0),
    (torch.bfloat16, 8, 4, 256, 512, 50.0),
    (torch.float32, 8, 4, 96, 0, 0.0),
    (torch.float32, 4, 1, 256, 100, 0.0),
]
printed: set[str] = set()


def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In place of JITFunction.run."""
    options = {name: named.pop(name) for name in list(named) if name not in self.arg_names}
    values = self.signature.bind(*arguments, **named).arguments
    signature, constants, attributes = {}, {}, {}
    for parameter in self.params:
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            attributes[(parameter.num,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(self, signature, constants, attributes)
    made_of = {name: constants[name] for name in constants if name in ("SIZE", "ROWS", "TILE", "WINDOW", "CAP")}
    types = sorted({kind for kind in signature.values() if kind.startswith("*")})
    compiled = triton.compile(source, target=HOPPER, options=options)
    report = {"kernel": self.__name__, "types": types, **made_of, **usage(compiled), "shared": compiled.metadata.shared}
    line = json.dumps(report)
    if line not in printed:
        printed.add(line)
        print(line, flush=True)


def usage(compiled: Any) -> dict[str, int]:
    """Registers of a thread and bytes that it keeps elsewhere, as the assembler counted them."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        dump = subprocess.run([str(program), "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", dump.stdout + dump.stderr)
    assert found, dump.stdout
    return {"registers": int(found[1]), "spilled": int(found[2])}


def main() -> None:
    JITFunction.run = compile_only
    in_triton._dependent_launch = lambda _: {"PDL": True, "launch_pdl": True}  # as on a Hopper GPU
    count = int(sys.argv[1]) if len(sys.argv) > 1 else len(LAYERS)
    for dtype, heads, kv_heads, size, window, cap in LAYERS[:count]:
        kernels = TritonKernels(dtype, "cpu", adapters=AdapterRoom(2, 16))
        norm, angles = torch.ones(size), torch.zeros(POSITIONS, size // 2)
        normed = {"q_norm": norm, "k_norm": norm} if heads == 16 else {}
        spec = AttentionSpec(heads, kv_heads, size, 1.0, Rotary(angles, angles), window=window, cap=cap, **normed)
        layer = made(kernels, spec, blocks=40)
        batch = a_batch([(40, 1), (3, 2)])
        layer(torch.zeros(3, width_of(spec), dtype=dtype), batch)
        many = a_batch([(9, 1)] * 256, width=1)  # where the last part of a sequence combines all
        made(kernels, spec, blocks=256)(torch.zeros(256, width_of(spec), dtype=dtype), many)
        x = torch.zeros(2, 32, dtype=dtype)
        kernels.norm(torch.ones(32), 1e-6)(x)
        for activation in ("silu", "gelu_tanh"):
            gated = kernels.gated(torch.ones(48, 32), torch.ones(48, 32), activation)
            gated(x), gated(x[:1])
        kernels.linear(torch.ones(8, 32), torch.ones(8))(x[:1], torch.zeros(1, 8, dtype=dtype))
        slots = torch.zeros(100, dtype=torch.int32)
        both = kernels.linear(torch.ones(192, 64), None, (128, 64))
        for rows in (2, 100):  # each its own program, and sixteen together
            both(torch.zeros(rows, 64, dtype=dtype), None, slots[:rows])
        kernels.sample(torch.zeros(2, 2000), Draws([draw_by(1, 1.0, top_p=0.9, top_k=20)] * 2, [0, 1]))


if __name__ == "__main__":
    main()
