"""AutoAWQ's `gemm` layout: inputs are rows, eight outputs lie in a word in an order of their own.

Source: `awq/modules/linear/gemm.py` and `awq/utils/packing_utils.py` of AutoAWQ 0.2.9.
"""

import torch

from slipway_process.model_folder.quantization.schemes import Awq

from ...kernels.weights import Weight
from .tensors import LayerTensors
from .words import grouped, numbers_in

# Where in its word each of eight neighbouring outputs lies.
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def read(scheme: Awq, layer: LayerTensors) -> Weight:
    """Raises UnreadableWeight."""
    groups, words = layer.groups(scheme.group), layer.outputs // 8
    layer.check("qweight", f"cannot hold {layer.outputs} outputs in whole words", layer.outputs % 8 == 0)
    scales = layer.scales("scales", (groups, layer.outputs))
    zeros = _in_order(layer.take("qzeros", ("I32",), (groups, words)))
    numbers = _in_order(layer.take("qweight", ("I32",), (layer.inputs, words)))
    return grouped(numbers.T, scales.T, zeros.T, 4)


def _in_order(words: torch.Tensor) -> torch.Tensor:
    """int32 [rows, outputs / 8] to uint8 [rows, outputs]."""
    eights = numbers_in(words, 4).view(len(words), -1, 8)
    return eights[..., list(PLACES)].flatten(1)
