"""Environment variables that are not settings: those of isolated child processes, and the path of the termination log.

Besides this module and the settings, only the engine's own `environment` reads the environment.
"""

import contextlib
import os
from collections.abc import Collection, Container, Iterator
from pathlib import Path

CUDA_STUBS = "SLIPWAY_CUDA_STUBS"  # auto or off
_OF_MODELS = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", CUDA_STUBS)


def termination_log() -> str:
    """The file of the container's termination message; "" for the kubelet's default."""
    return os.environ.get("SLIPWAY_TERMINATION_LOG", "")


def cuda_stubs() -> bool:
    """Whether stubs may stand in for CUDA's libraries on a machine without a driver."""
    return os.environ.get(CUDA_STUBS, "auto") != "off"


def python_path(root: Path) -> str:
    """PYTHONPATH of a child process that runs a module below `root`, the folder of this program's package."""
    return os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))


def for_isolated(threads: int, root: Path) -> dict[str, str]:
    """The whole environment of a process that works on what strangers sent: no credentials and no addresses."""
    kept = {name: os.environ[name] for name in _OF_MODELS if name in os.environ}
    pools = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    # onnxruntime reports its use to its maker unless it is switched off.
    fixed = {"HOME": "/nonexistent", "JOBLIB_MULTIPROCESSING": "0", "ORT_DISABLE_TELEMETRY": "1"}
    fixed |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    # torch makes a folder for a cache that it does not use here; a folder that exists needs no right to write.
    fixed["TORCHINDUCTOR_CACHE_DIR"] = "/"
    return kept | pools | fixed | {"PYTHONPATH": python_path(root)}


def without(names: Collection[str]) -> dict[str, str]:
    """The environment of a child process that gets all of this one's variables but these."""
    return {name: value for name, value in os.environ.items() if name not in names}


@contextlib.contextmanager
def hidden(kept: Container[str]) -> Iterator[None]:
    """Removes all variables but `kept` within the context, from a library that reads its settings from there."""
    before = dict(os.environ)
    for name in before:
        if name not in kept:
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)
