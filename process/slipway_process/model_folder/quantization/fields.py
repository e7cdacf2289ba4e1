"""The fields of `quantization_config` that each tool writes, and the scheme that they mean.

A field that changes numbers has a type here, or is refused. Fields that say how the weights were found, or which
kernels the tool's own engine takes, are listed as `of no effect`. Sources: AutoAWQ's and GPTQModel's `quantize config`,
compressed-tensors' `QuantizationConfig`, transformers' `FineGrainedFP8Config` and `BitsAndBytesConfig`.
"""

from typing import Annotated, Any, Literal

import msgspec

from slipway_process.model_folder.quantization.schemes import (
    WHOLE_ROW,
    Awq,
    Codebook4,
    Floats8,
    Gptq,
    PackedInts,
    RowInt8,
    Scheme,
    WholeNumbers,
)

MOST_GROUP, MOST_GROUPS_OF_CONFIG = 1 << 20, 64
GroupSize = Annotated[int, msgspec.Meta(ge=WHOLE_ROW, le=MOST_GROUP)]
Side = Annotated[int, msgspec.Meta(ge=1, le=MOST_GROUP)]


class NotReadable(Exception):
    """What of a quantization is not read, and what is: the middle of a sentence."""


class _Fields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    quant_method: str = ""


# --- AutoAWQ ----------------------------------------------------------------------------------------------------------


class AwqFields(_Fields, frozen=True):
    bits: int = 4
    group_size: GroupSize = 128
    version: str = "gemm"
    zero_point: bool = True
    # Tensors say it: a layer without quantized tensors is plain.
    modules_to_not_convert: Any = None

    of_no_effect = frozenset({"backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"})

    def schemes(self) -> tuple[Scheme, ...]:
        if self.bits != 4:
            raise NotReadable(f"bits {self.bits} of awq; 4 are read")
        if self.version.lower() != "gemm":
            raise NotReadable(f"version {self.version[:32]!r} of awq; the version 'gemm' is read")
        if not self.zero_point:
            raise NotReadable("zero_point false of awq; true is read")
        return (Awq(_group(self.group_size)),)


# --- AutoGPTQ, GPTQModel ----------------------------------------------------------------------------------------------


class GptqFields(_Fields, frozen=True):
    bits: int = 4
    group_size: GroupSize = 128
    desc_act: bool | None = False
    sym: bool = True
    checkpoint_format: str | None = "gptq"
    format: str | None = None  # newer name of checkpoint_format
    pack_dtype: str | None = "int32"
    dynamic: dict[str, Any] | None = None
    is_marlin_format: bool = False

    of_no_effect = frozenset(
        {"act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs"}
        | {"cache_examples_on_gpu", "damp_auto_increment", "damp_percent", "dataset", "disable_exllama"}
        | {"exllama_config", "hessian", "lm_head", "max_input_length", "meta", "method", "model_file_base_name"}
        | {"model_name_or_path", "model_seqlen", "module_name_preceding_first_block", "mse"}
        | {"modules_in_block_to_quantize", "offload_to_disk", "pad_token_id", "parallel_packing", "static_groups"}
        | {"tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama", "vram_strategy"}
    )

    def schemes(self) -> tuple[Scheme, ...]:
        layout = self.format or self.checkpoint_format or "gptq"
        if self.bits not in (4, 8):
            raise NotReadable(f"bits {self.bits} of gptq; 4 and 8 are read")
        if layout not in ("gptq", "gptq_v2") or self.is_marlin_format:
            raise NotReadable(f"checkpoint_format {layout[:32]!r} of gptq; 'gptq' and 'gptq_v2' are read")
        if self.pack_dtype not in (None, "int32"):
            raise NotReadable(f"pack_dtype {self.pack_dtype[:32]!r} of gptq; 'int32' is read")
        if self.dynamic:
            raise NotReadable("dynamic of gptq, layers with other bits or groups; the same for all layers is read")
        offset: Literal[0, 1] = 0 if layout == "gptq_v2" else 1
        bits: Literal[4, 8] = 4 if self.bits == 4 else 8
        return (Gptq(bits, _group(self.group_size), bool(self.desc_act), offset),)


# --- compressed-tensors -----------------------------------------------------------------------------------------------


