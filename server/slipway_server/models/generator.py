"""Loads the fastest decoder for a model folder on this machine, and tests it."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipway_process.model_folder import architectures
from slipway_process.model_folder.quantization.fields import NotReadable
from slipway_process.model_folder.quantization.reading import quantization_of
from slipway_process.model_folder.quantization.schemes import Quantization
from slipway_process.model_folder.rope import Unsupported

from ..kernels import cuda, native
from ..kernels.api import BLOCK_TOKENS, Batch, Kernels
from ..kernels.c.library import KernelsUnavailable
from ..kernels.in_torch import TorchKernels
from ..kernels.low_rank import NO_ADAPTERS, AdapterRoom
from .accuracy import MOST_TOKENS, Accuracy, measure
from .decoder import Decoder
from .devices import DTYPES, LoadError, pick_device, pick_dtype
from .families import BadConfig, DecoderShape, shape_of
from .layouts.tensors import UnreadableWeight
from .support import quantized_foreign
from .weights import CheckpointWeights, MissingWeight, WrongShape

log = logging.getLogger(__name__)

SELF_TEST_TOKENS = 24
ROUNDED = ("int8", "int4")  # weights at load
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
    allow_slow: bool = False,
    adapters: AdapterRoom = NO_ADAPTERS,
) -> Any:
    """Loads a decoder with `logits(batch)` and `kernels`: a `Decoder`, or a `ForeignDecoder` for other families.

    Args:
        allow_slow: whether a GPU may compute with torch or transformers, without the Triton kernels.
        adapters: how many adapters its rows may have; a `ForeignDecoder` has none.

    Raises:
        LoadError: the model cannot be computed here; without `allow_slow`, also if a GPU would be many times slower.
    """
    kv_int8 = kv_cache_dtype == "int8"
    device = pick_device(device)
    _refuse_rounding_on_gpu(device, quantization=quantization, kv_int8=kv_int8)
    if device.startswith("cuda"):
        cuda.set_device(device)
    try:
        shape = shape_of(config, context_tokens)
        stored = DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)
        published = quantization_of(config)
        chosen = pick_dtype(dtype, stored, device, quantized=published is not None)
        options = _Options(
            chosen, quantization, device, context_tokens, threads, kv_int8, allow_slow, adapters, published
        )
        return _load_builtin(folder, shape, options)
    except NotReadable as reason:
        raise LoadError(f"{folder.name}: its weights are quantized with {reason}.") from None
    except BadConfig as error:
        raise LoadError(f"{folder.name}: {error}.") from None
    except Unsupported as reason:
        log.warning("transformers computes the model, slower than a built-in family: %s", reason)
        if adapters.slots:
            raise LoadError(
                f"--max-loras is for the built-in families only; {folder.name} is none: {reason}."
            ) from None
        _refuse_incompatible(folder, config, str(reason), quantization=quantization, kv_int8=kv_int8)
        if device.startswith("cuda") and not allow_slow:
            raise LoadError(
                f"{folder.name} is none of the built-in families ({reason}), so a GPU would compute it many times "
                "slower than it could: give --allow-slow to try it all the same, or serve it without a GPU."
            ) from None
    # Imported here: transformers takes seconds to import, and the built-in families do not need it.
    from .foreign import ForeignDecoder
    from .loader import load

    return ForeignDecoder(load(folder, task="generate", dtype=dtype, device=device))


@dataclass(frozen=True, slots=True)
class _Options:
    dtype: torch.dtype
    quantization: str
    device: str
    context_tokens: int
    threads: int
    kv_int8: bool
    allow_slow: bool
    adapters: AdapterRoom
    published: Quantization | None = None  # of the checkpoint


def _refuse_rounding_on_gpu(device: str, *, quantization: str, kv_int8: bool) -> None:
    if device == "cpu":
        return
    if quantization in ROUNDED:
        raise LoadError(
            f"--quantization {quantization} is for CPUs, and the model is to run on {device}: leave it out, or give "
            "--device cpu."
        )
    if kv_int8:
        raise LoadError("--kv-cache-dtype int8 is for CPUs: the kernels for GPUs do not read it.")


def _refuse_incompatible(
    folder: Path, config: dict[str, Any], reason: str, *, quantization: str, kv_int8: bool
) -> None:
    """Raises LoadError for settings and models that transformers' modules cannot compute over this engine's cache."""
    name = folder.name
    if quantization != "none":
        raise LoadError(f"--quantization {quantization} is for the built-in families only; {name} is none: {reason}.")
    if kv_int8:
        raise LoadError(f"--kv-cache-dtype int8 is for the built-in families only; {name} is none: {reason}.")
    if why := architectures.incompatibility(config) or quantized_foreign(config):
        raise LoadError(f"{name} cannot be served: {why}.")


def _load_builtin(folder: Path, shape: DecoderShape, options: _Options) -> Decoder:
    kv_int8 = options.kv_int8
    if options.device.startswith("cuda"):
        return _build(folder, shape, _on_gpu(options), options)
    if options.quantization in ROUNDED or options.dtype == torch.bfloat16:
        try:
            int8, int4 = options.quantization == "int8", options.quantization == "int4"
            kernels = native.NativeKernels(
                options.threads, int8=int8, kv_int8=kv_int8, adapters=options.adapters, int4=int4
            )
            log.info("the C kernels for %s compute the model", kernels.instruction_set)
            return _build(folder, shape, kernels, options)
        except KernelsUnavailable as reason:
            if options.quantization in ROUNDED:
                raise LoadError(f"--quantization {options.quantization} cannot be had here: {reason}.") from None
            log.warning("torch computes the model, several times slower than it could be: %s", reason)
    return _build(folder, shape, TorchKernels(options.dtype, options.device, kv_int8=kv_int8), options)


def _on_gpu(options: _Options) -> Kernels:
    """The Triton kernels; torch's if those cannot start and `allow_slow` is set. Raises LoadError."""
    try:
        # Imported here: Triton takes a second to import, and CPUs do not need it.
        from ..kernels.in_triton import TritonKernels

        kernels = TritonKernels(options.dtype, options.device, adapters=options.adapters)
        kernels.norm(torch.ones(16), 1e-6)(torch.ones(1, 16, dtype=options.dtype, device=options.device))
    # Any exception: Triton compiles its launcher at the first kernel, and reports missing parts in many ways.
    except Exception as error:
        reason = f"Triton: {_first_line(error)} (it needs a C compiler and Python's headers: install gcc, or set CC)"
        if not options.allow_slow:
            raise LoadError(
                f"The GPU's kernels cannot start, and without them the GPU would be many times slower: {reason}. "
                "Give --allow-slow to try it all the same."
            ) from error
        log.warning("torch computes the model, several times slower than it could be: %s", reason)
        return TorchKernels(options.dtype, options.device)
    return kernels


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:512]


