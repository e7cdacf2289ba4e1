"""bitsandbytes' layouts: 4 bits that number a codebook, and int8 with the largest magnitude of each row.

With 4 bits a weight is flattened: two numbers lie in a byte, the first one in its upper half, and blocks of 64 have a
scale each. These scales may be numbers of a second codebook (`nested`). Source: `bitsandbytes/functional.py` of
bitsandbytes 0.50.2 (`QuantState`).
"""

from typing import Annotated, Literal

import msgspec
import torch

from slipway_process.model_folder.quantization.schemes import Codebook4

from ...kernels.weights import Weight
from .tensors import LayerTensors, UnreadableWeight

MOST_STATE_BYTES, MOST_BLOCK, INT8_TOP = 4096, 1 << 20, 127.0

Block = Annotated[int, msgspec.Meta(ge=2, le=MOST_BLOCK)]


class State(msgspec.Struct, frozen=True):
    """The JSON in `weight.quant_state.bitsandbytes__nf4`."""

    quant_type: Literal["nf4", "fp4"]
    blocksize: Block
    shape: tuple[int, int]
    nested_blocksize: Block | None = None
    nested_offset: float = 0.0


def read_codebook(scheme: Codebook4, layer: LayerTensors) -> Weight:
    """[outputs, inputs] float32. Raises UnreadableWeight."""
    outputs, inputs = layer.outputs, layer.inputs
    state = _state(scheme, layer)
    count = outputs * inputs
    whole = count % state.blocksize == 0 and count % 2 == 0
    layer.check("weight", f"cannot hold {count} numbers in whole blocks and bytes", whole)
    scales = _scales(state, layer, count // state.blocksize)
    codebook = layer.scales("weight.quant_map", (16,))
    octets = layer.take("weight", ("U8",), (count // 2, 1), (count // 2,)).flatten()
    numbers = torch.stack((octets >> 4, octets & 15), dim=-1).view(-1, state.blocksize)
    return codebook[numbers.int()].mul_(scales[:, None]).view(outputs, inputs)


def _state(scheme: Codebook4, layer: LayerTensors) -> State:
    name = f"weight.quant_state.bitsandbytes__{scheme.kind}"
    length = layer.shape(name)
    layer.check(name, f"is {list(length)}", len(length) == 1 and 2 <= length[0] <= MOST_STATE_BYTES)
    raw = layer.take(name, ("U8",), length).cpu().numpy().tobytes()
    try:
        state = msgspec.json.decode(raw, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableWeight(f"{layer.module}.{name} makes no sense: {error}") from None
    layer.check(name, f"is of {state.quant_type}", state.quant_type == scheme.kind)
    right = state.shape == (layer.outputs, layer.inputs)
    layer.check(name, f"says {list(state.shape)}, and config.json {[layer.outputs, layer.inputs]}", right)
    finite = abs(state.nested_offset) < torch.finfo(torch.float32).max
    layer.check(name, "has a nested_offset that is not finite", finite)
    return state


def _scales(state: State, layer: LayerTensors, blocks: int) -> torch.Tensor:
    """[blocks] float32."""
    if not layer.has("weight.nested_absmax"):
        return layer.scales("weight.absmax", (blocks,))
    size = state.nested_blocksize
    if size is None:
        raise UnreadableWeight(f"{layer.module}.weight.nested_absmax has no nested_blocksize")
    of_blocks = layer.scales("weight.nested_absmax", (-(-blocks // size),))
    codebook = layer.scales("weight.nested_quant_map", (256,))
    numbers = layer.take("weight.absmax", ("U8",), (blocks,))
    wide = of_blocks.repeat_interleave(size)[:blocks]
    return codebook[numbers.int()].mul_(wide).add_(state.nested_offset)


def read_int8(layer: LayerTensors) -> Weight:
    """[outputs, inputs] float32. Raises UnreadableWeight."""
    if layer.has("weight_format"):
        order = layer.take("weight_format", ("U8",), ()).item()
        layer.check("weight_format", f"is {order}; 0, rows as they are, is read", order == 0)
    tops = layer.scales("SCB", (layer.outputs,))
    numbers = layer.take("weight", ("I8",), (layer.outputs, layer.inputs)).float()
    return numbers.mul_(tops[:, None] / INT8_TOP)
