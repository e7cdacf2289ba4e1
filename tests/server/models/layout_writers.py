"""Writes linear layers in published layouts, for whole models; `recorded/` has what the tools themselves write.

Each function takes a weight [outputs, inputs] and gives the tensors of the layer by name, and the weight that they
stand for in float32. `LAYOUTS` has the `quantization_config` of each.
"""

import json
from collections.abc import Callable
from typing import Any

import torch

GROUP, BLOCK = 32, [64, 128]
Tensors = dict[str, torch.Tensor]
Written = tuple[Tensors, torch.Tensor]


def words_of(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Whole numbers [rows, n] to int32 [rows, n * bits / 32]: the first number has the lowest bits."""
    each = 32 // bits
    shifted = numbers.long().view(len(numbers), -1, each) << torch.arange(0, 32, bits)
    total = shifted.sum(dim=2)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def in_groups(weight: torch.Tensor, bits: int, group: int, *, symmetric: bool) -> tuple[torch.Tensor, ...]:
    """numbers [outputs, inputs], scales and zeros [outputs, groups], and the weight that they stand for."""
    x = weight.float().view(len(weight), -1, group)
    top = 2**bits - 1
    low, high = x.amin(2).clamp(max=-1e-4), x.amax(2).clamp(min=1e-4)
    scales = x.abs().amax(2).clamp(min=1e-4) / (top // 2) if symmetric else (high - low) / top
    scales = scales.half().float()
    zeros = torch.full_like(scales, 2 ** (bits - 1)) if symmetric else (-low / scales).round().clamp(1, top)
    numbers = (x / scales[..., None] + zeros[..., None]).round().clamp(0, top)
    return numbers.flatten(1), scales, zeros, ((numbers - zeros[..., None]) * scales[..., None]).flatten(1)


def awq(weight: torch.Tensor) -> Written:
    numbers, scales, zeros, exact = in_groups(weight, 4, GROUP, symmetric=False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def packed(rows: torch.Tensor) -> torch.Tensor:
        return words_of(rows.view(len(rows), -1, 8)[..., order].flatten(1), 4)

    tensors = {"qweight": packed(numbers.T.contiguous()), "qzeros": packed(zeros.T.contiguous())}
    return tensors | {"scales": scales.T.half()}, exact


def gptq(bits: int, offset: int = 1, *, act_order: bool = False) -> Callable[[torch.Tensor], Written]:
    def write(weight: torch.Tensor) -> Written:
        inputs = weight.shape[1]
        order = torch.randperm(inputs) if act_order else torch.arange(inputs)
        numbers, scales, zeros, exact = in_groups(weight[:, order], bits, GROUP, symmetric=False)
        back = order.argsort()
        tensors = {
            "qweight": words_of(numbers[:, back], bits).T,
            "qzeros": words_of(zeros.T - offset, bits),
            "scales": scales.T.half(),
            "g_idx": (back // GROUP).to(torch.int32),
        }
        return tensors, exact[:, back]

    return write


def packed_ints(
    bits: int, *, symmetric: bool, group: int = GROUP, act_order: bool = False
) -> Callable[[torch.Tensor], Written]:
    def write(weight: torch.Tensor) -> Written:
        inputs = weight.shape[1]
        order = torch.randperm(inputs) if act_order else torch.arange(inputs)
        size = inputs if group < 0 else group
        numbers, scales, zeros, exact = in_groups(weight[:, order], bits, size, symmetric=symmetric)
        back = order.argsort()
        tensors = {
            "weight_packed": words_of(numbers[:, back], bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words_of(zeros.T, bits).T
        if act_order:
            tensors["weight_g_idx"] = (back // size).to(torch.int32)
        return tensors, exact[:, back]

    return write


def int8_rows(weight: torch.Tensor) -> Written:
    scales = weight.float().abs().amax(1, keepdim=True) / 127
    numbers = (weight / scales).round()
    return {"weight": numbers.to(torch.int8), "weight_scale": scales}, numbers * scales


def float8(strategy: str, name: str = "weight_scale") -> Callable[[torch.Tensor], Written]:
    def write(weight: torch.Tensor) -> Written:
        rows, columns = {"tensor": tuple(weight.shape), "channel": (1, weight.shape[1]), "block": tuple(BLOCK)}[
            strategy
        ]
        parts = [
            [part.abs().amax() / 448 for part in torch.split(strip, columns, 1)]
            for strip in torch.split(weight.float(), rows)
        ]
        scales = torch.stack([torch.stack(strip) for strip in parts])
        wide = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: len(weight), : weight.shape[1]]
        numbers = (weight.float() / wide).to(torch.float8_e4m3fn)
        stored = scales.reshape(1) if strategy == "tensor" else scales
        return {"weight": numbers, name: stored}, numbers.float() * wide

    return write


def nf4(weight: torch.Tensor) -> Written:
    codebook = torch.tensor(
        [
            -1.0,
            -0.6962,
            -0.5251,
            -0.3949,
            -0.2844,
            -0.1848,
            -0.0911,
            0.0,
            0.0796,
            0.1609,
            0.2461,
            0.3379,
            0.4407,
            0.5626,
            0.723,
            1.0,
        ]
    )
    x = weight.float().view(-1, 64)
    tops = x.abs().amax(1)
    numbers = ((x / tops[:, None])[..., None] - codebook).abs().argmin(-1)
    flat = numbers.flatten()
    octets = (flat[::2] << 4 | flat[1::2]).to(torch.uint8)[:, None]
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)})
    tensors = {
        "weight": octets,
        "weight.absmax": tops,
        "weight.quant_map": codebook,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(state.encode()), dtype=torch.uint8),
    }
    return tensors, (codebook[numbers] * tops[:, None]).view(weight.shape)


def row_int8(weight: torch.Tensor) -> Written:
    tops = weight.float().abs().amax(1)
    numbers = (weight / tops[:, None] * 127).round()
    return {"weight": numbers.to(torch.int8), "SCB": tops}, numbers * (tops[:, None] / 127)


def _compressed(kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
_INT4: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
_FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float"}
LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], Written], dict[str, Any]]] = {
    "awq": (awq, _AWQ),
    "gptq": (gptq(4), _GPTQ),
    "gptq-act-order": (gptq(4, act_order=True), _GPTQ | {"desc_act": True}),
    "gptq-8": (gptq(8), _GPTQ | {"bits": 8}),
    "gptq-v2": (gptq(4, 0), _GPTQ | {"checkpoint_format": "gptq_v2"}),
    "compressed-int4": (packed_ints(4, symmetric=True), _compressed("pack-quantized", **_INT4)),
    "compressed-int4-asymmetric": (
        packed_ints(4, symmetric=False),
        _compressed("pack-quantized", **_INT4, symmetric=False),
    ),
    "compressed-int4-channel": (
        packed_ints(4, symmetric=True, group=-1),
        _compressed("pack-quantized", num_bits=4, strategy="channel"),
    ),
    "compressed-int4-act-order": (
        packed_ints(4, symmetric=True, act_order=True),
        _compressed("pack-quantized", **_INT4, actorder="group"),
    ),
    "compressed-int8": (packed_ints(8, symmetric=True), _compressed("pack-quantized", **_INT4 | {"num_bits": 8})),
    "compressed-w8a8": (int8_rows, _compressed("int-quantized", num_bits=8, strategy="channel")),
    "compressed-float8": (float8("channel"), _compressed("float-quantized", **_FLOAT8, strategy="channel")),
    "compressed-float8-tensor": (float8("tensor"), _compressed("float-quantized", **_FLOAT8, strategy="tensor")),
    "compressed-float8-block": (
        float8("block"),
        _compressed("float-quantized", **_FLOAT8, strategy="block", block_structure=BLOCK),
    ),
    "fp8-block": (
        float8("block", "weight_scale_inv"),
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": BLOCK},
    ),
    "bitsandbytes-nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "bitsandbytes-int8": (row_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
}
