"""The tensors of one linear layer: which are there, of which dtype and shape, before they are read."""

from dataclasses import dataclass
from typing import Protocol

import torch

FLOATS = ("F32", "BF16", "F16")


class UnreadableWeight(Exception):
    """A tensor is not what its layout says; the message is one sentence without its full stop."""


class Source(Protocol):
    """The tensors of a checkpoint by name."""

    def has(self, name: str) -> bool: ...

    def stored(self, name: str) -> tuple[str, tuple[int, ...]]:
        """dtype, in safetensors' names, and shape, without reading the tensor."""
        ...

    def take(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Those of the layer `module`, such as model.layers.0.mlp.up_proj, which is [outputs, inputs] by config.json."""

    source: Source
    module: str
    outputs: int
    inputs: int

    def has(self, name: str) -> bool:
        return self.source.has(f"{self.module}.{name}")

    def dtype(self, name: str) -> str:
        """As in safetensors; empty without this tensor."""
        return self.source.stored(f"{self.module}.{name}")[0] if self.has(name) else ""

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises UnreadableWeight without this tensor."""
        if not self.has(name):
            raise UnreadableWeight(f"{self.module} lacks {name}")
        return self.source.stored(f"{self.module}.{name}")[1]

    def take(self, name: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> torch.Tensor:
        """Reads a tensor that has one of the dtypes and one of the shapes. Raises UnreadableWeight before it does."""
        shape, dtype = self.shape(name), self.dtype(name)
        if dtype not in dtypes:
            raise UnreadableWeight(f"{self.module}.{name} has numbers of type {dtype[:16]}, not {' or '.join(dtypes)}")
        if shape not in shapes:
            expected = " or ".join(str(list(size)) for size in shapes)
            raise UnreadableWeight(f"{self.module}.{name} is {list(shape)}, and by config.json {expected}")
        return self.source.take(f"{self.module}.{name}")

    def scales(self, name: str, *shapes: tuple[int, ...]) -> torch.Tensor:
        """As `take`, in float32 and finite."""
        scales = self.take(name, FLOATS, *shapes).float()
        self.check(name, "has a scale that is not finite", bool(scales.isfinite().all()))
        return scales

    def drop(self, *names: str) -> None:
        """Takes tensors that have no effect here, if they are there."""
        for name in names:
            if self.has(name):
                self.source.take(f"{self.module}.{name}")

    def drop_zeros(self, name: str, stored: int = 0) -> None:
        """Takes zero points that are none, if they are there: all of them 0, or `stored`.

        Raises UnreadableWeight where they would change numbers, and config.json says symmetric.
        """
        if self.has(name):
            points = self.source.take(f"{self.module}.{name}").double()
            none = bool((points == 0).all() or (points == stored).all())
            self.check(name, "has zero points, and config.json says symmetric", none)

    def check(self, name: str, trouble: str, right: bool) -> None:
        """Raises UnreadableWeight unless it is right."""
        if not right:
            raise UnreadableWeight(f"{self.module}.{name} {trouble}")

    def groups(self, group: int) -> int:
        """How many groups of `group` inputs a row has; -1: one with all of them. Raises UnreadableWeight."""
        group = self.inputs if group < 0 else group
        if self.inputs % group:
            raise UnreadableWeight(f"{self.module} has {self.inputs} inputs, which groups of {group} do not divide")
        return self.inputs // group
