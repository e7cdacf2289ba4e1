"""Chooses the tool that wrote `quantization_config`, and refuses by name what is not read."""

from typing import Any

import msgspec

from slipway_process.model_folder import Config
from slipway_process.model_folder.quantization.fields import BY_METHOD, NotReadable
from slipway_process.model_folder.quantization.schemes import Quantization

FIELDS = ("quantization_config", "compression_config", "quantization")
READ = "awq (gemm), gptq, compressed-tensors, fp8 and bitsandbytes"


def quantization_of(config: Config) -> Quantization | None:
    """How the weights of a model with this config.json are quantized; None: they are not.

    Raises:
        NotReadable: they are, and a server cannot read them; the message is the middle of a sentence.
    """
    described = config.get("quantization_config") or config.get("compression_config")
    if not described:
        return None
    if not isinstance(described, dict):
        raise NotReadable("a quantization_config that is no object")
    method = method_of(described)
    if method not in BY_METHOD:
        raise NotReadable(f"{method}; {READ} are read")
    kind = BY_METHOD[method]
    fields = {name: value for name, value in described.items() if name not in kind.of_no_effect}
    if unknown := sorted(set(fields) - set(kind.__struct_fields__)):
        raise NotReadable(f"{unknown[0][:64]!r} in the quantization_config of {method}, a field that is not known")
    try:
        read = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise NotReadable(f"a quantization_config of {method} that makes no sense: {error}") from None
    return Quantization(method, read.schemes())


def method_of(described: Any) -> str:
    """The name of the tool or format; one that says it is unknown where there is none."""
    if not isinstance(described, dict):
        return "a method of its own"
    method = described.get("quant_method") or described.get("quant_algo")
    if not method and (described.get("load_in_4bit") or described.get("load_in_8bit")):
        method = "bitsandbytes"
    return str(method or "a method that it does not name")[:64]


def from_tool_file(name: str, fields: Config) -> Config:
    """The `quantization_config` that a file of AutoAWQ or AutoGPTQ means, for a config.json without one."""
    if name == "quantize_config.json":
        return fields | {"quant_method": "gptq"}
    renamed = {"w_bit": "bits", "q_group_size": "group_size"}
    return {renamed.get(field, field): value for field, value in fields.items()} | {"quant_method": "awq"}
