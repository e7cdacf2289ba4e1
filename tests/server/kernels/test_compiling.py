"""Every Triton kernel compiles to Hopper's machine code with what the launches hand it; no GPU is needed for that."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[3]
SHARED_BYTES = 227 * 1024  # that a block of threads may use on Hopper


NAMES = {"decode", "combine", "chunk", "rotary_embedding_and_cache", "rms_norm", "gate", "matvec", "segmented"}
NAMES |= {"summarize", "bound_of_top_k", "first_draw", "masses", "next_draw"}


@pytest.mark.integration
def test_each_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    """The interpreter takes what the compiler refuses, so that the kernels of one layer are in every run."""
    assert {kernel["kernel"] for kernel in compiled(tmp_path, "1")} == NAMES


@pytest.mark.extended
def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    kernels = compiled(tmp_path)
    assert {kernel["kernel"] for kernel in kernels} == NAMES
    assert all(kernel["shared"] <= SHARED_BYTES for kernel in kernels)
    # What the two common kinds of heads need stays in registers.
    common = [kernel for kernel in kernels if kernel.get("SIZE", 0) <= 128 and "*bf16" in kernel["types"]]
    assert common and all(kernel["spilled"] == 0 for kernel in common)


def compiled(cache: Path, *layers: str) -> list[dict[str, Any]]:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "tests.server.kernels.compiling", *layers]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
