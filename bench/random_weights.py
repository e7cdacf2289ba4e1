"""Weights that are drawn where they are used, in place of a checkpoint: no folder, no disk."""

from typing import Any

import torch

from slipway_server.models.families import DecoderShape

WIDEST = 0.03  # of a weight: about as models are initialised


class RandomWeights:
    """In place of `models.weights.Weights`: any name is there, in the shape that the decoder gives it."""

    def __init__(
        self, shape: DecoderShape, dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu"
    ) -> None:
        self._dtype, self._device = dtype, device
        self._random = torch.Generator(device).manual_seed(0)
        self._sizes = _sizes(shape)

    def take(self, name: str) -> torch.Tensor:
        size = self._sizes[name.removesuffix(".weight").rsplit(".", 1)[-1]]
        if len(size) == 1:
            return torch.ones(size, dtype=self._dtype, device=self._device)
        weight = torch.empty(size, dtype=self._dtype, device=self._device)
        return weight.uniform_(-WIDEST, WIDEST, generator=self._random)

    def take_linear(self, module: str, outputs: int, inputs: int) -> torch.Tensor:
        return self.take(f"{module}.weight")

    def take_if_there(self, name: str) -> Any:
        """Of biases: there are none."""
        return None


def _sizes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    hidden, queries, cached = shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    norms = ("input_layernorm", "post_attention_layernorm", "norm")
    return {
        **dict.fromkeys(norms, (hidden,)),
        **dict.fromkeys(("q_norm", "k_norm"), (shape.head_size,)),
        **dict.fromkeys(("k_proj", "v_proj"), (cached, hidden)),
        **dict.fromkeys(("gate_proj", "up_proj"), (shape.inner, hidden)),
        "q_proj": (queries, hidden),
        "o_proj": (hidden, queries),
        "down_proj": (hidden, shape.inner),
        "embed_tokens": (shape.vocabulary, hidden),
        "lm_head": (shape.vocabulary, hidden),
    }
