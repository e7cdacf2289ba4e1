"""One module for each format: it loads a file with its own runtime and describes it.

Only the process of a model imports them, and only the one that it needs.
"""

import contextlib
import importlib
import importlib.util
from pathlib import Path
from typing import Protocol

from ... import cuda_stubs
from ...installed import needs_torch
from ..description import ModelDescription
from ..model_file import LIGHTGBM, ONNX, PAIRS, SKOPS, TEXTS, TRANSFORMERS, XGBOOST
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
