"""Builds an engine from a Start message: loads the model, sizes the KV cache and runs the self-test."""

import logging
import secrets
from pathlib import Path
from typing import Any

import torch

from slipway_process.machine import settle_memory
from slipway_process.model_folder import checkpoint

from ..kernels.api import BLOCK_TOKENS
from ..kernels.low_rank import AdapterRoom
from ..models.accuracy import Inaccurate
from ..models.adapters.folder import AdapterLimits
from ..models.adapters.targets import parts_of, targets_of
from ..models.decoder import Decoder
from ..models.devices import LoadError, pick_device
from ..models.generator import ROUNDED, load_generator, measure_accuracy, self_test
from .adapters.loader import AdapterLoader
from .adapters.residency import Residency
from .adapters.store import AdapterStore
from .engine import EngineCore
from .execution.draft_model import DraftModel, SameVocabulary
from .execution.runner import DecoderRunner
from .execution.sizing import limits_for, num_blocks_that_fit
from .grammars.client import GrammarProcess, GrammarSource
from .grammars.masks import Masks
from .messages import Ready, RoundingReport, Start
from .scheduling.budget import CPU_TIMES, GPU_TIMES, StepTimes, TokenBudget
from .scheduling.draft_cache import DraftCache
from .scheduling.drafting import Drafting, DraftLimits, LookupDrafting
from .scheduling.model_drafting import ModelDrafting
from .scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

LEAST_PREFILL_TOKENS = 16  # prompt tokens in a step beside its decodes, however slow the machine is


def build_engine(start: Start, threads: int) -> tuple[EngineCore, Ready]:
    """The engine and its Ready message, without `load_seconds`. Raises LoadError."""
    return build_generator(start, threads) if start.task == "generate" else build_encoder(start)


def build_generator(start: Start, threads: int) -> tuple[EngineCore, Ready]:
    folder = Path(start.model)
    config = checkpoint.read_config(folder)
    decoder = load_generator(
        folder,
        config,
        dtype=start.dtype,
        quantization=start.quantization,
        device=start.device,
        context_tokens=start.context_tokens,
        threads=threads,
        kv_cache_dtype=start.kv_cache_dtype,
        allow_slow=start.allow_slow,
        adapters=AdapterRoom(start.max_loras, start.max_lora_rank),
    )
    settle_memory()
    kernels = decoder.kernels
    if start.kernels not in ("auto", "torch") and kernels.name != "native":
        raise LoadError(
            f"--kernels {start.kernels}: {kernels.name} would compute this model. The C kernels are for bfloat16 and "
            "int8 on x86-64 CPUs with AVX2 and on aarch64 CPUs with dotprod; the server's log says what is missing."
        )
    draft = load_draft(start, threads) if start.speculation == "draft" else None
    limits = limits_for(start, kernels.device, num_blocks_that_fit(decoder, start, draft))
    masks = masks_for(start, decoder.vocab_size, limits.slots)
    adapters = adapters_for(start, decoder) if start.max_loras else None
    runner = DecoderRunner(
        decoder,
        slots=limits.slots,
        context_tokens=start.context_tokens,
        blocks=limits.kv_tokens // BLOCK_TOKENS,
        masks=masks,
        captures=not start.eager,
        slot_of=adapters.slot_of if adapters else None,
    )
    self_test(decoder, decoder.vocab_size)
    accuracy = checked_accuracy(decoder, start, threads, limits.kv_tokens)
    if start.kv_tokens:  # a requested size; the default is half of the free memory, which others may need sooner
        kernels.populate()
    scope = f"{start.revision}/{kernels.dtype}/{start.quantization}/{start.kv_cache_dtype}"
    default = CPU_TIMES if kernels.device.type == "cpu" else GPU_TIMES
    times = StepTimes(start.step_s or default.prefill_s, start.inter_token_s or default.decode_s)
    budget = TokenBudget(min(limits.step_tokens, LEAST_PREFILL_TOKENS), limits.step_tokens, times)
    dtype, device, vocab_size = name_of(kernels.dtype), str(kernels.device), decoder.vocab_size
    ready = Ready(limits.kv_tokens, BLOCK_TOKENS, 0.0, dtype, device, kernels.name, vocab_size, accuracy)
    scheduler = Scheduler(limits, hash_key=secrets.token_bytes(32), scope=scope, drafting=drafting_for(start))
    drafter = drafter_for(draft, start, scheduler, vocab_size) if draft else None
    # A draft continues tokens that are known: a step that begins before they are has none.
    ahead = not scheduler.drafting and schedules_ahead(start.async_scheduling, replays=kernels.replays)
    launches = runner if ahead else None
    engine = EngineCore(
        scheduler, runner, budget,
        vocab_size=vocab_size, masks=masks, launches=launches, adapters=adapters, drafter=drafter,
    )  # fmt: skip
    return engine, ready


