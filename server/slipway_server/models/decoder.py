"""A decoder-only transformer over packed tokens: few operations, fused where their inputs are the same."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.api import Attention, AttentionSpec, Batch, Kernels, Linear, Map, Rotary
from ..kernels.layers import Layer
from .families import DecoderShape, LayerShape, Rotation
from .weights import Weights


class Decoder:
    """[T] token ids in, float32 logits of the wanted rows out."""

    def __init__(self, shape: DecoderShape, weights: Weights, kernels: Kernels, context_tokens: int) -> None:
        """Takes every weight out of `weights`, layer by layer. Raises MissingWeight."""
        self.shape, self.kernels = shape, kernels
        table = weights.take("model.embed_tokens.weight")
        self.vocab_size = len(table)  # kernels index memory by token ids: none of this number or above may reach them
        if shape.tied:
            self._embedding, self._head = kernels.tied(table)
        else:
            head = weights.take("lm_head.weight")[: self.vocab_size]  # what has no embedding cannot be said
            self.vocab_size = len(head)
            self._embedding, self._head = kernels.embedding(table), kernels.head(head)
        self._factor = torch.tensor(shape.embedding_factor, dtype=kernels.dtype).item()  # as rounded as its factors are
        build = _Builder(shape, weights, kernels, context_tokens)
        self._layers = kernels.layers([build.layer(index, layer) for index, layer in enumerate(shape.layers)])
        self._norm = build.norm("model.norm")

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:
        """[R, vocabulary]"""
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
class _Builder:
    """Weights by their names in Hugging Face folders to operations."""

    shape: DecoderShape
    weights: Weights
    kernels: Kernels
    context_tokens: int

    def layer(self, index: int, layer: LayerShape) -> Layer:
        at, after = f"model.layers.{index}", self.shape.norms_after
        return Layer(
            norm_in=self.norm(f"{at}.input_layernorm"),
            qkv=self._qkv(f"{at}.self_attn"),
            attention=self._attention(f"{at}.self_attn", layer),
            out=self._returning(f"{at}.self_attn.o_proj"),
            norm_attended=self.norm(f"{at}.post_attention_layernorm") if after else None,
            norm_mlp=self.norm(f"{at}.pre_feedforward_layernorm" if after else f"{at}.post_attention_layernorm"),
            gated=self._gated(f"{at}.mlp"),
            down=self._returning(f"{at}.mlp.down_proj"),
            norm_mixed=self.norm(f"{at}.post_feedforward_layernorm") if after else None,
        )

    def norm(self, name: str) -> Map:
        return self.kernels.norm(self._norm_weight(name), self.shape.epsilon)

    def _norm_weight(self, name: str) -> Tensor:
        return self.weights.take(f"{name}.weight").float() + self.shape.norm_offset

    def _qkv(self, at: str) -> Linear:
        if self.shape.packed_names:
            return self.kernels.linear(self.weights.take(f"{at}.qkv_proj.weight"))
        parts = [f"{at}.{part}_proj" for part in "qkv"]
        biases = [bias for part in parts if (bias := self.weights.take_if_there(f"{part}.bias")) is not None]
        weight = torch.cat([self.weights.take(f"{part}.weight") for part in parts])
        return self.kernels.linear(weight, torch.cat(biases) if biases else None)

    def _attention(self, at: str, layer: LayerShape) -> Attention:
        shape = self.shape
        turns = layer.rotation
        rotary = rotary_of(turns, self.context_tokens, self.kernels.device) if turns else None
        norms = [self._norm_weight(f"{at}.{part}_norm").to(self.kernels.device) for part in "qk" if shape.qk_norm]
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

    def _gated(self, at: str) -> Map:
        if self.shape.packed_names:
            gate, up = self.weights.take(f"{at}.gate_up_proj.weight").chunk(2)
        else:
            gate, up = (self.weights.take(f"{at}.{part}_proj.weight") for part in ("gate", "up"))
        return self.kernels.gated(gate, up, self.shape.activation)

    def _returning(self, name: str) -> Linear:
        """What is added to the residual stream; some families add only a part of it."""
        weight, bias = self.weights.take(f"{name}.weight"), self.weights.take_if_there(f"{name}.bias")
        factor = self.shape.residual_factor
        if factor != 1.0:
            weight, bias = weight * factor, None if bias is None else bias * factor
        return self.kernels.linear(weight, bias)


_tables: dict[tuple[Rotation, int, torch.device], Rotary] = {}


def rotary_of(rotation: Rotation, positions: int, device: torch.device) -> Rotary:
    """The tables of a rotation; layers that turn alike share them."""
    key = (rotation, positions, device)
    if key not in _tables:
        frequencies = torch.tensor(rotation.inverse_frequencies, dtype=torch.float32)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        _tables[key] = Rotary(
            (angles.cos() * rotation.factor).to(device).contiguous(),
            (angles.sin() * rotation.factor).to(device).contiguous(),
        )
    return _tables[key]
