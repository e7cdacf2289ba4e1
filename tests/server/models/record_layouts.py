"""Writes tests/server/models/recorded/: small linear layers packed and dequantized by the tools that publish them.

To run again, with the tools' packages (no dependencies of theirs) in a folder of its own:
    uv pip install --target DIR --no-deps compressed-tensors==0.20.1 bitsandbytes==0.50.2 autoawq==0.2.9 \
        auto-gptq==0.7.1 loguru==0.7.3
    PYTHONPATH=DIR python -m tests.server.models.record_layouts
AutoAWQ and AutoGPTQ import much that packing does not need: their modules are loaded by path.
"""

import importlib
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

RECORDED = Path(__file__).parent / "recorded"
OUTPUTS, INPUTS, GROUP, BLOCK = 32, 64, 32, [24, 48]
Tensors = dict[str, torch.Tensor]
Layer = tuple[Tensors, torch.Tensor, dict[str, Any]]  # tensors by name, the tool's weight, quantization_config


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    for seed, (name, layer) in enumerate(LAYERS.items()):
        torch.manual_seed(seed)
        tensors, weight, config = layer(torch.randn(OUTPUTS, INPUTS) * 0.05)
        whole = {f"layer.{part}": tensor.contiguous() for part, tensor in tensors.items()}
        about = {"quantization_config": json.dumps(config)}
        save_file(whole | {"dequantized": weight.float().contiguous()}, RECORDED / f"{name}.safetensors", about)


def module(package: str, path: str) -> Any:
    """A module of a package, by its path, without what the package's own __init__ imports."""
    names = path.split("/")
    for parent in (package, *(".".join((package, *names[:count])) for count in range(1, len(names)))):
        if parent not in sys.modules:
            above, _, last = parent.rpartition(".")
            folders = sys.modules[above].__path__ if above else sys.path
            sys.modules[parent] = types.ModuleType(parent)
            sys.modules[parent].__path__ = [
                str(Path(folder, last)) for folder in folders if Path(folder, last).is_dir()
            ]
    return importlib.import_module(".".join((package, *names)))


