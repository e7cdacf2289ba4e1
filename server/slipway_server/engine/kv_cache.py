"""Keys and values of each running sequence, one contiguous slab per slot and layer."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..machine import free_memory_bytes

# Of what is free once the weights are loaded. Activations, the tokenizer and the page cache need the rest.
CPU_SHARE, GPU_SHARE = 0.5, 0.85


@dataclass(slots=True)
class Slab:
    keys: torch.Tensor  # [kv heads, tokens, head size]
    values: torch.Tensor


class KVCache:
    """Slabs are as long as their sequence can ever become, so that a step never moves or grows one."""

    def __init__(self) -> None:
        self._slabs: dict[int, dict[int, Slab]] = {}
        self._tokens: dict[int, int] = {}

    def reserve(self, slot: int, tokens: int) -> None:
        if slot not in self._tokens:
            self._tokens[slot] = tokens
            self._slabs[slot] = {}

    def release(self, slot: int) -> None:
        self._tokens.pop(slot, None)
        self._slabs.pop(slot, None)

    def write(
        self, slot: int, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores the keys and values of the tokens from `start` on; returns those of the sequence up to their end."""
        slab = self._slabs[slot].get(layer)
        if slab is None:
            # The shapes are the model's own: families differ in heads per layer, and in the sizes of keys and values.
            tokens = self._tokens[slot]
            slab = Slab(_empty(keys, tokens), _empty(values, tokens))
            self._slabs[slot][layer] = slab
        end = start + keys.shape[1]
        slab.keys[:, start:end] = keys
        slab.values[:, start:end] = values
        return slab.keys[:, :end], slab.values[:, :end]


def _empty(like: torch.Tensor, tokens: int) -> torch.Tensor:
    heads, _, size = like.shape
    return torch.empty((heads, tokens, size), dtype=like.dtype, device=like.device)


def bytes_per_token(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)


def tokens_that_fit(model: PreTrainedModel) -> int:
    """How many tokens of context may be kept at once in the memory that is left beside the weights."""
    if model.device.type == "cuda":
        free_bytes = int(torch.cuda.mem_get_info()[0] * GPU_SHARE)
    else:
        free_bytes = int(free_memory_bytes() * CPU_SHARE)
    return max(1, free_bytes // bytes_per_token(model))
