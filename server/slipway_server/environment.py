"""Environment variables that are not settings: those of child processes, and the path of the termination log.

Only this module and the settings read the environment.
"""

import contextlib
import os
from collections.abc import Container, Iterator
from pathlib import Path

KERNELS = "SLIPWAY_KERNELS"  # as --kernels; the HTTP process sets it for the engine process
LOG_LEVEL = "SLIPWAY_LOG_LEVEL"  # as --log-level; likewise
CUDA_STUBS = "SLIPWAY_CUDA_STUBS"  # auto or off


def termination_log() -> str:
    """The file of the container's termination message; "" for the kubelet's default."""
    return os.environ.get("SLIPWAY_TERMINATION_LOG", "")


# --- the engine process -----------------------------------------------------------------------------------------------


def engine_threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def cuda_stubs() -> bool:
    """Whether stubs may stand in for CUDA's libraries on a machine without a driver."""
    return os.environ.get(CUDA_STUBS, "auto") != "off"


def kernels() -> str:
    return os.environ.get(KERNELS) or "auto"


def log_level() -> str:
    return os.environ.get(LOG_LEVEL, "info")


def for_engine(threads: int, kernels: str = "auto", log_level: str = "info") -> dict[str, str]:
    """The engine process's environment. The HTTP process shares its cores: spinning threads would starve it."""
    defaults = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    package_root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    fixed = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": paths, KERNELS: kernels, LOG_LEVEL: log_level}
    return defaults | dict(os.environ) | fixed


def for_grammars() -> dict[str, str]:
    """The grammar process's environment: that of the engine process, which starts it."""
    return dict(os.environ) | {"OMP_NUM_THREADS": "1"}


# --- texts -----------------------------------------------------------------------------------------------------------


def one_tokenizer_thread() -> None:
    """Has the tokenizer's library work in the thread that calls it: it would start a thread for each core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def for_texts() -> dict[str, str]:
    """The whole environment of a process that renders and tokenizes: it holds no credentials and no addresses."""
    return for_model(1) | {"TOKENIZERS_PARALLELISM": "false"}


# --- the process of a classic model ----------------------------------------------------------------------------------

_OF_MODELS = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", CUDA_STUBS)


def for_model(threads: int) -> dict[str, str]:
    """The whole environment of a classic model's process: it holds no credentials and no addresses."""
    package_root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    kept = {name: os.environ[name] for name in _OF_MODELS if name in os.environ}
    pools = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    # onnxruntime reports its use to its maker unless it is switched off.
    fixed = {"HOME": "/nonexistent", "JOBLIB_MULTIPROCESSING": "0", "ORT_DISABLE_TELEMETRY": "1"}
    fixed |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    # torch makes a folder for a cache that it does not use here; a folder that exists needs no right to write.
    fixed["TORCHINDUCTOR_CACHE_DIR"] = "/"
    return kept | pools | fixed | {"PYTHONPATH": paths}


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
