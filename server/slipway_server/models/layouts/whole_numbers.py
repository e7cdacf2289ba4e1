"""compressed-tensors' `int-quantized` layout: int8 with a scale for each row, or one for all.

Scales of activations (`input_scale`) have no effect: inputs are computed in more bits. Source:
`compressors/naive_quantized` of compressed-tensors 0.20.1.
"""

from slipway_process.model_folder.quantization.schemes import WholeNumbers

from ...kernels.weights import Weight
from .tensors import LayerTensors


def read(scheme: WholeNumbers, layer: LayerTensors) -> Weight:
    """[outputs, inputs] float32. Raises UnreadableWeight."""
    size = (layer.outputs, layer.inputs)
    shapes: tuple[tuple[int, ...], ...] = ((layer.outputs, 1), (layer.outputs,)) if scheme.per_row else ((1,), ())
    scales = layer.scales("weight_scale", *shapes).reshape(-1, 1)
    zeros = None if scheme.symmetric else layer.take("weight_zero_point", ("I8",), *shapes).reshape(-1, 1)
    layer.drop("input_scale", "input_zero_point")
    layer.drop_zeros("weight_zero_point")
    numbers = layer.take("weight", ("I8",), size).float()
    return (numbers if zeros is None else numbers.sub_(zeros)).mul_(scales)
