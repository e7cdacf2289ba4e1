"""Chooses the device and the dtype of a model."""

import torch

from ..kernels import cuda

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LoadError(Exception):
    """Why a model cannot be served: one sentence for a person."""


def pick_device(requested: str) -> str:
    """`cpu`, or `cuda:N` of a GPU that exists. Raises LoadError."""
    count = cuda.num_devices()
    if requested == "auto":
        return "cuda:0" if count else "cpu"
    if not requested.startswith("cuda"):
        return requested
    index = int(requested.partition(":")[2] or 0)
    if index >= count:
        found = f"{count} of them" if count else "no GPU"
        raise LoadError(f"--device {requested} was requested, and there is {found} here.")
    return f"cuda:{index}"


def pick_dtype(requested: str, stored: torch.dtype, device: str, *, quantized: bool = False) -> torch.dtype:
    """The dtype that a model is computed in. `quantized`: whether its weights are stored in fewer bits."""
    if requested != "auto":
        return DTYPES[requested]
    if device == "cpu" and quantized and stored == torch.float16:
        return torch.bfloat16  # float32 would be eight times what such a checkpoint takes
    # float16 has no fast kernels on CPUs; float32 represents every float16 value.
    return torch.float32 if device == "cpu" and stored == torch.float16 else stored