class Numbers(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`weights` or `input_activations` of a group."""

    num_bits: int = 8
    type: str = "int"
    strategy: str | None = None
    symmetric: bool = True
    group_size: GroupSize | None = None
    block_structure: Any = None
    dynamic: Any = False
    actorder: str | bool | None = None
    # How the numbers were found, and of which types tensors are: the files say it.
    observer: Any = None
    observer_kwargs: Any = None
    scale_dtype: Any = None
    zp_dtype: Any = None


class ConfigGroup(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    weights: Numbers | None = None
    input_activations: Numbers | None = None
    output_activations: Any = None
    format: str | None = None
    targets: Any = None


class CompressedFields(_Fields, frozen=True):
    format: str = ""
    config_groups: Annotated[dict[str, ConfigGroup], msgspec.Meta(max_length=MOST_GROUPS_OF_CONFIG)] = {}
    kv_cache_scheme: Any = None
    sparsity_config: Any = None
    transform_config: Any = None

    of_no_effect = frozenset({"global_compression_ratio", "ignore", "quantization_status", "version"})

    def schemes(self) -> tuple[Scheme, ...]:
        for name in ("kv_cache_scheme", "transform_config"):
            if getattr(self, name):
                raise NotReadable(f"{name} of compressed-tensors; checkpoints without it are read")
        sparse = self.sparsity_config
        if sparse and not (isinstance(sparse, dict) and sparse.get("format") in (None, "dense")):
            raise NotReadable("sparsity_config of compressed-tensors; dense weights are read")
        if not self.config_groups:
            raise NotReadable("compressed-tensors without config_groups; checkpoints with them are read")
        return tuple(dict.fromkeys(self._scheme(group) for group in self.config_groups.values()))

    def _scheme(self, group: ConfigGroup) -> Scheme:
        kind, weights, inputs = group.format or self.format, group.weights, group.input_activations
        if weights is None or group.output_activations:
            raise NotReadable("a group of compressed-tensors without weights or with output_activations")
        if inputs is not None and inputs.num_bits != 8:
            raise NotReadable(f"input_activations of {inputs.num_bits} bits; 8 bits and none are read")
        if kind == "pack-quantized" and weights.type == "int" and weights.num_bits in (4, 8):
            return _packed(weights)
        if kind in ("int-quantized", "naive-quantized") and (weights.type, weights.num_bits) == ("int", 8):
            if weights.strategy not in ("tensor", "channel"):
                raise NotReadable(f"strategy {str(weights.strategy)[:32]!r} of {kind}; tensor and channel are read")
            return WholeNumbers(weights.strategy == "channel", weights.symmetric)
        if kind in ("float-quantized", "naive-quantized") and (weights.type, weights.num_bits) == ("float", 8):
            return _floats(weights)
        raise NotReadable(
            f"format {kind[:32]!r} with {weights.type[:16]} of {weights.num_bits} bits; compressed-tensors' "
            "pack-quantized (int of 4 and 8 bits), int-quantized (8) and float-quantized (8) are read"
        )


def _packed(weights: Numbers) -> Scheme:
    if weights.strategy == "channel":
        group = WHOLE_ROW
    elif weights.strategy in ("group", None) and weights.group_size:
        group = weights.group_size
    else:
        raise NotReadable(f"strategy {str(weights.strategy)[:32]!r} of pack-quantized; group and channel are read")
    # "weight" and "static" order inputs only while the numbers are found: no tensor names groups.
    act_order = weights.actorder is True or weights.actorder in ("group", "dynamic")
    return PackedInts(4 if weights.num_bits == 4 else 8, _group(group), weights.symmetric, act_order)


def _floats(weights: Numbers) -> Scheme:
    if not weights.symmetric:
        raise NotReadable("symmetric false of float-quantized; true is read")
    if weights.strategy == "block":
        return Floats8("block", "weight_scale", _block(weights.block_structure))
    if weights.strategy == "tensor":
        return Floats8("tensor", "weight_scale")
    if weights.strategy == "channel":
        return Floats8("channel", "weight_scale")
    strategy = str(weights.strategy)[:32]
    raise NotReadable(f"strategy {strategy!r} of float-quantized; tensor, channel and block are read")


# --- FP8 of DeepSeek and Qwen -----------------------------------------------------------------------------------------


class Fp8Fields(_Fields, frozen=True):
    activation_scheme: str = "dynamic"
    fmt: str = "e4m3"
    weight_block_size: Any = None
    kv_cache_scheme: Any = None

    # Inputs are computed in more bits than these: their scheme has no effect. Tensors say which layers are plain.
    of_no_effect = frozenset({"ignored_layers", "modules_to_not_convert", "scale_fmt"})

    def schemes(self) -> tuple[Scheme, ...]:
        if self.fmt != "e4m3":
            raise NotReadable(f"fmt {self.fmt[:32]!r} of fp8; 'e4m3' is read")
        if self.kv_cache_scheme:
            raise NotReadable("kv_cache_scheme of fp8; checkpoints without it are read")
        if self.weight_block_size is None:
            return (Floats8("tensor", "weight_scale"),)
        return (Floats8("block", "weight_scale_inv", _block(self.weight_block_size)),)


# --- bitsandbytes -----------------------------------------------------------------------------------------------------


class BitsAndBytesFields(_Fields, frozen=True):
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_quant_storage: str | None = "uint8"

    of_no_effect = frozenset(
        {"_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant"}
        | {"llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_skip_modules"}
        | {"llm_int8_threshold"}
    )

    def schemes(self) -> tuple[Scheme, ...]:
        if self.load_in_4bit == self.load_in_8bit:
            raise NotReadable("bitsandbytes with neither or both of load_in_4bit and load_in_8bit; one is read")
        if self.load_in_8bit:
            return (RowInt8(),)
        if self.bnb_4bit_quant_storage not in (None, "uint8"):
            storage = self.bnb_4bit_quant_storage[:32]
            raise NotReadable(f"bnb_4bit_quant_storage {storage!r}; 'uint8' is read")
        if self.bnb_4bit_quant_type == "nf4":
            return (Codebook4("nf4"),)
        if self.bnb_4bit_quant_type == "fp4":
            return (Codebook4("fp4"),)
        raise NotReadable(f"bnb_4bit_quant_type {self.bnb_4bit_quant_type[:32]!r}; 'nf4' and 'fp4' are read")


Fields = AwqFields | GptqFields | CompressedFields | Fp8Fields | BitsAndBytesFields
BY_METHOD: dict[str, type[Fields]] = {
    "awq": AwqFields,
    "gptq": GptqFields,
    "compressed-tensors": CompressedFields,
    "fp8": Fp8Fields,
    "bitsandbytes": BitsAndBytesFields,
}


def _group(size: int) -> int:
    if size == 0:
        raise NotReadable("group_size 0; -1 and sizes from 1 on are read")
    return size


def _block(sides: Any) -> tuple[int, int]:
    try:
        rows, inputs = msgspec.convert(sides, tuple[Side, Side])
    except msgspec.ValidationError:
        raise NotReadable(f"blocks of {str(sides)[:32]}; two sizes such as [128, 128] are read") from None
    return rows, inputs
