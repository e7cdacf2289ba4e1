"""Where a model runs and in which numbers; what cannot be done is one sentence."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LoadError(Exception):
    """Why a model cannot be served: one sentence for a person."""


def pick_device(wanted: str) -> str:
    """`cpu`, or `cuda:N` of a GPU that is there. Raises LoadError."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return "cuda:0" if count else "cpu"
    if not wanted.startswith("cuda"):
        return wanted
    index = int(wanted.partition(":")[2] or 0)
    if index >= count:
        there = f"{count} of them" if count else "no GPU"
        raise LoadError(f"--device {wanted} was asked for, and there is {there} here.")
    return f"cuda:{index}"


def pick_dtype(wanted: str, stored: torch.dtype, device: str) -> torch.dtype:
    if wanted != "auto":
        return DTYPES[wanted]
    # Half precision has no fast kernels on CPUs; float32 holds every value of it.
    return torch.float32 if device == "cpu" and stored == torch.float16 else stored
