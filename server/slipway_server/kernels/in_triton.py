"""The operations on a GPU: matrix products by torch, all others by our own Triton kernels over a paged KV cache.

Nothing here waits for the device or reads from it, so that a whole step can be captured and replayed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate

import torch
from torch.nn import functional
from triton.runtime.jit import JITFunction

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
    in_sequence,
)
from .cuda import capability
from .draws import Draws
from .in_torch import TorchKernels
from .low_rank import MOST_PARTS, NO_ADAPTERS, AdapterRoom, Update, UpdateRefused
from .triton import low_rank, matvec, paged, pointwise
from .triton.draw_rows import draw_rows
from .weights import Weight, dense

MAX_HEAD = 256
GATE_COLUMNS = 1024
# Of a matrix-vector product: outputs and inputs that a program takes at once.
MATVEC_OUTPUTS, MATVEC_COLUMNS, MATVEC_WARPS = 4, 1024, 4
ROTARY_PARTS = 8  # heads that a program rotates: on an H100 as fast as any other number, or faster
LEAST_PART_TOKENS = 128  # of a sequence that several programs attend to
# Of low-rank products: outputs and inputs that a program takes at once, and up to how many rows each has its own.
EXPAND_OUTPUTS, SHRINK_COLUMNS, FEW_ADAPTED_ROWS = 64, 128, 64
HOPPER = 9  # compute capability
LEAST_ROWS = 16  # the fewest rows of a matrix product on tensor cores
INTERPRETED = not isinstance(paged.decode, JITFunction)  # on the CPU, in tests: TRITON_INTERPRET=1


@dataclass(frozen=True, slots=True)
class Division:
    """How a decode divides its sequences for the processors of a GPU: by the size of the step, which is captured.

    `parts`: at most so many of each sequence, none of them shorter than `least` tokens. `combines`: the last part of a
    sequence combines all, in place of a kernel of its own, which costs less where few sequences have several parts.
    """

    parts: int
    least: int
    combines: bool

    @staticmethod
    def of(programs: int) -> "Division":
        """programs: one for each sequence and head of keys and values. The steps are what was fastest on an H200."""
        if programs < 256:
            return Division(32, LEAST_PART_TOKENS, combines=False)
        # All processors have work. A sequence that is much longer than others is divided all the same.
        return Division(8, 512 if programs < 512 else 2048, combines=True)


class TritonKernels(TorchKernels):
    name = "triton"
    replays = True

    def __init__(self, dtype: torch.dtype, device: str, *, adapters: AdapterRoom = NO_ADAPTERS) -> None:
        super().__init__(dtype, device)
        self._room = adapters
        self._arrived = Counters(self.device)
        self._caches: list[TritonAttention] = []

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, parts: tuple[int, ...] = ()) -> AdaptableLinear:
        numbers = self._here(dense(weight))
        updates = TritonUpdates(numbers, parts or (len(numbers),), self._room)
        return TritonLinear(numbers, None if bias is None else self._here(bias), updates)

    def gated(self, gate: Weight, up: Weight, activation: str) -> AdaptableGated:
        both = self._here(torch.cat((dense(gate), dense(up))))
        updates = TritonUpdates(both, (len(gate), len(up)), self._room)
        return TritonGated(both, gelu=activation != "silu", updates=updates)

    def norm(self, weight: torch.Tensor, epsilon: float) -> Map:
        return TritonNorm(weight.float().to(self.device).contiguous(), epsilon)

    def head(self, weight: torch.Tensor) -> Map:
        if self.device.type != "cuda" or self.dtype == torch.float32:
            return super().head(weight)
        return TritonHead(self._here(weight))

    def layers(self, layers: Sequence[Layer]) -> Layers:
        return in_sequence([_with_fused_norms(layer) for layer in layers])

    def sample(self, logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        return draw_rows(logits, draws, _dependent_launch(self.device))

    def attention(self, spec: AttentionSpec) -> Attention:
        layer = TritonAttention(spec, self.dtype, self.device, self._arrived)
        self._caches.append(layer)
        return layer

    @property
    def bytes_per_block(self) -> int:
        return (
            sum(2 * layer.spec.kv_heads * layer.spec.size for layer in self._caches)
            * BLOCK_TOKENS
            * self.dtype.itemsize
        )

    def reserve(self, blocks: int) -> None:
        for layer in self._caches:
            layer.reserve(blocks)


@dataclass(frozen=True, slots=True)
class TritonNorm:
    weight: torch.Tensor  # [size] float32
    epsilon: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y, size = torch.empty_like(x), x.shape[1]
        pointwise.rms_norm[(len(x),)](
            x, self.weight, y, self.epsilon, SIZE=size, WIDTH=_power_of_two(size), **_dependent_launch(x.device)
        )
        return y


@dataclass(frozen=True, slots=True)
class TritonLinear:
    weight: torch.Tensor  # [outputs, inputs]
    bias: torch.Tensor | None
    updates: "TritonUpdates"

    def __call__(
        self, x: torch.Tensor, add: torch.Tensor | None = None, slots: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.of_normed(None, x, add, slots)

    def prepare(self, update: Update) -> "TritonUpdate":
        return self.updates.prepare(update)

    def adapt(self, slot: int, prepared: "TritonUpdate | None") -> None:
        self.updates.adapt(slot, prepared)

    def of_normed(
        self,
        norm: TritonNorm | None,
        x: torch.Tensor,
        add: torch.Tensor | None = None,
        slots: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Like a call with norm(x), in one kernel where x is a single row without an adapter."""
        if slots is not None:
            x = norm(x) if norm else x
            return self.updates.add_to(self.of_normed(None, x, add), x, slots)
        if len(x) == 1:
            y = x.new_empty(1, len(self.weight)) if add is None else add
            _matvec(x, norm, self.weight, y, bias=self.bias, add=add)
            return y
        x = norm(x) if norm else x
        if add is None:
            return functional.linear(x, self.weight, self.bias)
        y = add.addmm_(x, self.weight.t())  # the product adds in float32, before it rounds
        return y if self.bias is None else y.add_(self.bias)


