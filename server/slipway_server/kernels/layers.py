"""All layers of a decoder as one function, operation after operation."""

from collections.abc import Sequence

import torch

from .api import Batch, Layer, Layers


def in_sequence(layers: Sequence[Layer]) -> Layers:
    """Operation after operation."""

    def apply(x: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in layers[:-1]:
            x = layer(x, batch)
        return layers[-1](x, batch, batch.rows)

    return apply
