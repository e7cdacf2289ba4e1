"""Where a model runs and in which numbers; what cannot be done is one sentence."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LoadError(Exception):
    """Why a model cannot be served: one sentence for a person."""


def pick_device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise LoadError(f"--device {wanted} was asked for, and there is no GPU here.")
    return wanted


def pick_dtype(wanted: str, stored: torch.dtype, device: str) -> torch.dtype:
    if wanted != "auto":
        return DTYPES[wanted]
    # Half precision has no fast kernels on CPUs; float32 holds every value of it.
    return torch.float32 if device == "cpu" and stored == torch.float16 else stored
