"""Runs the tests of the kernels on the source for AVX-VNNI, with its instructions in AVX512's encoding.

python -m tests.server.kernels.short_vectors
"""

import sys
import tempfile
from pathlib import Path

import pytest

from slipway_server.kernels import native
from slipway_server.kernels.c.build import INSTRUCTION_SETS, compile_library
from slipway_server.kernels.c.library import load

TESTS = ("tests/server/kernels/test_native.py", "tests/server/kernels/test_layers.py")


def main() -> int:
    kind = next(each for each in INSTRUCTION_SETS if each.name == "avx512_vnni")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "short.so"
        if not compile_library(kind, path, "-DSHORT_VECTORS"):
            return 1
        short = load(kind, 2, path)
        assert short.panel == 16, "these are the short vectors"
        native.library = lambda threads: short  # type: ignore[assignment, attr-defined]
        return int(pytest.main([*TESTS, "-q", "-p", "no:randomly"]))


if __name__ == "__main__":
    sys.exit(main())
