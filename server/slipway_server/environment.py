"""Environment variables that are no flag's fallback. Only this module and settings.py read the environment."""

import os
from collections.abc import Mapping
from pathlib import Path

KERNELS = "SLIPWAY_KERNELS"  # as --kernels; the HTTP process sets it for the engine process
ALLOW_NETWORKS = "SLIPWAY_FETCHER_ALLOW_NETWORKS"


def log_level() -> str:
    return os.environ.get("SLIPWAY_LOG_LEVEL", "INFO")


def variables() -> Mapping[str, str]:
    """All of them, for libraries with variables of their own."""
    return os.environ


def termination_log() -> str:
    """The file for a container's last words; "" for the kubelet's default."""
    return os.environ.get("SLIPWAY_TERMINATION_LOG", "")


# --- the engine process -----------------------------------------------------------------------------------------------


def engine_threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def kernels() -> str:
    return os.environ.get(KERNELS) or "auto"


def for_engine(threads: int, kernels: str = "auto") -> dict[str, str]:
    """The engine process's environment. The HTTP process shares its cores: spinning threads would starve it."""
    defaults = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    package_root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    fixed = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": paths, KERNELS: kernels}
    return defaults | dict(os.environ) | fixed


# --- the fetcher ------------------------------------------------------------------------------------------------------


def pin_file() -> Path | None:
    path = os.environ.get("SLIPWAY_PIN_FILE")
    return Path(path) if path else None


def allowed_networks() -> list[str]:
    """Networks, separated by commas, that redirects may lead to."""
    return [text.strip() for text in os.environ.get(ALLOW_NETWORKS, "").split(",") if text.strip()]


def hub_endpoint() -> str:
    """Of another hub than huggingface.co; "" for that one."""
    return os.environ.get("HF_ENDPOINT", "")


def hub_token() -> str:
    return os.environ.get("HF_TOKEN", "").strip()
