"""Compiles native.c beside itself: with the `ziglang` package, which needs no compiler on the machine, or with `cc`.

A script: it runs before this package can be imported.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE, LIBRARY = HERE / "native.c", HERE / "libslipway.so"
FLAGS = ["-O3", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-g0"]
ZIG_FLAGS = ["-target", "x86_64-linux-gnu.2.31", "-mcpu=x86_64_v4+avx512bf16+avx512vnni"]
CC_FLAGS = ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"]


def main() -> int:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("the C kernels are for Linux on x86-64: torch computes the models here")
        LIBRARY.touch()
        return 0
    compiler = find_compiler()
    if compiler is None:
        print("no compiler for the C kernels: pip install ziglang, or install cc", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        # Written to a temporary file and renamed: a concurrent import gets the old or the new library.
        made = Path(folder) / LIBRARY.name
        caches = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
        done = subprocess.run([*compiler, "-o", made, SOURCE, "-lm", "-lpthread"], env=dict(os.environ) | caches)
        if done.returncode == 0:
            made.chmod(0o755)
            made.replace(LIBRARY)
            print(f"built {LIBRARY.name}")
    return done.returncode


def find_compiler() -> list[str] | None:
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", *FLAGS, *ZIG_FLAGS]
    found = os.environ.get("CC") or shutil.which("cc")
    return [found, *FLAGS, *CC_FLAGS] if found else None


if __name__ == "__main__":
    sys.exit(main())
