"""compressed-tensors' `pack-quantized` layout: words of neighbouring inputs, numbers from the lowest one on.

A number q of `bits` bits is stored as q + 2^(bits - 1), and a zero point too, in words of neighbouring outputs. Source:
`compressors/pack_quantized` of compressed-tensors 0.20.1.
"""

import torch

from slipway_process.model_folder.quantization.schemes import PackedInts

from ...kernels.weights import Weight
from .tensors import LayerTensors
from .words import numbers_in, ordered

# A word of stored zero points that are all 0, as int32.
ZERO_WORDS = {4: 0x88888888 - 2**32, 8: 0x80808080 - 2**32}


def read(scheme: PackedInts, layer: LayerTensors) -> Weight:
    """Raises UnreadableWeight."""
    bits, groups, outputs, inputs = scheme.bits, layer.groups(scheme.group), layer.outputs, layer.inputs
    each = 32 // bits
    if layer.has("weight_shape"):
        shape = layer.take("weight_shape", ("I64", "I32"), (2,)).tolist()
        layer.check("weight_shape", f"says {shape}, and config.json {[outputs, inputs]}", shape == [outputs, inputs])
    scales = layer.scales("weight_scale", (outputs, groups))
    zeros = torch.full_like(scales, 2 ** (bits - 1), dtype=torch.uint8)
    if not scheme.symmetric:
        words = layer.take("weight_zero_point", ("I32",), (-(-outputs // each), groups))
        zeros = numbers_in(words.T, bits)[:, :outputs].T
    group_of = _groups_of_inputs(scheme, layer, groups)
    words = layer.take("weight_packed", ("I32",), (outputs, -(-inputs // each)))
    layer.drop("input_scale", "input_zero_point")
    layer.drop_zeros("weight_zero_point", ZERO_WORDS[bits])
    return ordered(numbers_in(words, bits)[:, :inputs], scales, zeros, group_of, bits)


def _groups_of_inputs(scheme: PackedInts, layer: LayerTensors, groups: int) -> torch.Tensor | None:
    """The group of each input, [inputs] int64; None where neighbours are a group."""
    if not layer.has("weight_g_idx"):
        layer.check("weight_g_idx", "is missing, and config.json says actorder", not scheme.act_order)
        return None
    group_of = layer.take("weight_g_idx", ("I32", "I64"), (layer.inputs,)).long()
    if bool((group_of == -1).all()):  # the tool's mark for none
        return None
    inside = bool(((group_of >= 0) & (group_of < groups)).all())
    layer.check("weight_g_idx", f"names a group that is none of {groups}", inside)
    return group_of
