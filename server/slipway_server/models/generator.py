"""A checked model folder to the decoder that is fastest here, and the proof that it computes what it should."""

import logging
from pathlib import Path
from typing import Any

import torch

from ..kernels import native
from ..kernels.api import BLOCK_TOKENS, Batch, Kernels
from ..kernels.in_torch import TorchKernels
from .decoder import Decoder
from .devices import DTYPES, LoadError, pick_device, pick_dtype
from .families import DecoderShape, Unsupported, shape_of
from .weights import MissingWeight, Weights

log = logging.getLogger(__name__)

SELF_TEST_TOKENS = 24
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


def load_generator(
    folder: Path,
    config: dict[str, Any],
    *,
    dtype: str,
    quantization: str,
    device: str,
    context_tokens: int,
    threads: int,
    kv_cache_dtype: str = "auto",
) -> Any:
    """A decoder with `logits(batch)` and `kernels`. Raises LoadError."""
    kv_int8 = kv_cache_dtype == "int8"
    device = pick_device(device)
    if kv_int8 and device != "cpu":
        raise LoadError("--kv-cache-dtype int8 is for CPUs: the kernels for GPUs do not read it.")
    if device.startswith("cuda"):
        torch.cuda.set_device(device)  # Triton launches where the process is
    try:
        shape = shape_of(config, context_tokens)
        stored = DTYPES.get(config.get("dtype") or config.get("torch_dtype") or "float32", torch.float32)
        chosen = pick_dtype(dtype, stored, device)
        return _our_own(folder, shape, chosen, quantization, device, context_tokens, threads, kv_int8=kv_int8)
    except Unsupported as reason:
        log.info("not one of the built-in families, transformers computes it: %s", reason)
    if quantization != "none":
        raise LoadError(
            f"--quantization {quantization} is for the built-in families only; {folder.name} is none of them."
        )
    if kv_int8:
        raise LoadError(f"--kv-cache-dtype int8 is for the built-in families only; {folder.name} is none of them.")
    # With transformers, which takes seconds to import, and which most models do without.
    from .foreign import ForeignDecoder
    from .loader import load

    return ForeignDecoder(load(folder, task="generate", dtype=dtype, device=device))


def _our_own(
    folder: Path,
    shape: DecoderShape,
    dtype: torch.dtype,
    quantization: str,
    device: str,
    context_tokens: int,
    threads: int,
    *,
    kv_int8: bool,
) -> Decoder:
    if quantization == "int8" or (dtype == torch.bfloat16 and device == "cpu"):
        try:
            kernels = native.NativeKernels(threads, int8=quantization == "int8", kv_int8=kv_int8)
            return _build(folder, shape, kernels, context_tokens)
        except native.Unavailable as reason:
            if quantization == "int8":
                raise LoadError(f"--quantization int8 cannot be had here: {reason}.") from None
            log.warning("torch computes the model, several times slower than it could be: %s", reason)
    if device.startswith("cuda"):
        return _build(folder, shape, _on_gpu(dtype, device, context_tokens), context_tokens)
    return _build(folder, shape, TorchKernels(dtype, device, kv_int8=kv_int8), context_tokens)


def _on_gpu(dtype: torch.dtype, device: str, context_tokens: int) -> Kernels:
    """Where Triton cannot start kernels, torch computes: GPUs are no reason to serve nothing."""
    try:
        # Here and not above: to import Triton takes a second, and CPUs do without.
        from ..kernels.in_triton import TritonKernels

        kernels = TritonKernels(dtype, device, context_tokens)
        kernels.norm(torch.ones(16), 1e-6)(torch.ones(1, 16, dtype=dtype, device=device))
    # Whatever it is: Triton compiles its launcher when the first kernel starts, and says what it lacks in many ways.
    except Exception as error:
        hint = "it needs a C compiler and Python's headers: install gcc, or set CC"
        log.warning("torch computes the model, several times slower than it could be: Triton: %s (%s)", error, hint)
        return TorchKernels(dtype, device)
    return kernels


def _build(folder: Path, shape: DecoderShape, kernels: Kernels, context_tokens: int) -> Decoder:
    with Weights(folder, str(kernels.device)) as weights:
        try:
            decoder = Decoder(shape, weights, kernels, context_tokens)
        except MissingWeight as missing:
            raise LoadError(f"{folder.name} lacks a weight of its architecture: {missing}.") from None
        except OSError as error:
            raise LoadError(f"{folder.name} cannot be read: {error}.") from None
        ignored = (*shape.ignored, "lm_head.weight") if shape.tied else shape.ignored
        unknown = [name for name in weights.left if not name.endswith(ignored)]
    if unknown:
        raise Unsupported(f"{len(unknown)} tensors that the family does not have, first {unknown[0]}")
    return decoder


# --- self-test --------------------------------------------------------------------------------------------------------


def self_test(decoder: Any, vocabulary: int) -> None:
    """A short text in two parts must give the logits that it gives in one, and those that it gives when its last token
    is decoded alone: positions, cache and masks agree, and so do kernels for either kind of step.

    Uses the first blocks of the cache, which must be reserved and unused. A model of transformers is held against its
    own stock attention too. Raises LoadError.
    """
    prompt = tuple(token % vocabulary for token in range(5, 5 + SELF_TEST_TOKENS))
    middle = SELF_TEST_TOKENS // 2
    decoder.logits(_part(prompt, 0, middle, decoder.kernels.device))
    ours = decoder.logits(_part(prompt, middle, SELF_TEST_TOKENS, decoder.kernels.device))[0]
    others = [decoder.logits(_part(prompt, SELF_TEST_TOKENS - 1, SELF_TEST_TOKENS, decoder.kernels.device))[0]]
    others.append(decoder.logits(_part(prompt, 0, SELF_TEST_TOKENS, decoder.kernels.device))[0])
    if hasattr(decoder, "reference"):
        others.append(decoder.reference(prompt))
    if not torch.isfinite(ours).all():
        raise LoadError("The self-test failed: the model's logits are not finite.")
    for other in others:
        limit = TOLERANCE[decoder.kernels.dtype] * max(1.0, other.abs().max().item())
        if (ours - other).abs().max() > limit:
            raise LoadError("The self-test failed: the engine's logits are not those of the model itself.")


def _part(prompt: tuple[int, ...], start: int, end: int, device: torch.device) -> Batch:
    def ints(*values: int, kind: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=kind, device=device)

    positions, blocks = range(start, end), range(-(-end // BLOCK_TOKENS))
    return Batch(
        ids=ints(*prompt[start:end], kind=torch.int64),
        positions=ints(*positions),
        places=ints(*positions),
        first=ints(0),
        counts=ints(end - start),
        starts=ints(start),
        tables=ints(*blocks)[None],
        rows=ints(end - start - 1, kind=torch.int64),
        singles=int(end - start == 1),
    )
