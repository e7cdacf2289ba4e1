"""The weight of a linear layer, however it is stored."""

import torch

from slipway_process.model_folder.quantization.schemes import (
    Awq,
    Codebook4,
    Floats8,
    Gptq,
    PackedInts,
    Quantization,
    RowInt8,
    Scheme,
    WholeNumbers,
)

from ...kernels.weights import GroupedInt4, Weight
from . import awq, bitsandbytes, floats8, gptq, packed_ints, whole_numbers
from .tensors import LayerTensors, UnreadableWeight

# The dtypes of a weight that is not quantized.
PLAIN = ("F64", "F32", "F16", "BF16")


def read_weight(quantization: Quantization | None, layer: LayerTensors) -> Weight:
    """[outputs, inputs], as it is stored, or in float32 where the stored layout has no place in memory.

    Raises:
        UnreadableWeight: the tensors of the layer are not those of a scheme in config.json, or hold what it excludes.
    """
    if layer.dtype("weight") in PLAIN:
        return layer.take("weight", PLAIN, (layer.outputs, layer.inputs))
    schemes = [] if quantization is None else [each for each in quantization.schemes if _is_of(each, layer)]
    if not schemes:
        kind = layer.dtype("weight")
        stored = f"has a weight of type {kind[:16]}" if kind else "has no weight"
        raise UnreadableWeight(f"{layer.module} {stored}, which config.json does not explain")
    return _checked(layer, _read(schemes[0], layer))


def _is_of(scheme: Scheme, layer: LayerTensors) -> bool:
    match scheme:
        case Awq() | Gptq():
            return layer.has("qweight")
        case PackedInts(bits=bits):
            if not layer.has("weight_packed"):
                return False
            shape = layer.shape("weight_packed")
            return len(shape) == 2 and shape[1] == -(-layer.inputs * bits // 32)
        case WholeNumbers() | RowInt8():
            return layer.dtype("weight") == "I8"
        case Floats8():
            return layer.dtype("weight") == "F8_E4M3"
        case Codebook4():
            return layer.dtype("weight") == "U8"


def _read(scheme: Scheme, layer: LayerTensors) -> Weight:
    match scheme:
        case Awq():
            return awq.read(scheme, layer)
        case Gptq():
            return gptq.read(scheme, layer)
        case PackedInts():
            return packed_ints.read(scheme, layer)
        case WholeNumbers():
            return whole_numbers.read(scheme, layer)
        case Floats8():
            return floats8.read(scheme, layer)
        case Codebook4():
            return bitsandbytes.read_codebook(scheme, layer)
        case RowInt8():
            return bitsandbytes.read_int8(layer)


def _checked(layer: LayerTensors, weight: Weight) -> Weight:
    numbers = weight.scales if isinstance(weight, GroupedInt4) else weight
    layer.check("weight", "has numbers that are not finite", bool(torch.isfinite(numbers).all()))
    return weight
