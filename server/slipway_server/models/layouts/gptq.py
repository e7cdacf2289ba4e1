"""GPTQ's layout: words of neighbouring inputs for each output; zero points in words of neighbouring outputs.

Source: `auto_gptq/nn_modules/qlinear/qlinear_cuda.py` of AutoGPTQ 0.7.1, and GPTQModel's `gptq_v2`, whose zero points
are stored as they are; before, they are stored less one.
"""

import torch

from slipway_process.model_folder.quantization.schemes import Gptq

from ...kernels.weights import Weight
from .tensors import LayerTensors
from .words import numbers_in, ordered


def read(scheme: Gptq, layer: LayerTensors) -> Weight:
    """Raises UnreadableWeight."""
    bits, groups = scheme.bits, layer.groups(scheme.group)
    each = 32 // bits
    right = layer.inputs % each == 0 and layer.outputs % each == 0
    layer.check("qweight", f"cannot hold [{layer.outputs}, {layer.inputs}] in whole words", right)
    group_of = _groups_of_inputs(scheme, layer, groups)
    scales = layer.scales("scales", (groups, layer.outputs))
    zeros = numbers_in(layer.take("qzeros", ("I32",), (groups, layer.outputs // each)), bits)
    zeros = (zeros + scheme.zero_offset) & (2**bits - 1)
    words = layer.take("qweight", ("I32",), (layer.inputs // each, layer.outputs))
    numbers = numbers_in(words[..., None], bits).transpose(0, 1).flatten(1)
    return ordered(numbers, scales.T, zeros.T, group_of, bits)


def _groups_of_inputs(scheme: Gptq, layer: LayerTensors, groups: int) -> torch.Tensor | None:
    """The group of each input, [inputs] int64; None where neighbours are a group."""
    if not layer.has("g_idx"):
        layer.check("g_idx", "is missing, and config.json says desc_act", not scheme.act_order)
        return None
    group_of = layer.take("g_idx", ("I32", "I64"), (layer.inputs,)).long()
    inside = bool(((group_of >= 0) & (group_of < groups)).all())
    layer.check("g_idx", f"names a group that is none of {groups}", inside)
    return group_of
