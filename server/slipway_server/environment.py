"""Environment variables of the engine and its child processes, and the task that selects the program."""

import os
from pathlib import Path

from slipway_process.environment import for_isolated, python_path

KERNELS = "SLIPWAY_KERNELS"  # as --kernels; the HTTP process sets it for the engine process
LOG_LEVEL = "SLIPWAY_LOG_LEVEL"  # as --log-level; likewise
ROOT = Path(__file__).parents[1]


def task() -> str:
    """As --task, which is read before the settings: it selects the program whose settings they are."""
    return os.environ.get("SLIPWAY_TASK", "auto")


def engine_threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def kernels() -> str:
    return os.environ.get(KERNELS) or "auto"


def log_level() -> str:
    return os.environ.get(LOG_LEVEL, "info")


def for_engine(threads: int, kernels: str = "auto", log_level: str = "info") -> dict[str, str]:
    """The engine process's environment. The HTTP process shares its cores: spinning threads would starve it."""
    defaults = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    fixed = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": python_path(ROOT), KERNELS: kernels, LOG_LEVEL: log_level}
    return defaults | dict(os.environ) | fixed


def for_grammars() -> dict[str, str]:
    """The grammar process's environment: that of the engine process, which starts it."""
    return dict(os.environ) | {"OMP_NUM_THREADS": "1"}


def one_tokenizer_thread() -> None:
    """Has the tokenizer's library work in the thread that calls it: it would start a thread for each core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def for_texts() -> dict[str, str]:
    """The whole environment of a process that renders and tokenizes: it holds no credentials and no addresses."""
    return for_isolated(1, ROOT) | {"TOKENIZERS_PARALLELISM": "false"}
