"""What the machine can do at best: memory read and products of matrices, measured. As a program it prints them as JSON.

python -m bench.engine.ceilings
"""

import contextlib
import ctypes
import json
import mmap
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.engine.peers import cores
from devcluster.errors import DevclusterError
from devcluster.processes import run
from testkit.report import quantile

READ_BYTES, READ_TRIES = 1 << 30, 15
PRODUCT_S = 1.0
# The widest layer of the 0.6B shape, on as many rows as a long prefill has.
ROWS, OUTPUTS, INPUTS = 2048, 3072, 1024
SOURCE = Path(__file__).with_name("read.c")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Medians, best in brackets in the report: a shared host does not give the same at any time.

    `bf16`: products of numbers in bf16 as the CPU computes them faster, by its instructions for bf16 or in float32.
    """

    read_gb_per_s: float
    read_best_gb_per_s: float
    bf16_gflops: float
    bf16_best_gflops: float
    int8_gflops: float
    int8_best_gflops: float


def measure(threads: int) -> Ceilings:
    """Takes about ten seconds. Raises DevclusterError when nothing compiles `read.c`."""
    read, best_read = _read_gb_per_s(threads)
    bf16, best_bf16, int8, best_int8 = _products(threads)
    return Ceilings(*(round(value, 1) for value in (read, best_read, bf16, best_bf16, int8, best_int8)))


def measured_apart() -> Ceilings:
    """In a process of its own, so that no thread of it stays beside the servers."""
    output = run([sys.executable, "-m", "bench.engine.ceilings"], timeout=300)
    return Ceilings(**json.loads(output.splitlines()[-1]))


class Reader:
    """Memory that threads read: more than any cache holds, in large pages where Linux has them."""

    def __init__(self, threads: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self._library = _compiled(Path(folder))
        self._memory = mmap.mmap(-1, READ_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        whole = (ctypes.c_uint64 * (READ_BYTES // 8)).from_buffer(self._memory)
        ctypes.memset(whole, 1, READ_BYTES)  # each page must be real: the kernel shares one of zeros
        self._part = len(whole) // threads
        self._starts = [ctypes.byref(whole, number * self._part * 8) for number in range(threads)]

    def read_s(self) -> float:
        """Seconds to read READ_BYTES.

        ctypes lets go of the interpreter's lock during a call: the threads do run side by side.
        """
        part = ctypes.c_size_t(self._part)
        readers = [threading.Thread(target=self._library.read_all, args=(start, part)) for start in self._starts]
        began = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return time.perf_counter() - began


def _read_gb_per_s(threads: int) -> tuple[float, float]:
    reader = Reader(threads)
    times = [reader.read_s() for _ in range(READ_TRIES)]
    return READ_BYTES / quantile(times, 0.5) / 1e9, READ_BYTES / min(times) / 1e9


def _compiled(folder: Path) -> ctypes.CDLL:
    zig = [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None
    compiler = zig or ([found] if (found := shutil.which("cc")) else None)
    if compiler is None:
        raise DevclusterError("Reading memory cannot be measured: there is neither ziglang nor cc.")
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}
    library = folder / "read.so"
    run([*compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], env=caches)
    return ctypes.CDLL(str(library))


def _products(threads: int) -> tuple[float, float, float, float]:
    """GFLOP/s of torch's own products (oneDNN): bf16 or float32 median and best, int8 median and best."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, weight = torch.randn(ROWS, INPUTS).bfloat16(), torch.randn(OUTPUTS, INPUTS).bfloat16()
    whole = torch.randint(-127, 127, (ROWS, INPUTS), dtype=torch.int8)
    whole_weight = torch.randint(-127, 127, (OUTPUTS, INPUTS), dtype=torch.int8).t()
    wide, wide_weight = x.float(), weight.float()
    with torch.inference_mode():
        bf16 = _gflops(lambda: torch.nn.functional.linear(x, weight))
        widened = _gflops(lambda: torch.nn.functional.linear(wide, wide_weight))
        return (*max(bf16, widened), *_gflops(lambda: torch._int_mm(whole, whole_weight)))


def _gflops(product: Callable[[], object]) -> tuple[float, float]:
    product()
    times: list[float] = []
    end = time.perf_counter() + PRODUCT_S
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        product()
        times.append(time.perf_counter() - began)
    operations = 2.0 * ROWS * OUTPUTS * INPUTS / 1e9
    return operations / quantile(times, 0.5), operations / min(times)


if __name__ == "__main__":
    print(json.dumps(asdict(measure(cores()))))
