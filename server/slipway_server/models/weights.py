"""Reads the tensors of a folder's safetensors files by name. Each is read when it is taken, and only once."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open

from slipway_process.model_folder.checkpoint import weight_files


class MissingWeight(Exception):
    """The folder lacks a tensor that the architecture has."""


class WrongShape(Exception):
    """A tensor does not have the shape that config.json implies."""


class CheckpointWeights:
    """The tensors of a model folder that were not taken yet. A context manager: leaving it closes the files."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Opens the files. Tensors are read directly to `device`, without a copy in the host's memory for a GPU."""
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

    def take(self, name: str) -> torch.Tensor:
        """Reads a tensor and removes its name from the ones that are left. Raises MissingWeight."""
        if name not in self._where:
            raise MissingWeight(name)
        tensor: torch.Tensor = self._where.pop(name).get_tensor(name)
        return tensor

    def take_if_there(self, name: str) -> torch.Tensor | None:
        return self.take(name) if self.has(name) else None
