"""Compiles native.c once for each instruction set: with the `ziglang` package, which needs no compiler, or with `cc`.

A script: it runs before this package can be imported.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE, BUILT = HERE / "native.c", HERE / "built"
# No contraction: the source says which products are fused with a sum, so that it is the same for any number of rows.
FLAGS = [
    "-O3", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-Wall", "-Wextra", "-g0", "-ffp-contract=off",
    "-fno-strict-aliasing",
]  # fmt: skip
GLIBC = "2.31"


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`needs`: the flags (x86-64) or features (aarch64) in /proc/cpuinfo that these kernels require.

    `slow_with`: a CPU that has all of these computes faster with the next set that it has; empty: none does.
    """

    name: str
    machine: str
    needs: frozenset[str]
    zig_cpu: str
    cc_flags: tuple[str, ...]
    slow_with: frozenset[str] = frozenset()

    def is_for(self, flags: set[str]) -> bool:
        """Whether a CPU with `flags` should use these kernels by itself, if no better set is for it."""
        return self.needs <= flags and not (self.slow_with and self.slow_with <= flags)

    @property
    def library(self) -> Path:
        return HERE / self.file_name

    @property
    def file_name(self) -> str:
        return f"libslipway-{self.name}.so"


def _x86(name: str, needs: str, zig_cpu: str, *cc_flags: str, slow_with: str = "") -> InstructionSet:
    return InstructionSet(name, "x86_64", frozenset(needs.split()), zig_cpu, cc_flags, frozenset(slow_with.split()))


AMX = "amx_tile"  # a process needs Linux's permission for it
_AVX512, _V3, _V4 = "avx512f avx512bw avx512vl avx512dq", "-march=x86-64-v3", "-march=x86-64-v4"
# Sapphire Rapids and later Xeons compute half as many products in bf16 by vdpbf16ps as in float32 by FMA (measured on
# Emerald Rapids: 166 and 306 GFLOP/s on two cores). They are meant to use AMX, which a hypervisor may hide.
_SLOW_PAIRS = "GenuineIntel avx512_fp16"
# The first one that a CPU has, and is not slow on it, is the best one for it.
INSTRUCTION_SETS = (
    _x86(
        "amx", f"{_AVX512} avx512_bf16 avx512_vnni {AMX} amx_bf16 amx_int8",
        "x86_64_v4+avx512bf16+avx512vnni+amx_tile+amx_bf16+amx_int8",
        _V4, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8",
    ),
    _x86(
        "avx512_bf16", f"{_AVX512} avx512_bf16 avx512_vnni", "x86_64_v4+avx512bf16+avx512vnni",
        _V4, "-mavx512bf16", "-mavx512vnni", slow_with=_SLOW_PAIRS,
    ),
    _x86("avx512_vnni", f"{_AVX512} avx512_vnni", "x86_64_v4+avx512vnni", _V4, "-mavx512vnni"),
    _x86("avx512", _AVX512, "x86_64_v4", _V4),
    _x86("avx_vnni", "avx2 fma bmi2 avx_vnni", "x86_64_v3+avxvnni", _V3, "-mavxvnni"),
    _x86("avx2", "avx2 fma bmi2", "x86_64_v3", _V3),
    InstructionSet("neon", "aarch64", frozenset({"asimddp"}), "generic+v8_2a+dotprod", ("-march=armv8.2-a+dotprod",)),
)  # fmt: skip


def main() -> int:
    """Builds the libraries for this machine, and returns the exit status.

    Instruction sets whose flags the compiler does not know are left out.
    """
    if not wanted():
        print("the C kernels are for Linux on x86-64 and aarch64: torch computes the models here")
        BUILT.touch()
        return 0
    if compiler() is None:
        print("no compiler for the C kernels: pip install ziglang, or install cc", file=sys.stderr)
        return 1
    built = [path.stem.removeprefix("libslipway-") for path in compile_all(HERE)]
    print(f"built the C kernels for {', '.join(built)}")
    BUILT.write_text("\n".join(built) + "\n")
    return 0 if built else 1


def wanted() -> list[InstructionSet]:
    """The instruction sets of this machine; none where the C kernels cannot run."""
    return [each for each in INSTRUCTION_SETS if each.machine == platform.machine() and platform.system() == "Linux"]


def compile_all(folder: Path) -> list[Path]:
    """Compiles the libraries for this machine into `folder`, and returns the files that could be built."""
    return [folder / each.file_name for each in wanted() if compile_library(each, folder / each.file_name)]


def wheel_platform() -> str:
    """The platform tag of a wheel with these libraries (PEP 600)."""
    if "ziglang" in (compiler() or ()):
        return f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
    return f"linux_{platform.machine()}"


def compile_library(kind: InstructionSet, to: Path, *more: str) -> bool:
    """Compiles one library to the file `to`. Returns False if that failed; the compiler prints why."""
    found = compiler()
    if found is None:
        return False
    flags = list(kind.cc_flags)
    if "ziglang" in found:
        # -Werror, because the version of this compiler is known: others may warn of correct code.
        flags = ["-Werror", "-target", f"{kind.machine}-linux-gnu.{GLIBC}", f"-mcpu={kind.zig_cpu}"]
    with tempfile.TemporaryDirectory(dir=to.parent) as folder:
        # Written to a temporary file and renamed: a concurrent import gets the old or the new library.
        made = Path(folder) / to.name
        command = [*found, *FLAGS, *flags, *more, "-o", str(made), str(SOURCE), "-lm", "-lpthread"]
        if subprocess.run(command, env=dict(os.environ) | _caches()).returncode:
            return False
        made.chmod(0o755)
        made.replace(to)
    return True


def compiler() -> list[str] | None:
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    found = os.environ.get("CC") or shutil.which("cc")
    return [found] if found else None


def _caches() -> dict[str, str]:
    """Environment variables that let all instruction sets share zig's cache of its own libraries."""
    folder = Path(tempfile.gettempdir()) / f"slipway-zig-{os.getuid()}"
    return {"ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}


if __name__ == "__main__":
    sys.exit(main())
