"""A decoder-only transformer over packed tokens: few operations, fused where their inputs are the same."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipway_process.model_folder.rope import Rotation

from ..kernels.api import (
    AdaptableGated,
    AdaptableLinear,
    Attention,
    AttentionSpec,
    Batch,
    Kernels,
    Layer,
    Map,
    Rotary,
)
from ..kernels.low_rank import Adaptable
from ..kernels.weights import dense, halves, scaled, stacked
from .families import DecoderShape, LayerShape
from .weights import CheckpointWeights, WrongShape


class Decoder:
    """Computes float32 logits of the batch's rows from [T] token IDs."""

    def __init__(self, shape: DecoderShape, weights: CheckpointWeights, kernels: Kernels, context_tokens: int) -> None:
        """Takes every weight out of `weights`, layer by layer.

        Raises MissingWeight, WrongShape and UnreadableWeight.
        """
        self.shape, self.kernels = shape, kernels
        build = LayerBuilder(shape, weights, kernels, context_tokens)
        table = build.take("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
        self.vocab_size = len(table)  # kernels index memory by token IDs: IDs from here on must not reach them
        if shape.tied:
            self._embedding, self._head = kernels.tied(table)
        else:
            head = weights.take_linear("lm_head", shape.vocabulary, shape.hidden)
            self._embedding, self._head = kernels.embedding(table), kernels.head(dense(head))
        self._factor = torch.tensor(shape.embedding_factor, dtype=kernels.dtype).item()  # as rounded as its factors are
        layers = [build.layer(index, layer) for index, layer in enumerate(shape.layers)]
        # Of each layer those that adapters change, by the names of `adapters.targets`.
        self.operations: list[dict[str, Adaptable]] = [
            {name: getattr(layer, name) for name in ("qkv", "out", "gated", "down")} for layer in layers
        ]
        self._layers = kernels.layers(layers)
        self._norm = build.norm("model.norm")

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:
        """float32 logits [R, vocabulary] of the batch's rows."""
        x = self._embedding(batch.ids)
        if self._factor != 1.0:
            x = x * self._factor
        logits = self._head(self._norm(self._layers(x, batch)))
        if self.shape.logits_divisor != 1.0:
            logits = logits / self.shape.logits_divisor
        if self.shape.logits_cap:
            logits = torch.tanh(logits / self.shape.logits_cap) * self.shape.logits_cap
        return logits


@dataclass(frozen=True, slots=True)
class LayerBuilder:
    """Builds a decoder's operations from weights, by their names in Hugging Face checkpoints."""

    shape: DecoderShape
    weights: CheckpointWeights
    kernels: Kernels
    context_tokens: int
    tables: dict[Rotation, Rotary] = field(default_factory=dict)

    def layer(self, index: int, layer: LayerShape) -> Layer:
        at, after = f"model.layers.{index}", self.shape.norms_after
        return Layer(
            norm_in=self.norm(f"{at}.input_layernorm"),
            qkv=self._qkv(f"{at}.self_attn"),
            attention=self._attention(f"{at}.self_attn", layer),
            out=self._returning(f"{at}.self_attn.o_proj", self.shape.heads * self.shape.head_size),
            norm_attended=self.norm(f"{at}.post_attention_layernorm") if after else None,
            norm_mlp=self.norm(f"{at}.pre_feedforward_layernorm" if after else f"{at}.post_attention_layernorm"),
            gated=self._gated(f"{at}.mlp"),
            down=self._returning(f"{at}.mlp.down_proj", self.shape.inner),
            norm_mixed=self.norm(f"{at}.post_feedforward_layernorm") if after else None,
        )

    def take(self, name: str, *size: int) -> Tensor:
        """A tensor of exactly this size, on which kernels rely. Raises MissingWeight and WrongShape."""
        return _sized(name, self.weights.take(name), size)

    def bias(self, name: str, size: int) -> Tensor | None:
        found = self.weights.take_if_there(name)
        return None if found is None else _sized(name, found, (size,))

    def norm(self, name: str) -> Map:
        return self.kernels.norm(self._norm_weight(name, self.shape.hidden), self.shape.epsilon)

    def _norm_weight(self, name: str, size: int) -> Tensor:
        return self.take(f"{name}.weight", size).float() + self.shape.norm_offset

    def _qkv(self, at: str) -> AdaptableLinear:
        shape, hidden = self.shape, self.shape.hidden
        rows = [heads * shape.head_size for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        if shape.packed_names:
            return self.kernels.linear(self.weights.take_linear(f"{at}.qkv_proj", sum(rows), hidden))
        parts = [(f"{at}.{part}_proj", size) for part, size in zip("qkv", rows, strict=True)]
        biases = [bias for part, size in parts if (bias := self.bias(f"{part}.bias", size)) is not None]
        weight = stacked([self.weights.take_linear(part, size, hidden) for part, size in parts])
        if biases and len(biases) < len(parts):
            raise WrongShape(f"{at} has {len(biases)} biases of three")
        return self.kernels.linear(weight, torch.cat(biases) if biases else None, tuple(rows))

    def _attention(self, at: str, layer: LayerShape) -> Attention:
        shape = self.shape
        rotary = self._rotary(layer.rotation) if layer.rotation else None
        norms = [
            self._norm_weight(f"{at}.{part}_norm", shape.head_size).to(self.kernels.device)
            for part in "qk"
            if shape.qk_norm
        ]
        return self.kernels.attention(
            AttentionSpec(
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                size=shape.head_size,
                scale=shape.scale,
                rotary=rotary,
                q_norm=norms[0] if norms else None,
                k_norm=norms[1] if norms else None,
                epsilon=shape.epsilon,
                window=layer.window,
                cap=shape.score_cap,
            )
        )

    def _rotary(self, rotation: Rotation) -> Rotary:
        """Layers with the same rotary embedding share its tables."""
        if rotation not in self.tables:
            self.tables[rotation] = rotary_of(rotation, self.context_tokens, self.kernels.device)
        return self.tables[rotation]

    def _gated(self, at: str) -> AdaptableGated:
        inner, hidden = self.shape.inner, self.shape.hidden
        if self.shape.packed_names:
            gate, up = halves(self.weights.take_linear(f"{at}.gate_up_proj", 2 * inner, hidden))
        else:
            gate, up = (self.weights.take_linear(f"{at}.{part}_proj", inner, hidden) for part in ("gate", "up"))
        return self.kernels.gated(gate, up, self.shape.activation)

    def _returning(self, name: str, size: int) -> AdaptableLinear:
        """A projection that is added to the residual stream; some families scale it."""
        weight = self.weights.take_linear(name, self.shape.hidden, size)
        bias = self.bias(f"{name}.bias", self.shape.hidden)
        factor = self.shape.residual_factor
        if factor != 1.0:
            weight, bias = scaled(weight, factor), None if bias is None else bias * factor
        return self.kernels.linear(weight, bias)


def _sized(name: str, tensor: Tensor, size: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) != size:
        raise WrongShape(f"{name} is {list(tensor.shape)}, and by config.json {list(size)}")
    return tensor


def rotary_of(rotation: Rotation, positions: int, device: torch.device) -> Rotary:
    """Tables of cosines and sines for the first `positions` positions, [positions, half of the rotated size] each."""
    frequencies = torch.tensor(rotation.inverse_frequencies, dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return Rotary(
        (angles.cos() * rotation.factor).to(device).contiguous(),
        (angles.sin() * rotation.factor).to(device).contiguous(),
    )
