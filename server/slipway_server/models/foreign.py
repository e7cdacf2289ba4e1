"""Runs any other decoder with transformers' own modules over our paged KV cache: correct, but slower.

The models call the attention function that is registered here; it writes and reads the KV blocks of the step's batch.
"""

from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from ..kernels.api import BLOCK_TOKENS, AttentionSpec, Batch
from ..kernels.in_torch import TorchAttention, TorchKernels
from .devices import LoadError

ATTENTION = "slipway"


class ForeignKernels(TorchKernels):
    """The KV caches of the layers, and sampling. The model's own modules compute everything else."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model.dtype, str(model.device))
        self._blocks = 0
        self._by_index: dict[int, TorchAttention] = {}
        self._config = model.config.get_text_config()

    @property
    def bytes_per_block(self) -> int:
        config = self._config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        both = 2 * size
        if getattr(config, "kv_lora_rank", None):  # DeepSeek's: keys and values differ in size
            both = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
        return int(config.num_hidden_layers * heads * both * self.dtype.itemsize) * BLOCK_TOKENS

    def reserve(self, blocks: int) -> None:
        self._blocks = blocks
        self._by_index.clear()

    def layer(self, index: int, spec: AttentionSpec, value_size: int) -> TorchAttention:
        """The attention of a layer with its KV cache, created at the layer's first call, which shows its shapes."""
        if index not in self._by_index:
            layer = self._by_index[index] = TorchAttention(spec, self.spans)
            layer.reserve(self._blocks, (spec.size, value_size), self.dtype, self.device)
        return self._by_index[index]


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    batch: Batch | None = None,
    kernels: ForeignKernels | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the paged cache, with the signature of transformers' attention functions.

    `query`, `key` and `value` are [1, heads, T, size]; returns [1, T, heads, size] and None for the weights.

    Raises:
        LoadError: the model does not pass the batch on, or uses attention sinks.
    """
    if batch is None or kernels is None:
        raise LoadError("The model does not hand the batch to its attention layers; this engine cannot run it.")
    if rest.get("s_aux") is not None:
        raise LoadError("The model uses attention sinks; this engine does not know them.")
    spec = AttentionSpec(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        size=key.shape[3],
        scale=key.shape[3] ** -0.5 if scaling is None else scaling,
        window=sliding_window or 0,
        cap=rest.get("softcap") or 0.0,
    )
    layer = kernels.layer(module.layer_idx, spec, value.shape[3])
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    return layer.attend(q, k, v, batch)[None], None


AttentionInterface.register(ATTENTION, attend)


class ForeignDecoder:
    """A transformers model with the interface of our own `Decoder`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.kernels = ForeignKernels(model)
        self._model = model
        tables: tuple[Any, ...] = (model.get_input_embeddings(), model.lm_head if hasattr(model, "lm_head") else None)
        self.vocab_size = min(int(table.weight.shape[0]) for table in tables if table is not None)
        model.set_attn_implementation(ATTENTION)

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """float32 logits [R, vocabulary] of the batch's rows."""
        found = self._model(
            input_ids=batch.ids[None],
            position_ids=batch.positions[None].long(),
            use_cache=False,
            logits_to_keep=batch.rows,
            batch=batch,
            kernels=self.kernels,
        )
        logits: torch.Tensor = found.logits[0].float()
        return logits

    @torch.inference_mode()
    def reference(self, prompt: tuple[int, ...]) -> torch.Tensor:
        """The last logits of a prompt, [vocabulary] float32, with transformers' own attention: for the self-test."""
        self._model.set_attn_implementation("sdpa")
        ids = torch.tensor([prompt], device=self._model.device)
        logits: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits[0, -1].float()
        self._model.set_attn_implementation(ATTENTION)
        return logits
