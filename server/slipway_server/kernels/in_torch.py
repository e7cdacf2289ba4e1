"""The operations in torch alone, for any device and dtype: simple and correct. The reference for the C kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.nn import functional

from .api import (
    BLOCK_TOKENS,
    AdaptableGated,
    AdaptableLinear,
    Attention,
    AttentionSpec,
    Batch,
    Layer,
    Layers,
    Map,
    Rotary,
    in_sequence,
)
from .draws import Draws, TokenMasks, mask, sample
from .low_rank import LowRank, Update, column_factors, slots_in
from .weights import Weight, dense

SCALE_BYTES = 4  # of a float32


class TorchKernels:
    name = "torch"
    replays = False

    def __init__(self, dtype: torch.dtype, device: str, *, kv_int8: bool = False) -> None:
        self.dtype, self.device, self._kv_int8 = dtype, torch.device(device), kv_int8
        self.spans = Spans()
        self._layers: list[TorchAttention] = []

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, parts: tuple[int, ...] = ()) -> AdaptableLinear:
        return TorchLinear(self._here(dense(weight)), None if bias is None else self._here(bias), parts)

    def gated(self, gate: Weight, up: Weight, activation: str) -> AdaptableGated:
        both = TorchLinear(self._here(torch.cat((dense(gate), dense(up)))), None, (len(gate), len(up)))
        return TorchGated(both, functional.silu if activation == "silu" else _gelu_tanh)

    def embedding(self, weight: torch.Tensor) -> Map:
        # A copy: a tensor that lies in a mapped file would keep the whole file in this process's memory.
        table = weight.to(self.device, self.dtype, copy=weight.device.type == "cpu")
        return lambda ids: table[ids]

    def tied(self, weight: torch.Tensor) -> tuple[Map, Map]:
        table = weight.to(self.device, self.dtype, copy=weight.device.type == "cpu")
        return (lambda ids: table[ids]), self.head(table)

    def head(self, weight: torch.Tensor) -> Map:
        weight = self._here(weight)
        return lambda x: functional.linear(x, weight).float()

    def norm(self, weight: torch.Tensor, epsilon: float) -> Map:
        weight = weight.to(self.device)
        return lambda x: rms_norm(x, weight, epsilon)

    def attention(self, spec: AttentionSpec) -> Attention:
        layer = TorchAttention(spec, self.spans)
        self._layers.append(layer)
        return layer

    def layers(self, layers: Sequence[Layer]) -> Layers:
        return in_sequence(layers)

    def sample(self, logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(logits, draws)

    def mask(self, logits: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
        return mask(logits, masks)

    def rest(self) -> None:
        pass  # torch's own threads decide

    @property
    def bytes_per_block(self) -> int:
        def of_one(size: int) -> int:
            return size + SCALE_BYTES if self._kv_int8 else size * self.dtype.itemsize

        each = (2 * layer.spec.kv_heads * of_one(layer.spec.size) for layer in self._layers)
        return sum(each) * BLOCK_TOKENS

    def reserve(self, blocks: int) -> None:
        for layer in self._layers:
            size = layer.spec.size
            layer.reserve(blocks, (size, size), self.dtype, self.device, int8=self._kv_int8)

    def populate(self) -> None:
        """Nothing to do: a GPU's memory is allocated already, and plain torch on a CPU does not gain from it."""

    def clear(self, blocks: list[int]) -> None:
        """Nothing to do: attention reads only the positions that the sequence itself has written or reuses."""

    def _here(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(self.device, self.dtype).contiguous()


@dataclass(frozen=True, slots=True)
class TorchUpdate:
    """Its tensors are on the layer's device. `factors`: DoRA's, [outputs] float32, or None."""

    parts: Update
    factors: torch.Tensor | None
    size_bytes: int


class TorchLinear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, parts: tuple[int, ...]) -> None:
        self._weight, self._bias, self._parts = weight, bias, parts or (len(weight),)
        self._updates: dict[int, TorchUpdate] = {}  # by slot

    def __call__(
        self, x: torch.Tensor, add: torch.Tensor | None = None, slots: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = functional.linear(x, self._weight, self._bias)
        for slot, rows in [] if slots is None else slots_in(slots):
            if update := self._updates.get(slot):
                y[rows] = self._adapted(x[rows], update)
        return y if add is None else y + add

    def _adapted(self, x: torch.Tensor, update: TorchUpdate) -> torch.Tensor:
        """Rounded once, at its end, as the C kernels do it."""
        y = functional.linear(x, self._weight).float()
        for columns, part in zip(torch.split(y, list(self._parts), dim=1), update.parts, strict=True):
            if part is not None:
                columns.add_((x.float() @ part.a.float().T) @ part.b.float().T, alpha=part.scale)
        if update.factors is not None:
            y *= update.factors
        return (y if self._bias is None else y + self._bias.float()).to(x.dtype)

    def prepare(self, update: Update) -> TorchUpdate:
        factors = column_factors(update, self._parts, lambda first, end: self._weight[first:end])
        parts = tuple(part and self._moved(part) for part in update)
        tensors = [tensor for part in parts if part for tensor in (part.a, part.b)]
        tensors += [] if factors is None else [factors]
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        return TorchUpdate(parts, None if factors is None else factors.to(self._weight.device), size_bytes)

    def _moved(self, part: LowRank) -> LowRank:
        device, dtype = self._weight.device, self._weight.dtype
        return replace(part, a=part.a.to(device, dtype), b=part.b.to(device, dtype), magnitude=None)

    def adapt(self, slot: int, prepared: TorchUpdate | None) -> None:
        if prepared is None:
            self._updates.pop(slot, None)
        else:
            self._updates[slot] = prepared


class TorchGated:
    def __init__(self, both: TorchLinear, activation: Map) -> None:
        self._both, self._activation = both, activation

    def __call__(self, x: torch.Tensor, slots: torch.Tensor | None = None) -> torch.Tensor:
        g, u = self._both(x, None, slots).chunk(2, dim=-1)
        return self._activation(g) * u

    def prepare(self, update: Update) -> TorchUpdate:
        return self._both.prepare(update)

    def adapt(self, slot: int, prepared: TorchUpdate | None) -> None:
        self._both.adapt(slot, prepared)


class Cache(Protocol):
    """Keys, or values, of one layer by cache slot."""

    def write(self, slots: torch.Tensor, x: torch.Tensor) -> None:
        """x [T, kv heads, size]."""
        ...

    def read(self, slots: torch.Tensor) -> torch.Tensor: ...


class PlainCache:
    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """shape [slots, kv heads, size]."""
        self._numbers = torch.empty(shape, dtype=dtype, device=device)

    def write(self, slots: torch.Tensor, x: torch.Tensor) -> None:
        self._numbers[slots] = x

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        return self._numbers[slots]


class Int8Cache:
    """Integers from -127 to 127 with a scale for each token and head. Non-finite numbers make the scale non-finite."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """shape [slots, kv heads, size]; `dtype` of the numbers that `read` returns."""
        self._dtype = dtype
        self._quantized = torch.empty(shape, dtype=torch.int8, device=device)
        self._scales = torch.empty((*shape[:2], 1), dtype=torch.float32, device=device)

    def write(self, slots: torch.Tensor, x: torch.Tensor) -> None:
        top = x.float().abs().amax(dim=-1, keepdim=True)
        quantized = x.float() * torch.where(top > 0, 127 / top, 0.0)
        self._quantized[slots] = quantized.nan_to_num(0.0, 0.0, 0.0).round().to(torch.int8)
        self._scales[slots] = top / 127

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        return (self._quantized[slots] * self._scales[slots]).to(self._dtype)


class TorchAttention:
    def __init__(self, spec: AttentionSpec, spans: "Spans") -> None:
        self.spec, self._spans = spec, spans

    def reserve(
        self, blocks: int, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device, *, int8: bool = False
    ) -> None:
        """`sizes` of a key and of a value: some families have different ones."""

        def cache(size: int) -> Cache:
            shape = (blocks * BLOCK_TOKENS, self.spec.kv_heads, size)
            return Int8Cache(shape, dtype, device) if int8 else PlainCache(shape, dtype, device)

        self._keys, self._values = map(cache, sizes)

    def __call__(self, qkv: torch.Tensor, batch: Batch) -> torch.Tensor:
        spec = self.spec
        rows = qkv.view(len(qkv), spec.heads + 2 * spec.kv_heads, spec.size)
        q, k, v = torch.split(rows, [spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
        if spec.q_norm is not None and spec.k_norm is not None:
            q, k = rms_norm(q, spec.q_norm, spec.epsilon), rms_norm(k, spec.k_norm, spec.epsilon)
        if spec.rotary is not None:
            q, k = rotate(q, spec.rotary, batch), rotate(k, spec.rotary, batch)
        return self.attend(q, k, v, batch).reshape(len(qkv), -1)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: Batch) -> torch.Tensor:
        """q, k and v [T, heads, size], rotated, to [T, heads, size of values]. Writes k and v to the KV cache."""
        spans = self._spans(batch)
        slot_mapping = batch.slot_mapping.long()
        self._keys.write(slot_mapping, k)
        self._values.write(slot_mapping, v)
        answer = q.new_empty(len(q), self.spec.heads, v.shape[-1])
        for span in spans:
            keys, values = self._keys.read(span.seen), self._values.read(span.seen)
            answer[span.rows] = self._attend_span(q[span.rows], keys, values, span.start)
        return answer

    def _attend_span(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int) -> torch.Tensor:
        spec, count = self.spec, len(q)
        q, keys, values = (part.transpose(0, 1)[None] for part in (q, keys, values))
        mask = visible(start, count, keys.shape[2], spec.window, q.device)
        if spec.cap:
            heads = _capped(spec, q, keys, values, mask)
        elif count == 1:
            # The heads of a group as rows of one query: keys and values are read once for all of them.
            rows = q.view(1, spec.kv_heads, -1, q.shape[-1])
            heads = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=spec.scale)
            heads = heads.reshape(1, spec.heads, 1, -1)  # on a GPU they come in another order of memory
        else:
            heads = functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, scale=spec.scale, enable_gqa=True
            )
        return heads[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence's new tokens in the batch, their first position, and the cache slots that they see."""

    rows: slice
    start: int
    seen: torch.Tensor


class Spans:
    """The spans of the current batch: computed for its first layer and reused by all others."""

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._spans: list[Span] = []

    def __call__(self, batch: Batch) -> list[Span]:
        if self._batch is not batch:
            each = zip(
                batch.first.tolist(), batch.counts.tolist(), batch.starts.tolist(), batch.block_tables, strict=True
            )
            self._spans = [
                Span(slice(first, first + count), start, _seen(table, start + count))
                for first, count, start, table in each
            ]
            self._batch = batch
        return self._spans


def _seen(table: torch.Tensor, tokens: int) -> torch.Tensor:
    blocks = table[: -(-tokens // BLOCK_TOKENS), None].long() * BLOCK_TOKENS
    return (blocks + torch.arange(BLOCK_TOKENS, device=table.device)).flatten()[:tokens]


def visible(start: int, count: int, tokens: int, window: int, device: torch.device) -> torch.Tensor | None:
    """[count, tokens] bool: what each query sees; None where one token sees all."""
    if count == 1 and (window == 0 or tokens <= window):
        return None
    rows = torch.arange(start, start + count, device=device)[:, None]
    columns = torch.arange(tokens, device=device)[None, :]
    seen = columns <= rows
    return seen & (columns > rows - window) if window else seen


def _capped(
    spec: AttentionSpec, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    groups = spec.heads // spec.kv_heads
    keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    scores = torch.tanh(q @ keys.transpose(2, 3) * spec.scale / spec.cap) * spec.cap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ values


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (wide * weight).to(x.dtype)


def rotate(x: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
    """Rotates the first 2 * half numbers of each head, in pairs (i, i + half). The others stay unchanged."""
    positions = batch.positions.long()
    cos, sin = rotary.cos[positions][:, None], rotary.sin[positions][:, None]
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat(((a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest), dim=-1)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")