@dataclass(frozen=True, slots=True)
class TritonHead:
    """Logits are not rounded to half precision, and there is no pass over all of them more."""

    weight: torch.Tensor  # [vocabulary, inputs]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        y = x.new_empty(1, len(self.weight), dtype=torch.float32)
        _matvec(x, None, self.weight, y)
        return y


@dataclass(frozen=True, slots=True)
class TritonGated:
    weight: torch.Tensor  # [2 * size, inputs], the gates in front
    gelu: bool
    updates: "TritonUpdates"

    def __call__(self, x: torch.Tensor, slots: torch.Tensor | None = None) -> torch.Tensor:
        return self.of_normed(None, x, slots)

    def of_normed(self, norm: TritonNorm | None, x: torch.Tensor, slots: torch.Tensor | None = None) -> torch.Tensor:
        """Like a call with norm(x), in one kernel where x is a single row without an adapter."""
        size = len(self.weight) // 2
        y = x.new_empty(len(x), size)
        if len(x) == 1 and slots is None:
            _matvec(x, norm, self.weight, y, gated=True, gelu=self.gelu)
            return y
        x = norm(x) if norm else x
        both = functional.linear(x, self.weight)
        if slots is not None:
            both = self.updates.add_to(both, x, slots)
        pointwise.gate[(len(x), -(-size // GATE_COLUMNS))](both, y, SIZE=size, WIDTH=GATE_COLUMNS, GELU=self.gelu)
        return y

    def prepare(self, update: Update) -> "TritonUpdate":
        return self.updates.prepare(update)

    def adapt(self, slot: int, prepared: "TritonUpdate | None") -> None:
        self.updates.adapt(slot, prepared)


@dataclass(frozen=True, slots=True)
class TritonUpdate:
    """Of one slot: a [parts * rank, inputs] and b [outputs, rank], with zeros up to the highest rank."""

    a: torch.Tensor
    b: torch.Tensor
    scales: torch.Tensor  # [parts] float32

    @property
    def size_bytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


class TritonUpdates:
    """The low-rank updates of one layer for all slots, in memory that captured graphs refer to."""

    def __init__(self, weight: torch.Tensor, parts: tuple[int, ...], room: AdapterRoom) -> None:
        (outputs, inputs), self._parts, self._rank = weight.shape, parts, _power_of_two(max(room.rank, LEAST_ROWS))
        self._a = weight.new_zeros(room.slots, len(parts) * self._rank, inputs)
        self._b = weight.new_zeros(room.slots, outputs, self._rank)
        # Of a slot: the scale of each part. An output's part is the first one whose end is above it.
        self._scales = torch.zeros(room.slots, len(parts), device=weight.device)
        ends = [*accumulate(parts)] + [outputs] * MOST_PARTS
        self._ends = (ends[0], ends[1])
        self._tile = math.gcd(EXPAND_OUTPUTS, *parts)  # the outputs of a program are of one part

    def prepare(self, update: Update) -> TritonUpdate:
        if any(part is not None and part.magnitude is not None for part in update):
            raise UpdateRefused("use_dora: the kernels for GPUs do not compute DoRA")
        device, dtype, rank = self._a.device, self._a.dtype, self._rank
        on_gpu = device.type == "cuda"
        a = torch.zeros(self._a.shape[1:], dtype=dtype, pin_memory=on_gpu)
        b = torch.zeros(self._b.shape[1:], dtype=dtype, pin_memory=on_gpu)
        scales = torch.zeros(len(self._parts))
        first = 0
        for number, (size, part) in enumerate(zip(self._parts, update, strict=True)):
            if part is not None:
                own = len(part.a)
                a[number * rank : number * rank + own] = part.a.to(dtype)
                b[first : first + size, :own] = part.b.to(dtype)
                scales[number] = part.scale
            first += size
        return TritonUpdate(a, b, scales)

    def adapt(self, slot: int, prepared: TritonUpdate | None) -> None:
        """The copies come after the steps that were launched before."""
        if prepared is None:
            self._scales[slot].zero_()
            return
        self._a[slot].copy_(prepared.a, non_blocking=True)
        self._b[slot].copy_(prepared.b, non_blocking=True)
        self._scales[slot].copy_(prepared.scales)

    def add_to(self, y: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Adds to y [T, outputs], in place, what the rows' adapters make of x [T, inputs]."""
        if not y.is_contiguous():
            y = y.contiguous()
        shrunk = torch.empty(len(x), self._a.shape[1], dtype=torch.float32, device=x.device)
        # With few rows each is a program's own: there are many programs then, and each reads its adapter once.
        rows = 1 if len(x) <= FEW_ADAPTED_ROWS else LEAST_ROWS
        self._multiply(x.contiguous(), self._a, shrunk, slots, rows, expands=False)
        self._multiply(shrunk, self._b, y, slots, rows, expands=True)
        return y

    def _multiply(
        self, x: torch.Tensor, weights: torch.Tensor, y: torch.Tensor, slots: torch.Tensor, rows: int, *, expands: bool
    ) -> None:
        outputs, inputs = weights.shape[1:]
        tile = self._tile if expands else LEAST_ROWS
        low_rank.segmented[(-(-len(x) // rows), -(-outputs // tile))](
            x, weights, self._scales, slots, y, len(x), *self._ends,
            INPUTS=inputs, OUTPUTS=outputs, X_WIDTH=x.shape[1], PARTS=len(self._parts), ROWS=rows, N=tile,
            K=min(self._rank, SHRINK_COLUMNS) if expands else SHRINK_COLUMNS, EXPANDS=expands,
            WIDE=INTERPRETED, num_warps=4, **_dependent_launch(x.device),
        )  # fmt: skip


def _with_fused_norms(layer: Layer) -> Layer:
    """The same layer, whose products norm their input themselves, so that a single row needs a kernel less for each."""
    norm_in, qkv, norm_mlp, gated = layer.norm_in, layer.qkv, layer.norm_mlp, layer.gated
    assert isinstance(norm_in, TritonNorm) and isinstance(qkv, TritonLinear)
    assert isinstance(norm_mlp, TritonNorm) and isinstance(gated, TritonGated)
    return replace(
        layer,
        norm_in=_unchanged,
        qkv=partial(qkv.of_normed, norm_in),
        norm_mlp=_unchanged,
        gated=partial(gated.of_normed, norm_mlp),
    )


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def _matvec(
    x: torch.Tensor,
    norm: TritonNorm | None,
    weight: torch.Tensor,
    y: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    add: torch.Tensor | None = None,
    gated: bool = False,
    gelu: bool = False,
) -> None:
    """Writes to y [1, size]; see `triton/matvec.py`."""
    size, epsilon = y.shape[1], norm.epsilon if norm else 0.0
    matvec.matvec[(-(-size // MATVEC_OUTPUTS),)](
        x, norm.weight if norm else x, weight, x if bias is None else bias, x if add is None else add, y, size, epsilon,
        INPUTS=weight.shape[1], N=MATVEC_OUTPUTS, K=MATVEC_COLUMNS, NORMED=norm is not None, GATED=gated, GELU=gelu,
        BIASED=bias is not None, ADDED=add is not None, num_warps=MATVEC_WARPS, **_dependent_launch(x.device),
    )  # fmt: skip


@cache
def _dependent_launch(device: torch.device) -> dict[str, bool]:
    """Options of kernels that call `wait_for_inputs`: on GPUs since Hopper, their programs start early and wait."""
    return {"PDL": True, "launch_pdl": True} if capability(device) >= HOPPER else {"PDL": False}


class Counters(dict[int, torch.Tensor]):
    """int32 zeros [number] on the device, for kernels that count in them and leave them at 0.

    They are kept, because graphs refer to them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, number: int) -> torch.Tensor:
        self[number] = torch.zeros(number, dtype=torch.int32, device=self._device)
        return self[number]


class TritonAttention:
    """A layer's attention and its KV cache: keys and values are [blocks, kv_heads, BLOCK_TOKENS, size] each.

    So one block of a head is contiguous.
    """

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, device: torch.device, arrived: "Counters") -> None:
        if spec.size > MAX_HEAD:
            raise ValueError(f"heads of {spec.size} numbers; these kernels take up to {MAX_HEAD}")
        self.spec = spec
        self._dtype, self._device, self._arrived = dtype, device, arrived
        self._keys = self._values = torch.empty(0)
        self._tiles = _tiles(spec, dtype)
        nothing = torch.empty(0, device=device)
        has_norms = spec.q_norm is not None and spec.k_norm is not None
        self._norms = torch.stack((spec.q_norm, spec.k_norm)).float().to(device) if has_norms else nothing  # type: ignore[arg-type]
        self._cos, self._sin = (spec.rotary.cos, spec.rotary.sin) if spec.rotary else (nothing, nothing)

    def reserve(self, blocks: int) -> None:
        shape = (blocks, self.spec.kv_heads, BLOCK_TOKENS, self.spec.size)
        self._keys, self._values = (torch.empty(shape, dtype=self._dtype, device=self._device) for _ in range(2))

    def __call__(self, qkv: torch.Tensor, batch: Batch) -> torch.Tensor:
        q, y = (qkv.new_empty(len(qkv), self.spec.heads * self.spec.size) for _ in range(2))
        self._rotate_and_cache(qkv, q, batch)
        if batch.num_decodes:
            self._decode(q, y, batch)
        if batch.num_decodes < len(batch.counts):
            self._chunk(q, y, batch)
        return y

    def _rotate_and_cache(self, qkv: torch.Tensor, q: torch.Tensor, batch: Batch) -> None:
        spec = self.spec
        parts = spec.heads + 2 * spec.kv_heads
        pointwise.rotary_embedding_and_cache[(len(qkv), -(-parts // ROTARY_PARTS))](
            qkv, self._norms, self._cos, self._sin, batch.positions, batch.slot_mapping, q, self._keys, self._values,
            spec.epsilon,
            HEADS=spec.heads, KV_HEADS=spec.kv_heads, SIZE=spec.size, BLOCK=BLOCK_TOKENS, WIDTH=self._tiles["WIDTH"],
            HALF=self._cos.shape[1] if spec.rotary else 0, NORMED=len(self._norms) > 0, PARTS=ROTARY_PARTS, num_warps=4,
            **_dependent_launch(qkv.device),
        )  # fmt: skip

    def _decode(self, q: torch.Tensor, y: torch.Tensor, batch: Batch) -> None:
        """Attention of the first `num_decodes` spans, whose tokens are the first rows of `q`. Writes to `y`."""
        spec, spans, width = self.spec, batch.num_decodes, batch.block_tables.shape[1]
        programs = spans * spec.kv_heads
        division = Division.of(programs)
        parts, early = min(division.parts, -(-width * BLOCK_TOKENS // division.least)), _dependent_launch(q.device)
        partials = torch.empty((spans, spec.heads, parts, spec.size), dtype=torch.float32, device=q.device)
        weights = torch.empty((spans, spec.heads, parts), dtype=torch.float32, device=q.device)
        tiles = self._tiles
        if spans == 1 and tiles["TILE"] == 64:  # there are processors for all parts: each reads its own at once
            tiles = tiles | {"TILE": LEAST_PART_TOKENS}
        dividing = {"LEAST": division.least, "PARTS": _power_of_two(parts), "WINDOW": spec.window}
        paged.decode[(spans, spec.kv_heads, parts)](
            q, self._keys, self._values, batch.block_tables, batch.starts, partials, weights, self._arrived[programs],
            y, width, spec.scale,
            ROWS=max(LEAST_ROWS, _members(spec)), COMBINES=division.combines, **dividing, **tiles,
            **self._constants(), num_stages=3 if division.combines else 2, **early,
        )  # fmt: skip
        if not division.combines:
            paged.combine[(spans, spec.heads)](
                partials, weights, batch.starts, y, parts,
                HEADS=spec.heads, SIZE=spec.size, WIDTH=self._tiles["WIDTH"], **dividing, **early,
            )  # fmt: skip

    def _chunk(self, q: torch.Tensor, y: torch.Tensor, batch: Batch) -> None:
        spec, spans, members = self.spec, len(batch.counts), _members(self.spec)
        rows = max(_chunk_rows(spec, self._dtype), members)
        tiles = len(q) // (rows // members) + spans - batch.num_decodes
        paged.chunk[(tiles, spec.kv_heads)](
            q, self._keys, self._values, batch.block_tables, batch.first, batch.counts, batch.starts, y,
            batch.num_decodes, spans, batch.block_tables.shape[1], spec.scale,
            ROWS=rows, MEMBERS=members, WINDOW=spec.window, **self._tiles, **self._constants(),
        )  # fmt: skip

    def _constants(self) -> dict[str, object]:
        spec = self.spec
        return {
            "HEADS": spec.heads,
            "KV_HEADS": spec.kv_heads,
            "SIZE": spec.size,
            "BLOCK": BLOCK_TOKENS,
            "CAP": spec.cap,
            # Triton's interpreter knows no products of bfloat16.
            "WIDE": INTERPRETED and self._dtype == torch.bfloat16,
        }


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (number - 1).bit_length()


def _members(spec: AttentionSpec) -> int:
    return _power_of_two(spec.heads // spec.kv_heads)


def _tiles(spec: AttentionSpec, dtype: torch.dtype) -> dict[str, int]:
    """The head size rounded up to a power of two, and the tokens per iteration: as many as fit into registers."""
    width = max(LEAST_ROWS, _power_of_two(spec.size))
    return {"WIDTH": width, "TILE": 64 if width * dtype.itemsize <= 256 else 32}


def _chunk_rows(spec: AttentionSpec, dtype: torch.dtype) -> int:
    return 64 if spec.size * dtype.itemsize <= 256 else 32