def checked_accuracy(decoder: Decoder, start: Start, threads: int, kv_tokens: int) -> RoundingReport | None:
    """What rounding the weights costs; None where they are not rounded, or without a bound.

    Raises:
        LoadError: more than the bound.
    """
    if start.quantization not in ROUNDED or not start.max_perplexity_ratio:
        return None
    tokens = start.accuracy_tokens[: min(start.context_tokens, kv_tokens)]
    if len(tokens) < 2:
        return None
    folder = Path(start.model)
    config = checkpoint.read_config(folder)
    accuracy = measure_accuracy(decoder, folder, config, start.context_tokens, threads, tokens)
    log.info("--quantization %s: %s", start.quantization, accuracy)
    try:
        accuracy.check(start.max_perplexity_ratio)
    except Inaccurate as reason:
        raise LoadError(
            f"--quantization {start.quantization} costs too much: {reason} (--max-perplexity-ratio). "
            "Take int8 or none, or a checkpoint that was quantized with a calibration."
        ) from None
    decoder.kernels.clear(list(range(-(-len(tokens) // BLOCK_TOKENS))))
    return RoundingReport(
        start.quantization, accuracy.ratio, accuracy.top1_agreement, accuracy.perplexity, accuracy.tokens
    )


def drafting_for(start: Start) -> Drafting | None:
    """What drafts tokens by looking them up; None without."""
    if start.speculation != "ngram":
        return None
    return LookupDrafting(DraftLimits(start.num_speculative_tokens, start.prompt_lookup_min, start.prompt_lookup_max))


def load_draft(start: Start, threads: int) -> Decoder:
    """The draft model, of which another one than the model's own family is good, too.

    Raises:
        LoadError: it cannot be computed here, or not fast.
    """
    folder = Path(start.draft_model)
    config = checkpoint.read_config(folder)
    try:
        draft = load_generator(
            folder,
            config,
            dtype=start.dtype,
            quantization=start.quantization,
            device=start.device,
            context_tokens=start.context_tokens,
            threads=threads,
            kv_cache_dtype=start.kv_cache_dtype,
            allow_slow=start.allow_slow,
        )
    except LoadError as reason:
        raise LoadError(f"--speculative-draft-model: {reason}") from None
    if not isinstance(draft, Decoder):
        raise LoadError(
            f"--speculative-draft-model: {folder.name} is none of the built-in families, so transformers would "
            "compute it, slower than it could save time. Take a draft model of a built-in family."
        )
    settle_memory()
    return draft


def drafter_for(draft: Decoder, start: Start, scheduler: Scheduler, vocab_size: int) -> DraftModel:
    """The draft model with its cache, whose blocks are the scheduler's; the scheduler drafts with it from now on."""
    limits, cache = scheduler.limits, DraftCache(scheduler.block_manager)
    runner = DecoderRunner(
        SameVocabulary(draft, vocab_size),
        slots=limits.slots,
        context_tokens=start.context_tokens,
        blocks=scheduler.block_manager.num_blocks,
        captures=not start.eager,
    )
    try:
        self_test(draft, draft.vocab_size)
    except LoadError as reason:
        raise LoadError(f"--speculative-draft-model: {reason}") from None
    if start.kv_tokens:
        draft.kernels.populate()
    longest = min(start.context_tokens, start.draft_context_tokens or start.context_tokens)
    scheduler.drafting = ModelDrafting(start.num_speculative_tokens, cache, longest)
    return DraftModel(runner, cache, vocab_size=draft.vocab_size)


def schedules_ahead(setting: str, *, replays: bool) -> bool:
    """Whether a step begins before the one before has ended. `setting`: auto, on or off.

    By itself where steps can be replayed: no operation waits for the device there, so the host gains that time.
    """
    return replays if setting == "auto" else setting == "on"


def masks_for(start: Start, vocabulary: int, slots: int) -> Masks:
    """The masks of the model, with a grammar process that is not started yet.

    A generation_config.json may name stop tokens that the logits have no column for: they are left out.
    """
    stops = tuple(token for token in start.stop_token_ids if token < vocabulary)
    source = GrammarSource(Path(start.model) / "tokenizer.json", vocabulary, stops)
    return Masks(GrammarProcess(source, rows=2 * slots), rows=2 * slots)


def adapters_for(start: Start, decoder: Decoder) -> AdapterStore:
    """The adapters of the model: none is loaded yet."""
    limits = AdapterLimits(
        start.max_lora_rank, start.max_lora_bytes, Path(start.lora_root), frozenset(start.lora_base_names)
    )
    loader = AdapterLoader(limits, targets_of(decoder.shape), parts_of(decoder.shape), decoder.operations)
    return AdapterStore(loader, decoder.operations, Residency(start.max_loras, start.max_lora_bytes))


def build_encoder(start: Start) -> tuple[EngineCore, Ready]:
    # Imported here, because transformers takes seconds to import and built-in decoders do not need it.
    from ..models.loader import load
    from .execution.encoder import EncoderRunner

    if start.kv_cache_dtype != "auto":
        raise LoadError(
            f"--kv-cache-dtype {start.kv_cache_dtype} is for models that generate: this one has no such cache."
        )
    if start.speculation != "none":
        raise LoadError(f"--speculation {start.speculation} is for models that generate: this one makes embeddings.")
    if start.max_loras:
        raise LoadError("--max-loras is for models that generate: this one makes embeddings.")
    device = pick_device(start.device)
    model = load(Path(start.model), task="embed", dtype=start.dtype, device=device)
    runner = EncoderRunner(model, Path(start.model))
    runner.self_test()
    limits = limits_for(start, model.device, 0)
    embeddings: Any = model.get_input_embeddings()
    vocab_size = int(embeddings.weight.shape[0])
    ready = Ready(limits.kv_tokens, BLOCK_TOKENS, 0.0, name_of(model.dtype), device, "transformers", vocab_size)
    return EngineCore(Scheduler(limits, hash_key=secrets.token_bytes(32)), runner, vocab_size=vocab_size), ready


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
