"""A batch of ragged sequences through a transformers decoder, packed into one row: batch in, sampled tokens out."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from ..models.loader import LoadError
from .kv_cache import KVCache
from .request import Request, SamplingParams, Sequence, Work
from .sampler import sample

ATTENTION = "slipway"
SELF_TEST_TOKENS = 24
SELF_TEST_TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


@dataclass(frozen=True, slots=True)
class Span:
    """Where one sequence's tokens lie in the packed row, and in its own context."""

    slot: int
    offset: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class PackedBatch:
    cache: KVCache
    spans: tuple[Span, ...]


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: PackedBatch | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """Each sequence attends to its own slab. Models call it as they call transformers' own attention functions."""
    if packed is None:
        raise LoadError("The model does not hand the batch to its attention layers; this engine cannot run it.")
    if rest.get("softcap") is not None or rest.get("s_aux") is not None:
        raise LoadError("The model uses attention soft-capping or sinks; this engine does not know them.")
    answer = query.new_empty((1, query.shape[2], query.shape[1], value.shape[-1]))
    for span in packed.spans:
        part = slice(span.offset, span.offset + span.count)
        keys, values = packed.cache.write(span.slot, module.layer_idx, span.start, key[0, :, part], value[0, :, part])
        mask = _mask(span, sliding_window, query.device)
        heads = scaled_dot_product_attention(
            query[:, :, part],
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=mask is None and span.count > 1,
            scale=scaling,
            enable_gqa=True,
        )
        answer[:, part] = heads.transpose(1, 2)
    return answer, None


def _mask(span: Span, window: int | None, device: torch.device) -> torch.Tensor | None:
    """None where plain causality says it all: a whole prompt, or one token that sees everything before it."""
    end = span.start + span.count
    windowed = window is not None and end > window
    if not windowed and (span.start == 0 or span.count == 1):
        return None
    rows = torch.arange(span.start, end, device=device)[:, None]
    columns = torch.arange(end, device=device)[None, :]
    allowed = columns <= rows
    return allowed & (columns > rows - window) if window is not None and windowed else allowed


AttentionInterface.register(ATTENTION, attend)


class DecoderRunner:
    """Holds the model and the cache; knows nothing of queues."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = KVCache()
        model.set_attn_implementation(ATTENTION)

    @property
    def dtype(self) -> torch.dtype:
        return self._model.dtype

    def release(self, slot: int) -> None:
        self._cache.release(slot)

    @torch.inference_mode()
    def run(self, batch: list[Work]) -> list[int | None]:
        """A token for each work that samples, in order."""
        logits = self._logits(batch)
        return sample(logits, [work.sequence for work in batch if work.samples]) if len(logits) else []

    def self_test(self) -> None:
        """A short text in two chunks must give the logits that the model gives by its stock attention."""
        prompt = tuple(token % self._model.config.vocab_size for token in range(5, 5 + SELF_TEST_TOKENS))
        sequence = Sequence(Request("self-test", prompt, SamplingParams(max_tokens=1, temperature=0.0)), slot=0)
        middle = SELF_TEST_TOKENS // 2
        self._logits([Work(sequence, 0, middle, samples=False)])
        ours = self._logits([Work(sequence, middle, SELF_TEST_TOKENS, samples=True)])[0].float()
        self.release(0)
        reference = self._reference(prompt)
        if not torch.isfinite(ours).all():
            raise LoadError("The self-test failed: the model's logits are not finite.")
        if (ours - reference).abs().max() > SELF_TEST_TOLERANCE[self.dtype] * max(1.0, reference.abs().max().item()):
            raise LoadError("The self-test failed: the engine's logits are not those of the model itself.")

    @torch.inference_mode()
    def _reference(self, prompt: tuple[int, ...]) -> torch.Tensor:
        self._model.set_attn_implementation("sdpa")
        ids = torch.tensor([prompt], device=self._model.device)
        logits: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits[0, -1].float()
        self._model.set_attn_implementation(ATTENTION)
        return logits

    @torch.inference_mode()
    def _logits(self, batch: list[Work]) -> torch.Tensor:
        tokens: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        sampled: list[int] = []
        for work in batch:
            self._cache.reserve(work.sequence.slot, work.sequence.request.kv_tokens)
            spans.append(Span(work.sequence.slot, len(tokens), work.start, work.end - work.start))
            tokens += work.sequence.tokens(work.start, work.end)
            positions += range(work.start, work.end)
            if work.samples:
                sampled.append(len(tokens) - 1)
        device = self._model.device
        logits: torch.Tensor = self._model(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(sampled, dtype=torch.long, device=device),
            packed=PackedBatch(self._cache, tuple(spans)),
        ).logits
        return logits[0]
