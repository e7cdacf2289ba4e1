"""Reads the tensors of a folder's safetensors files by name. Each is read when it is taken, and only once."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open

from slipway_process.model_folder.checkpoint import weight_files
from slipway_process.model_folder.quantization.schemes import Quantization

from ..kernels.weights import Weight
from .layouts.reading import read_weight
from .layouts.tensors import LayerTensors


class MissingWeight(Exception):
    """The folder lacks a tensor that the architecture has."""


class WrongShape(Exception):
    """A tensor does not have the shape that config.json implies."""


class CheckpointWeights:
    """The tensors of a model folder that were not taken yet. A context manager: leaving it closes the files."""

    def __init__(self, folder: Path, device: str = "cpu", quantization: Quantization | None = None) -> None:
        """Opens the files. Tensors are read directly to `device`, without a copy in the host's memory for a GPU.

        `quantization`: how linear layers may be stored, by config.json.
        """
        self._quantization = quantization
        self._files = ExitStack()
        self._where: dict[str, Any] = {}  # name → the open file that has it
        for name in weight_files(folder):
            file = self._files.enter_context(safe_open(folder / name, framework="pt", device=device))
            self._where |= dict.fromkeys(file.keys(), file)

    def __enter__(self) -> "CheckpointWeights":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    @property
    def left(self) -> list[str]:
        """Names of tensors that were not taken."""
        return sorted(self._where)

    def has(self, name: str) -> bool:
        return name in self._where

    def stored(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype of a tensor, in safetensors' names, and its shape, without reading it. Raises MissingWeight."""
        if name not in self._where:
            raise MissingWeight(name)
        described = self._where[name].get_slice(name)
        return str(described.get_dtype()), tuple(described.get_shape())

    def take_linear(self, module: str, outputs: int, inputs: int) -> Weight:
        """The weight of the linear layer `module`, [outputs, inputs]. Takes all of its tensors but the bias.

        Raises:
            MissingWeight, WrongShape: of a plain weight.
            UnreadableWeight: of a quantized one.
        """
        name = f"{module}.weight"
        if self._quantization is None and not self.has(name):
            raise MissingWeight(name)
        if self._quantization is None and (shape := self.stored(name)[1]) != (outputs, inputs):
            raise WrongShape(f"{name} is {list(shape)}, and by config.json {[outputs, inputs]}")
        return read_weight(self._quantization, LayerTensors(self, module, outputs, inputs))

    def take(self, name: str) -> torch.Tensor:
        """Reads a tensor and removes its name from the ones that are left. Raises MissingWeight."""
        if name not in self._where:
            raise MissingWeight(name)
        tensor: torch.Tensor = self._where.pop(name).get_tensor(name)
        return tensor

    def take_if_there(self, name: str) -> torch.Tensor | None:
        return self.take(name) if self.has(name) else None
