"""One module for each format: it loads a file with its own runtime and describes it.

Only the process of a model imports them, and only the one that it needs.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Protocol

from slipway_process import cuda_stubs
from slipway_process.model_folder.classic import LIGHTGBM, ONNX, PAIRS, SKOPS, TEXTS, TRANSFORMERS, XGBOOST
from slipway_process.termination import needs_torch

from ..description import ModelDescription
from ..tensors import Tensor

IMAGES = "images"  # no model: what decodes images for one, in a process of the same kind
# By format, those that do without torch.
RUNTIMES = {ONNX: "onnxruntime", XGBOOST: "xgboost", LIGHTGBM: "lightgbm", SKOPS: "skops", IMAGES: "pillow"}
MODULES = {
    ONNX: "onnx_model",
    XGBOOST: "xgboost_model",
    LIGHTGBM: "lightgbm_model",
    SKOPS: "skops_model",
    TRANSFORMERS: "transformers_model",
    TEXTS: "text_model",
    PAIRS: "text_pair_model",
    IMAGES: "image_decoder",
}


class ModelError(Exception):
    """Why a file cannot be served: one sentence for a person."""


class LoadedModel(Protocol):
    """A loaded model. `run` computes the outputs that are named, for the rows of its inputs."""

    description: ModelDescription

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]: ...


class Loader(Protocol):
    """A module of a format: importing it imports the runtime, and nothing of the model."""

    def load(self, path: Path, threads: int) -> LoadedModel: ...


def loader(name: str) -> Loader:
    """Import the module of a format. Raises ModelError where its runtime is not installed."""
    try:
        with contextlib.nullcontext() if name in RUNTIMES else cuda_stubs.for_torch():
            module: Loader = importlib.import_module(f"{__name__}.{MODULES[name]}")
    except ImportError as error:
        if name not in RUNTIMES:
            raise ModelError(needs_torch(f"The format {TRANSFORMERS}", "server,predict", str(error))) from None
        raise ModelError(f"The format {name} needs {RUNTIMES[name]}: install slipway[predict] ({error}).") from None
    return module


class AbsentPackage:
    """A finder of imports that fails those of one package, as where it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide(name: str) -> None:
    """From now on this process cannot import the package."""
    sys.meta_path.insert(0, AbsentPackage(name))