def ranges(weight: torch.Tensor, bits: int, group: int, *, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points [outputs, groups] of a plain rounding to the range of each group."""
    x = weight.view(len(weight), -1, group)
    if symmetric:
        scales = x.abs().amax(2) / (2 ** (bits - 1) - 1)
        return scales.half().float(), torch.full_like(scales, 2 ** (bits - 1))
    low, high = x.amin(2).clamp(max=0), x.amax(2).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).half().float()
    return scales, (-low / scales).round().clamp(1, 2**bits - 1)


def linear_of(weight: torch.Tensor) -> torch.nn.Linear:
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    linear.weight.data = weight
    return linear


def awq(weight: torch.Tensor) -> Layer:
    packing = module("awq", "utils/packing_utils")
    sys.modules["awq.utils.module"] = stub = types.ModuleType("awq.utils.module")
    stub.try_import = lambda name: (None, "")  # type: ignore[attr-defined]
    sys.modules["awq.utils.utils"] = stub = types.ModuleType("awq.utils.utils")
    stub.get_best_device = lambda: "cpu"  # type: ignore[attr-defined]
    gemm = module("awq", "modules/linear/gemm").WQLinear_GEMM
    scales, zeros = ranges(weight, 4, GROUP, symmetric=False)
    packed = gemm.from_linear(linear_of(weight), 4, GROUP, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    tensors = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales")}
    exact = packing.dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, GROUP).T
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    return tensors, exact, config


def gptq(bits: int, *, symmetric: bool, act_order: bool = False, v2: bool = False) -> Callable[[torch.Tensor], Layer]:
    def layer(weight: torch.Tensor) -> Layer:
        packer = module("auto_gptq", "nn_modules/qlinear/qlinear_cuda").QuantLinear(bits, GROUP, INPUTS, OUTPUTS, False)
        order = torch.randperm(INPUTS) if act_order else torch.arange(INPUTS)
        scales, zeros = ranges(weight[:, order], bits, GROUP, symmetric=symmetric)
        group_of = torch.empty(INPUTS, dtype=torch.int32)
        group_of[order] = torch.arange(INPUTS, dtype=torch.int32) // GROUP
        packer.pack(linear_of(weight), scales, zeros.clone(), group_of)
        packer.scales = packer.scales.float()
        exact = packer(torch.eye(INPUTS)).T
        tensors = {name: getattr(packer, name) for name in ("qweight", "qzeros", "g_idx")}
        tensors["scales"] = packer.scales.half()
        config: dict[str, Any] = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": symmetric}
        config |= {"desc_act": act_order, "damp_percent": 0.1, "true_sequential": True}
        if v2:  # as GPTQModel converts: one more in each zero point
            each = sum(1 << shift for shift in range(0, 32, bits))
            tensors["qzeros"] = tensors["qzeros"] + each
            config["checkpoint_format"] = "gptq_v2"
        return tensors, exact, config

    return layer


def compressed(kind: str, **given: Any) -> Callable[[torch.Tensor], Layer]:
    def layer(weight: torch.Tensor) -> Layer:
        compressors: Any = importlib.import_module("compressed_tensors.compressors")
        quantization: Any = importlib.import_module("compressed_tensors.quantization")
        utils: Any = importlib.import_module("compressed_tensors.quantization.utils")
        args = quantization.QuantizationArgs(**given)
        scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)
        parts = strips(weight, args.strategy, args.group_size)
        scales, zeros = utils.calculate_qparams(parts.amin(-1), parts.amax(-1), args)
        state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
        if given.get("actorder"):
            order = torch.randperm(INPUTS)
            state["weight_g_idx"] = torch.empty(INPUTS, dtype=torch.int32)
            state["weight_g_idx"][order] = torch.arange(INPUTS, dtype=torch.int32) // GROUP
        compressor = compressors.BaseCompressor.get_value_from_registry(kind)
        packed = compressor.compress(state, scheme)
        exact = compressor.decompress(packed, scheme)["weight"]
        group = {"targets": ["Linear"], "weights": args.model_dump(mode="json"), "input_activations": None}
        config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}
        return packed, exact, config | {"ignore": ["lm_head"], "quantization_status": "compressed"}

    return layer


def strips(weight: torch.Tensor, strategy: str, group: Any) -> torch.Tensor:
    """The weight with the numbers that share a scale along the last axis."""
    if strategy == "group":
        return weight.view(OUTPUTS, -1, group)
    if strategy == "channel":
        return weight.view(OUTPUTS, 1, INPUTS)
    if strategy == "tensor":
        return weight.view(1, -1)
    rows, columns = -(-OUTPUTS // BLOCK[0]), -(-INPUTS // BLOCK[1])
    wide = torch.zeros(rows * BLOCK[0], columns * BLOCK[1])
    wide[:OUTPUTS, :INPUTS] = weight
    return wide.view(rows, BLOCK[0], columns, BLOCK[1]).transpose(1, 2).flatten(2)


def deepseek(weight: torch.Tensor) -> Layer:
    """compressed-tensors' blocks, with the name and the config of DeepSeek's and Qwen's repositories."""
    tensors, exact, _ = LAYERS["compressed-float8-block"](weight)
    tensors["weight_scale_inv"] = tensors.pop("weight_scale")
    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": BLOCK}
    return tensors, exact, config


def float8_of_one_scale(weight: torch.Tensor) -> Layer:
    """compressed-tensors' numbers, with the config of AutoFP8's repositories."""
    tensors, exact, _ = LAYERS["compressed-float8-tensor"](weight)
    tensors["input_scale"] = torch.tensor(0.02)
    return tensors, exact, {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}


def bitsandbytes_4bit(kind: str, *, nested: bool = False) -> Callable[[torch.Tensor], Layer]:
    def layer(weight: torch.Tensor) -> Layer:
        bnb: Any = importlib.import_module("bitsandbytes.functional")
        packed, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
        tensors = {"weight": packed} | {f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}
        config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
        config |= {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested, "_load_in_4bit": True}
        config |= {"bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8"}
        return tensors, bnb.dequantize_4bit(packed, state), config

    return layer


def bitsandbytes_int8(weight: torch.Tensor) -> Layer:
    bnb: Any = importlib.import_module("bitsandbytes.functional")
    packed, tops, _ = bnb.int8_vectorwise_quant(weight.half())
    tensors = {"weight": packed, "SCB": tops, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}
    return tensors, bnb.int8_vectorwise_dequant(packed, tops), config


PACK, INT, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
GROUPS: dict[str, Any] = {"num_bits": 4, "strategy": "group", "group_size": GROUP}
FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float"}
LAYERS: dict[str, Callable[[torch.Tensor], Layer]] = {
    "awq": awq,
    "gptq": gptq(4, symmetric=True),
    "gptq-asymmetric": gptq(4, symmetric=False),
    "gptq-act-order": gptq(4, symmetric=False, act_order=True),
    "gptq-8": gptq(8, symmetric=True),
    "gptq-8-act-order": gptq(8, symmetric=True, act_order=True),
    "gptq-v2": gptq(4, symmetric=False, v2=True),
    "compressed-int4": compressed(PACK, **GROUPS),
    "compressed-int4-asymmetric": compressed(PACK, **GROUPS, symmetric=False),
    "compressed-int4-channel": compressed(PACK, num_bits=4, strategy="channel"),
    "compressed-int8": compressed(PACK, **GROUPS | {"num_bits": 8}),
    "compressed-int8-channel": compressed(INT, num_bits=8, strategy="channel"),
    "compressed-int8-tensor-asymmetric": compressed(INT, num_bits=8, strategy="tensor", symmetric=False),
    "compressed-float8-tensor": compressed(FLOAT, **FLOAT8, strategy="tensor"),
    "compressed-float8-channel": compressed(FLOAT, **FLOAT8, strategy="channel"),
    "compressed-float8-block": compressed(FLOAT, **FLOAT8, strategy="block", block_structure=BLOCK),
    "fp8-block": deepseek,
    "fp8-tensor": float8_of_one_scale,
    "bitsandbytes-nf4": bitsandbytes_4bit("nf4"),
    "bitsandbytes-nf4-nested": bitsandbytes_4bit("nf4", nested=True),
    "bitsandbytes-fp4": bitsandbytes_4bit("fp4"),
    "bitsandbytes-int8": bitsandbytes_int8,
}


if __name__ == "__main__":
    main()
