"""The operations that a decoder is made of, and a step's tokens as they see them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .draws import Draws, TokenMasks

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
    rows: torch.Tensor  # [R] int64 or int32, tokens whose logits are needed
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
    def __call__(self, x: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
        """[T, inputs] to [T, outputs], plus `add`, which may be written over."""
        ...


class Attention(Protocol):
    def __call__(self, qkv: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[T, (heads + 2 * kv_heads) * size], not rotated yet, to [T, heads * size]. Writes keys and values."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """Some families have a norm after attention and MLP too, before each is added."""

    norm_in: Map
    qkv: Linear
    attention: Attention
    out: Linear
    norm_mlp: Map
    gated: Map
    down: Linear
    norm_attended: Map | None = None
    norm_mixed: Map | None = None

    def __call__(self, x: torch.Tensor, batch: Batch, rows: torch.Tensor | None = None) -> torch.Tensor:
        """[T, hidden] to the same, or to these rows of it; what later tokens need of the others is in the cache."""
        attended = self.attention(self.qkv(self.norm_in(x)), batch)
        if rows is not None:
            x, attended = x[rows], attended[rows]
        x = _add(x, attended, self.out, self.norm_attended)
        return _add(x, self.gated(self.norm_mlp(x)), self.down, self.norm_mixed)


def _add(x: torch.Tensor, y: torch.Tensor, linear: Linear, norm: Map | None) -> torch.Tensor:
    return linear(y, x) if norm is None else x + norm(linear(y))


class Layers(Protocol):
    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[T, hidden], which may be written over, to [R, hidden]: of the last layer only the batch's rows."""
        ...


def in_sequence(layers: Sequence[Layer]) -> Layers:
    """All layers of a decoder as one function, operation after operation."""

    def apply(x: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in layers[:-1]:
            x = layer(x, batch)
        return layers[-1](x, batch, batch.rows)

    return apply


class Kernels(Protocol):
    """Makes operations out of weights, and keeps the caches of the attention layers that it made.

    Weights given to it may be changed in layout and dropped by the caller.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    replays: bool  # nothing waits for the device: a step can be captured there and replayed

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """weight [outputs, inputs]."""
        ...

    def gated(self, gate: torch.Tensor, up: torch.Tensor, activation: str) -> Map:
        """activation(x @ gate.T) * (x @ up.T)."""
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
        """All of a decoder's, one after the other."""
        ...

    def sample(self, logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        """Of float32 [R, vocabulary], for each row: the token that its draw chooses, and whether all are finite.

        The first one of the likeliest for a greedy row; -1 where no number is above minus infinity. A row's token
        depends on nothing else in the batch.
        """
        ...

    def mask(self, logits: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
        """In place: minus infinity for tokens that are not allowed. Whether all numbers of these rows were finite."""
        ...

    def rest(self) -> None:
        """Leaves the cores to other processes until the next step."""
        ...

    @property
    def bytes_per_block(self) -> int:
        """Of keys and values in all attention layers made so far."""
        ...

    def reserve(self, blocks: int) -> None:
        """Memory for so many blocks in each layer; once, after the last layer was made."""
        ...

    def populate(self) -> None:
        """Takes the memory that was reserved before it is written to, where that makes a difference."""
        ...

    def clear(self, blocks: list[int]) -> None:
        """Zeroes these blocks, which may hold non-finite numbers."""
        ...


class CausalLM(Protocol):
    """A decoder-only language model: a built-in family, or one of transformers'."""

    kernels: Kernels

    def logits(self, batch: Batch) -> torch.Tensor:
        """float32 [R, vocabulary] of the batch's rows."""
        ...