def _build(folder: Path, shape: DecoderShape, kernels: Kernels, options: _Options) -> Decoder:
    with CheckpointWeights(folder, str(kernels.device), options.published) as weights:
        try:
            decoder = Decoder(shape, weights, kernels, options.context_tokens)
        except MissingWeight as missing:
            raise LoadError(f"{folder.name} lacks a weight of its architecture: {missing}.") from None
        except WrongShape as wrong:
            raise LoadError(f"{folder.name}: config.json and weights do not fit: {wrong}.") from None
        except UnreadableWeight as reason:
            raise LoadError(f"{folder.name}: {reason}.") from None
        except OSError as error:
            raise LoadError(f"{folder.name} cannot be read: {error}.") from None
        ignored = (*shape.ignored, "lm_head.weight") if shape.tied else shape.ignored
        unknown = [name for name in weights.left if not name.endswith(ignored)]
    if unknown:
        raise Unsupported(f"{len(unknown)} tensors that the family does not have, first {unknown[0]}")
    return decoder


# --- accuracy ---------------------------------------------------------------------------------------------------------


def measure_accuracy(
    decoder: Decoder, folder: Path, config: dict[str, Any], context_tokens: int, threads: int, tokens: tuple[int, ...]
) -> Accuracy:
    """What a decoder of rounded weights loses on a text beside the weights of its folder.

    Its KV cache must be reserved and unused. `tokens`: of the text; of these as many as have room.

    Raises:
        LoadError: fewer than two of them are in the vocabulary.
    """
    room = min(len(tokens), MOST_TOKENS, context_tokens)
    known = tuple(token for token in tokens[:room] if token < decoder.vocab_size)
    if len(known) < 2:
        raise LoadError(
            f"{folder.name}: its tokenizer and its weights do not fit: of {room} tokens of a text, {len(known)} are "
            f"below its vocabulary of {decoder.vocab_size}, so that what rounding costs cannot be measured."
        )
    with CheckpointWeights(folder, quantization=quantization_of(config)) as weights:
        return measure(decoder, weights, lambda: native.NativeKernels(threads), context_tokens, known)


# --- self-test --------------------------------------------------------------------------------------------------------


def self_test(decoder: Any, vocabulary: int) -> None:
    """Checks that a short prompt has the same last logits however it is computed. Raises LoadError if not.

    It is computed in one chunk, in two chunks, and with its last token decoded alone: so positions, cache, masks and
    the kernels of prefill and decode agree. A transformers model is also compared with its stock attention. The first
    blocks of the KV cache are overwritten: they must be reserved and unused.
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
        slot_mapping=ints(*positions),
        first=ints(0),
        counts=ints(end - start),
        starts=ints(start),
        block_tables=ints(*blocks)[None],
        rows=ints(end - start - 1, kind=torch.int64),
        num_decodes=int(end - start == 1),
    )
