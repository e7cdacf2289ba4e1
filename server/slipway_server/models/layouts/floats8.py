"""float8 (e4m3) with scales, as compressed-tensors (`float-quantized`), DeepSeek and Qwen (`weight_scale_inv`) publish.

`weight_scale_inv` is what numbers are multiplied by, whatever its name says. Sources: `compressors/naive_quantized` of
compressed-tensors 0.20.1, `integrations/finegrained_fp8.py` of transformers.
"""

import torch

from slipway_process.model_folder.quantization.schemes import Floats8

from ...kernels.weights import Weight
from .tensors import LayerTensors


def read(scheme: Floats8, layer: LayerTensors) -> Weight:
    """[outputs, inputs] float32. Raises UnreadableWeight."""
    outputs, inputs = layer.outputs, layer.inputs
    if scheme.strategy == "tensor":
        scales = layer.scales(scheme.scale, (), (1,), (1, 1)).reshape(1, 1)
    elif scheme.strategy == "channel":
        scales = layer.scales(scheme.scale, (outputs, 1), (outputs,)).reshape(-1, 1)
    else:
        rows, columns = scheme.block
        scales = layer.scales(scheme.scale, (-(-outputs // rows), -(-inputs // columns)))
    layer.drop("input_scale")
    layer.drop_zeros("weight_zero_point")
    numbers = layer.take("weight", ("F8_E4M3",), (outputs, inputs)).float()
    if scheme.strategy == "block":
        return _times_blocks(numbers, scales, scheme.block)
    return numbers.mul_(scales)


def _times_blocks(numbers: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The last blocks of a row or a column may be smaller."""
    rows, columns = block[0], min(block[1], numbers.shape[1])  # a stranger's block may be far wider than a row
    wide = scales.repeat_interleave(columns, dim=1)[:, : numbers.shape[1]]
    for at, row in enumerate(wide):
        numbers[at * rows : (at + 1) * rows].mul_(row)
    return numbers
