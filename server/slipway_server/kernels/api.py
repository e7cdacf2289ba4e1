"""The interface of the operations that a decoder is made of, and the batch of tokens that they compute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .draws import Draws, TokenMasks
from .low_rank import Adaptable
from .weights import Weight

BLOCK_TOKENS = 32  # of the KV cache; the C kernels are built for it

Map = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's tokens packed into one row: each span is the new tokens of one sequence. All on the model's device.

    T tokens, S spans, W blocks of the longest sequence, R rows whose logits are needed.
    """

    ids: torch.Tensor  # [T] int64 or int32
    positions: torch.Tensor  # [T] int32, of each token in its sequence
    slot_mapping: torch.Tensor  # [T] int32, cache slot of each token: block * BLOCK_TOKENS + offset in the block
    first: torch.Tensor  # [S] int32, row of each span's first token
    counts: torch.Tensor  # [S] int32, tokens of each span
    starts: torch.Tensor  # [S] int32, position of each span's first token
    block_tables: torch.Tensor  # [S, W] int32, block table of each sequence
    rows: torch.Tensor  # [R] int64 or int32, ascending: tokens whose logits are needed
    adapters: torch.Tensor | None = None  # [T] int32, slot of each token's adapter, or -1; None: no token has one
    num_decodes: int = 0  # spans at the front with one token each: kernels may treat them differently


@dataclass(frozen=True, slots=True)
class Rotary:
    """cos and sin of every position, [positions, rotated / 2] float32."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    heads: int
    kv_heads: int
    size: int
    scale: float
    rotary: Rotary | None = None
    q_norm: torch.Tensor | None = None  # [size] float32
    k_norm: torch.Tensor | None = None
    epsilon: float = 1e-6
    window: int = 0  # tokens that are seen, the own one included; 0: all
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they do not


class Linear(Protocol):
    def __call__(
        self, x: torch.Tensor, add: torch.Tensor | None = None, slots: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[T, inputs] to [T, outputs], plus `add`, which may be overwritten.

        `slots`: of the rows' adapters, as `Batch.adapters`. Rows without one are the same bits as without `slots`.
        """
        ...


class Gated(Protocol):
    def __call__(self, x: torch.Tensor, slots: torch.Tensor | None = None) -> torch.Tensor:
        """[T, inputs] to [T, inner]."""
        ...


class AdaptableLinear(Linear, Adaptable, Protocol): ...


class AdaptableGated(Gated, Adaptable, Protocol): ...


class Attention(Protocol):
    def __call__(self, qkv: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[T, (heads + 2 * kv_heads) * size], not rotated yet, to [T, heads * size]. Writes to the KV cache."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer. Some families also have norms after attention and MLP, before the residual sum."""

    norm_in: Map
    qkv: Linear
    attention: Attention
    out: Linear
    norm_mlp: Map
    gated: Gated
    down: Linear
    norm_attended: Map | None = None
    norm_mixed: Map | None = None

    def __call__(self, x: torch.Tensor, batch: Batch, rows: torch.Tensor | None = None) -> torch.Tensor:
        """[T, hidden] to [T, hidden], or to `rows` of it: later tokens need only the KV cache of the other rows."""
        slots = batch.adapters
        attended = self.attention(self.qkv(self.norm_in(x), None, slots), batch)
        if rows is not None and len(rows) < len(x):
            x, attended = x[rows], attended[rows]
            slots = None if slots is None else slots[rows]
        x = _add(x, attended, self.out, self.norm_attended, slots)
        return _add(x, self.gated(self.norm_mlp(x), slots), self.down, self.norm_mixed, slots)


def _add(
    x: torch.Tensor, y: torch.Tensor, linear: Linear, norm: Map | None, slots: torch.Tensor | None
) -> torch.Tensor:
    return linear(y, x, slots) if norm is None else x + norm(linear(y, None, slots))


class Layers(Protocol):
    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[T, hidden], which may be overwritten, to [R, hidden]: the last layer returns only the batch's rows."""
        ...


def in_sequence(layers: Sequence[Layer]) -> Layers:
    """All layers of a decoder as one function, operation after operation."""

    def apply(x: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in layers[:-1]:
            x = layer(x, batch)
        return layers[-1](x, batch, batch.rows)

    return apply


class Kernels(Protocol):
    """Makes operations out of weights, and keeps the KV caches of the attention layers that it made.

    It may store weights in another layout; the caller can drop the tensors that it has passed.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    replays: bool  # whether steps can be captured as CUDA graphs: no operation waits for the device

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, parts: tuple[int, ...] = ()) -> AdaptableLinear:
        """x @ weight.T + bias, with weight [outputs, inputs]. One of 4 bits stays so where there are products for it.

        `parts`: outputs of each of the layers that are computed as this one: adapters have an update for each. Without
        them it is one.
        """
        ...

    def gated(self, gate: Weight, up: Weight, activation: str) -> AdaptableGated:
        """activation(x @ gate.T) * (x @ up.T). Its parts are gate and up."""
        ...

    def embedding(self, weight: torch.Tensor) -> Map:
        """[T] ids to [T, hidden], rows of the weight."""
        ...

    def tied(self, weight: torch.Tensor) -> tuple[Map, Map]:
        """An embedding and a head of the same weight, which lies in memory once where the head's layout allows it."""
        ...

    def head(self, weight: torch.Tensor) -> Map:
        """[R, inputs] to float32 logits [R, vocabulary]."""
        ...

    def norm(self, weight: torch.Tensor, epsilon: float) -> Map:
        """RMSNorm with a float32 weight."""
        ...

    def attention(self, spec: AttentionSpec) -> Attention: ...

    def layers(self, layers: Sequence[Layer]) -> Layers:
        """One function that applies all layers of a decoder in order."""
        ...

    def sample(self, logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        """For each row of float32 [R, vocabulary]: the token that its draw chooses, and whether all logits are finite.

        A greedy row gets its likeliest token, the first one of equals; a row without a logit above minus infinity gets
        -1. A row's token does not depend on other rows.
        """
        ...

    def mask(self, logits: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
        """Sets the logits of forbidden tokens to minus infinity, in place.

        Returns, for each row in `masks.rows`, whether all its logits were finite before.
        """
        ...

    def rest(self) -> None:
        """Leaves the cores to other processes until the next step."""
        ...

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one KV block in all attention layers made so far."""
        ...

    def reserve(self, blocks: int) -> None:
        """Allocates `blocks` KV blocks in each layer; to be called once, after the last layer was made."""
        ...

    def populate(self) -> None:
        """Has the OS back the reserved memory with pages before the first write, where that makes steps faster."""
        ...

    def clear(self, blocks: list[int]) -> None:
        """Zeroes these KV blocks, which may hold non-finite numbers."""
        ...


class CausalLM(Protocol):
    """A decoder-only language model: a built-in family, or one of transformers'."""

    kernels: Kernels

    def logits(self, batch: Batch) -> torch.Tensor:
        """float32 [R, vocabulary] of the batch's rows."""
        ...
