"""The operations on a GPU: matrix products by torch, all others by our own Triton kernels over a paged KV cache.

Nothing here waits for the device or reads from it, so that a whole step can be captured and replayed.
"""

import numpy
import torch
from torch.nn import functional
from triton.runtime.jit import JITFunction

from . import paged, pointwise, sampling
from .api import BLOCK_TOKENS, Attention, AttentionSpec, Batch, Linear, Map
from .draws import GROUP, STRETCH, Draws, bound_of_top_k
from .in_torch import TorchKernels

MAX_HEAD = 256
GATE_COLUMNS = 1024
ROTARY_PARTS = 8  # heads that a program rotates: on an H100 as fast as any other number, or faster
SAMPLED_STRETCHES = 8  # of the vocabulary, that a program of the sampler reads at once
# A sequence is split into at most this many parts, none of them shorter than this many tokens.
MOST_SPLITS, LEAST_SPLIT_TOKENS = 32, 128
LEAST_ROWS = 16  # the fewest rows of a matrix product on tensor cores
INTERPRETED = not isinstance(paged.decode, JITFunction)  # on the CPU, in tests: TRITON_INTERPRET=1


def split_tokens(context_tokens: int) -> int:
    """Tokens of each part that the decode of a sequence is split into. Depends on the longest context alone.

    So a row's results are the same in any batch, and the number of parts is fixed when a step is captured.
    """
    return max(LEAST_SPLIT_TOKENS, _power_of_two(-(-context_tokens // MOST_SPLITS)))


class TritonKernels(TorchKernels):
    name = "triton"
    replays = True

    def __init__(self, dtype: torch.dtype, device: str, context_tokens: int) -> None:
        super().__init__(dtype, device)
        self._split_tokens = split_tokens(context_tokens)
        self._caches: list[TritonAttention] = []

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        weight = self._here(weight)
        bias = None if bias is None else self._here(bias)

        def apply(x: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
            if add is None:
                return functional.linear(x, weight, bias)
            y = add.addmm_(x, weight.t())  # the product adds in float32, before it rounds
            return y if bias is None else y.add_(bias)

        return apply

    def gated(self, gate: torch.Tensor, up: torch.Tensor, activation: str) -> Map:
        both, size = self._here(torch.cat((gate, up))), len(gate)
        gelu = activation != "silu"

        def apply(x: torch.Tensor) -> torch.Tensor:
            y = x.new_empty(len(x), size)
            grid = (len(x), -(-size // GATE_COLUMNS))
            pointwise.gate[grid](functional.linear(x, both), y, SIZE=size, WIDTH=GATE_COLUMNS, GELU=gelu)
            return y

        return apply

    def norm(self, weight: torch.Tensor, epsilon: float) -> Map:
        weight, size = weight.float().to(self.device).contiguous(), len(weight)

        def apply(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            width = _power_of_two(size)
            pointwise.rms_norm[(len(x),)](x, weight, y, epsilon, SIZE=size, WIDTH=width)
            return y

        return apply

    def sample(self, logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        count, size = logits.shape
        numbers = draws.rows["seed"].view(numpy.int64), draws.positions
        words = numpy.stack(numbers, axis=1).view(numpy.int32)
        rules = numpy.stack([draws.rows[name] for name in ("inverse_temperature", "top_p", "min_p")], axis=1)
        given = torch.from_numpy(numpy.concatenate((words, rules.view(numpy.int32)), axis=1).reshape(-1))
        on_device = given.to(logits.device, non_blocking=True)  # else the copy waits until the logits are computed
        bound = bound_of_top_k(logits, draws.rows["top_k"])
        ids = torch.empty(count, dtype=torch.int64, device=logits.device)
        finite = torch.empty(count, dtype=torch.uint8, device=logits.device)
        sampling.draw[(count,)](
            logits, logits.stride(0), on_device, bound.values, bound.ids, ids, finite, size,
            STRETCH=STRETCH, GROUP=GROUP, TILE=SAMPLED_STRETCHES, num_warps=8,
        )  # fmt: skip
        return ids, finite.view(torch.bool)

    def attention(self, spec: AttentionSpec) -> Attention:
        layer = TritonAttention(spec, self.dtype, self.device, self._split_tokens)
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


class TritonAttention:
    """A layer's attention and its KV cache: keys and values are [blocks, kv_heads, BLOCK_TOKENS, size] each.

    So one block of a head is contiguous.
    """

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, device: torch.device, split: int) -> None:
        if spec.size > MAX_HEAD:
            raise ValueError(f"heads of {spec.size} numbers; these kernels take up to {MAX_HEAD}")
        self.spec = spec
        self._dtype, self._device, self._split = dtype, device, split
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
        )  # fmt: skip

    def _decode(self, q: torch.Tensor, y: torch.Tensor, batch: Batch) -> None:
        """Attention of the first `num_decodes` spans, whose tokens are the first rows of `q`. Writes to `y`."""
        spec, spans, width = self.spec, batch.num_decodes, batch.block_tables.shape[1]
        splits = -(-width * BLOCK_TOKENS // self._split)
        partials = torch.empty((spans, spec.heads, splits, spec.size), dtype=torch.float32, device=q.device)
        weights = torch.empty((spans, spec.heads, splits), dtype=torch.float32, device=q.device)
        paged.decode[(spans, spec.kv_heads, splits)](
            q, self._keys, self._values, batch.block_tables, batch.starts, partials, weights, width, spec.scale,
            ROWS=max(LEAST_ROWS, _members(spec)), SPLIT=self._split, **self._tiles, **self._constants(),
        )  # fmt: skip
        paged.combine[(spans, spec.heads)](
            partials, weights, batch.starts, y, splits,
            HEADS=spec.heads, SIZE=spec.size, WIDTH=self._tiles["WIDTH"], SPLIT=self._split, WINDOW=spec.window,
            num_warps=1,
        )  # fmt: skip

    def _chunk(self, q: torch.Tensor, y: torch.Tensor, batch: Batch) -> None:
        spec, spans, members = self.spec, len(batch.counts), _members(self.spec)
        rows = max(_chunk_rows(spec, self._dtype), members)
        tiles = len(q) // (rows // members) + spans - batch.num_decodes
        paged.chunk[(tiles, spec.kv_heads)](
            q, self._keys, self._values, batch.block_tables, batch.first, batch.counts, batch.starts, y,
            batch.num_decodes, spans, batch.block_tables.shape[1], spec.scale,
            ROWS=rows, MEMBERS=members, **self._tiles, **self._constants(),
        )  # fmt: skip

    def _constants(self) -> dict[str, object]:
        spec = self.spec
        return {
            "HEADS": spec.heads,
            "KV_HEADS": spec.kv_heads,
            "SIZE": spec.size,
            "BLOCK": BLOCK_TOKENS,
            "WINDOW": spec.window,
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
