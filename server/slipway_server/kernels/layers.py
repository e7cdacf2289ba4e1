"""A layer of a decoder as operations, and layers one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .api import Attention, Batch, Layers, Linear, Map


@dataclass(frozen=True, slots=True)
class Layer:
    """Some families have a norm after attention and MLP too, before each is added."""

    norm_in: Map
    qkv: Linear
    attention: Attention
    out: Linear
    norm_mlp: Map
    gated: Map
    down: Linear
    norm_attended: Map | None = None
    norm_mixed: Map | None = None

    def __call__(self, x: torch.Tensor, batch: Batch, rows: torch.Tensor | None = None) -> torch.Tensor:
        """[T, hidden] to the same, or to these rows of it; what later tokens need of the others is in the cache."""
        attended = self.attention(self.qkv(self.norm_in(x)), batch)
        if rows is not None:
            x, attended = x[rows], attended[rows]
        x = _add(x, attended, self.out, self.norm_attended)
        return _add(x, self.gated(self.norm_mlp(x)), self.down, self.norm_mixed)


def _add(x: torch.Tensor, y: torch.Tensor, linear: Linear, norm: Map | None) -> torch.Tensor:
    return linear(y, x) if norm is None else x + norm(linear(y))


def in_sequence(layers: Sequence[Layer]) -> Layers:
    """Operation after operation."""

    def apply(x: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in layers[:-1]:
            x = layer(x, batch)
        return layers[-1](x, batch, batch.rows)

    return apply
