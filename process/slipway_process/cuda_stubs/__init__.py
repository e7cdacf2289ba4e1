"""Stub libraries for `import torch` on a machine without an NVIDIA driver.

torch from PyPI loads CUDA's libraries on such a machine too. Nothing calls them there, but what they touch while they
are loaded is 230 MiB of each process (importing torch takes 307 MiB in place of 533). While torch is imported, the
largest are replaced by stubs with the same names, functions and versions. Their functions return 1, which is an error
in all of these libraries.

torch's build for CPUs (`server.cpuImage` of the chart) has no such libraries: there this finds nothing to replace. It
stays because that image is optional and its build comes from an index without hashes in the lock: what PyPI has, and so
`pip install slipway[server]` and the default image, is the build with CUDA, which must keep the memory bar of
docs/bench.md on nodes without a GPU too.

torch loads the libraries in NVIDIA's packages by path, from the first entry of `sys.path` that has them
(`_preload_cuda_deps` in torch/__init__.py). So an entry with the stubs comes first while it is imported.
"""

import contextlib
import ctypes
import logging
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from slipway_process import environment
from slipway_process.cuda_stubs import elf

log = logging.getLogger("slipway.cuda")

# Those that take more than 5 MiB and export C functions alone. A stub of inline C++ functions could be what other
# libraries find under these names.
LIBRARIES = ("libcublasLt.so.*[0-9]", "libnvJitLink.so.*[0-9]", "libnvrtc.so.*[0-9]", "libcufft.so.*[0-9]")


@contextlib.contextmanager
def for_torch() -> Iterator[None]:
    """Within the context `import torch` loads stubs, unless there is a driver or SLIPWAY_CUDA_STUBS is `off`."""
    with contextlib.ExitStack() as stack:
        if _wanted():
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slipway-cuda-stubs-"))
                if write_stubs(sys.path, Path(folder)):
                    sys.path.insert(0, folder)
                    stack.callback(sys.path.remove, folder)
            except (OSError, ValueError) as error:
                log.warning("torch loads CUDA's libraries, although there is no driver: no stubs were made: %s", error)
        yield


def write_stubs(paths: Sequence[str], folder: Path) -> list[Path]:
    """Writes a stub of each library that one of `paths` has; returns the files.

    Raises:
        OSError: a library cannot be read, or a stub cannot be written.
        ValueError: a file is no ELF-64 library.
    """
    written = []
    for pattern in LIBRARIES:
        found = next(((path, file) for path in paths for file in Path(path).glob(f"nvidia/*/lib/{pattern}")), None)
        if found is None:
            continue
        path, library = found
        stub = folder / library.relative_to(path)
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_bytes(elf.stub_of(elf.exports_of(library), library.name))
        written.append(stub)
    return written


def _wanted() -> bool:
    known = platform.system() == "Linux" and platform.machine() in elf.MACHINES
    return known and "torch" not in sys.modules and environment.cuda_stubs() and not _has_driver()


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
