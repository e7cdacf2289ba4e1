"""The operations in C, for bfloat16 and int8 on the CPUs that c/build.py lists; see c/native.c."""

import ctypes
from collections.abc import Sequence
from ctypes import Structure, byref, c_float, c_int, c_int64, c_void_p
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from .api import BLOCK_TOKENS, AdaptableGated, AdaptableLinear, Attention, AttentionSpec, Batch, Layer, Map
from .c.library import KernelsUnavailable, Library, library
from .draws import STRETCH, Draws, TokenMasks, mask
from .int4 import PackedInt4, for_products, packed
from .low_rank import MOST_PARTS, NO_ADAPTERS, AdapterRoom, LowRank, Update, column_factors
from .pages import LargePages, populate
from .weights import GroupedInt4, Weight, beside, dense

TILE_ROWS, MAX_HEAD = 32, 256
POPULATE_S = 1.0  # by which allocating the caches' pages may delay the start
NOTHING, ADD, SILU_GATED, GELU_GATED = range(4)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _LowRank(Structure):
    _fields_ = [*_fields(c_void_p, "a b"), ("rank", c_int64), ("scale", c_float), ("reserved", c_int)]


class _Adapter(Structure):
    _fields_ = [("parts", _LowRank * MOST_PARTS), ("magnitude", c_void_p)]


class _Adapters(Structure):
    _fields_ = [
        *_fields(c_void_p, "table slots"),
        ("ends", c_int64 * MOST_PARTS),
        *_fields(c_int64, "parts most_rank"),
    ]


class _Linear(Structure):
    _fields_ = [
        *_fields(c_void_p, "x w w_scale w_sum w_zero bias other y"),
        *_fields(c_int64, "m k n group"),
        *_fields(c_int, "after y_float is_int8"),
        ("adapters", _Adapters),
    ]


class _Pack(Structure):
    _fields_ = [*_fields(c_void_p, "x w w_scale w_sum"), *_fields(c_int64, "n k"), ("is_int8", c_int)]


class _Rows(Structure):
    _fields_ = [*_fields(c_void_p, "w w_scale ids y"), *_fields(c_int64, "m k"), ("is_int8", c_int)]


class _Sample(Structure):
    _fields_ = [*_fields(c_void_p, "x draws positions room ids finite"), *_fields(c_int64, "m n stride room_each")]


class _Mask(Structure):
    _fields_ = [*_fields(c_void_p, "x rows bits which finite"), *_fields(c_int64, "m n stride words")]


class _Norm(Structure):
    _fields_ = [*_fields(c_void_p, "x weight y"), *_fields(c_int64, "m k"), ("epsilon", c_float)]


class _Rope(Structure):
    _fields_ = [
        *_fields(c_void_p, "qkv q_norm k_norm cos sin positions slot_mapping q keys values key_scales value_scales"),
        *_fields(c_int64, "tokens heads kv_heads size rotary"),
        ("epsilon", c_float),
    ]


class _Attend(Structure):
    _fields_ = [
        *_fields(c_void_p, "q keys values key_scales value_scales y block_tables first counts starts"),
        *_fields(c_int64, "spans table_width heads kv_heads size window"),
        *_fields(c_float, "scale cap"),
    ]


class _Layer(Structure):
    _fields_ = [
        *_fields(_Norm, "norm_in norm_attended norm_mlp norm_mixed"),
        *_fields(_Linear, "qkv out gated down"),
        ("rope", _Rope),
        ("attend", _Attend),
    ]


class _Step(Structure):
    _fields_ = [
        *_fields(c_void_p, "x y normed addend qkv q attended inner"),
        *_fields(c_void_p, "positions slot_mapping block_tables first counts starts rows slots row_slots spent_ns"),
        *_fields(c_int64, "tokens hidden spans table_width num_rows"),
    ]


class NativeKernels:
    name = "native"
    replays = False
    dtype = torch.bfloat16
    device = torch.device("cpu")

    def __init__(
        self,
        threads: int,
        *,
        int8: bool = False,
        kv_int8: bool = False,
        adapters: AdapterRoom = NO_ADAPTERS,
        int4: bool = False,
    ) -> None:
        """Raises KernelsUnavailable.

        Args:
            int8: for weights and activations.
            kv_int8: for the KV cache.
            int4: for the weights of layers, where their shape allows it; else, and for the head, int8.
        """
        self._kind, self._threads, self._int8, self._kv_int8 = library(threads), threads, int8 or int4, kv_int8
        self._int4, self._keeps_int4 = int4, not int8
        self._room = adapters
        self._library, self.instruction_set = self._kind.functions, self._kind.instruction_set
        self._layers: list[_NativeAttention] = []
        self._memory = LargePages()  # of the weights

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, parts: tuple[int, ...] = ()) -> AdaptableLinear:
        product = _Product(self._kind, self._memory, self._chosen(weight), bias, int8=self._int8)
        product.make_room(self._room, parts or (len(weight),))
        return product

    def gated(self, gate: Weight, up: Weight, activation: str) -> AdaptableGated:
        # Half a panel of gate beside the same half of up: one product has both in registers at its end.
        half = self._kind.panel // 2
        _divisible("the inner size", len(gate), half)
        both = self._chosen(beside(gate, up, half))
        after = SILU_GATED if activation == "silu" else GELU_GATED
        product = _GatedProduct(self._kind, self._memory, both, None, int8=self._int8, after=after)
        product.make_room(self._room, (len(gate), len(up)))
        return product

    def _chosen(self, weight: Weight) -> Weight:
        """In 4 bits where products take it so, else plain."""
        kept = for_products(weight, rounds=self._int4) if self._keeps_int4 else None
        return dense(weight) if kept is None else kept

    def embedding(self, weight: torch.Tensor) -> Map:
        # A copy: a tensor that lies in a mapped file would keep the whole file in this process's memory.
        table = weight.to(self.dtype, copy=True)
        return lambda ids: table[ids]

    def tied(self, weight: torch.Tensor) -> tuple[Map, Map]:
        product, outputs = self._head(weight), len(weight)
        return product.rows, lambda x: product(x)[:, :outputs]

    def head(self, weight: torch.Tensor) -> Map:
        product, outputs = self._head(weight), len(weight)
        return lambda x: product(x)[:, :outputs]

    def _head(self, weight: torch.Tensor) -> "_Product":
        missing = -len(weight) % self._kind.panel
        padded = torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight
        return _Product(self._kind, self._memory, padded, None, int8=self._int8, as_float=True)

    def norm(self, weight: torch.Tensor, epsilon: float) -> Map:
        return _NativeNorm(self._library, weight, epsilon)

    def attention(self, spec: AttentionSpec) -> Attention:
        layer = _NativeAttention(self._library, spec, int8=self._kv_int8)
        self._layers.append(layer)
        return layer

    def layers(self, layers: Sequence[Layer]) -> "NativeLayers":
        return NativeLayers(self._library, layers)

    def sample(self, logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        count, size = logits.shape
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        ids, finite = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.bool)
        room_each = 18 * -(-size // STRETCH) + 32
        room = torch.empty(count, room_each)
        job = _Sample(
            logits.data_ptr(), draws.rows.ctypes.data, draws.positions.ctypes.data, room.data_ptr(), ids.data_ptr(),
            finite.data_ptr(), count, size, logits.stride(0), room_each,
        )  # fmt: skip
        self._library.slipway_sample(byref(job))
        return ids, finite

    def mask(self, logits: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
        if logits.stride(1) != 1:
            return mask(logits, masks)
        rows, which = masks.of_logits, masks.of_bits
        finite = torch.empty(len(rows), dtype=torch.bool)
        job = _Mask(
            logits.data_ptr(), rows.ctypes.data, masks.bits.ctypes.data, which.ctypes.data, finite.data_ptr(),
            len(rows), logits.shape[1], logits.stride(0), masks.bits.shape[1],
        )  # fmt: skip
        self._library.slipway_mask(byref(job))
        return finite

    def rest(self) -> None:
        self._library.slipway_rest()

    @property
    def bytes_per_block(self) -> int:
        return sum(layer.bytes_per_block for layer in self._layers)

    def reserve(self, blocks: int) -> None:
        memory = LargePages(blocks * self.bytes_per_block)  # a block's part of each tensor is whole cache lines
        for layer in self._layers:
            layer.reserve(blocks, memory)

    def populate(self) -> None:
        populate((numbers for layer in self._layers for numbers in layer.caches), self._threads, POPULATE_S)

    def clear(self, blocks: list[int]) -> None:
        for layer in self._layers:
            layer.clear(blocks)


class _Product:
    """x @ weight.T in panels of outputs, summed over pairs (bfloat16), fours (int8) or groups (int4) of inputs."""

    def __init__(
        self,
        kind: Library,
        memory: LargePages,
        weight: Weight,
        bias: torch.Tensor | None,
        *,
        int8: bool,
        after: int = NOTHING,
        as_float: bool = False,
    ) -> None:
        outputs, inputs = weight.shape
        _divisible("the outputs of a linear layer", outputs, kind.panel)
        _divisible("the inputs of a linear layer", inputs, 16)
        library = kind.functions
        self._library, self._call, self._panel = library, library.slipway_linear, kind.panel
        self._width = outputs // 2 if after in (SILU_GATED, GELU_GATED) else outputs
        self._kind = torch.float32 if as_float else torch.bfloat16
        self._bias = None if bias is None else bias.float().contiguous()
        self.job = _Linear(k=inputs, n=outputs, after=after, y_float=as_float)
        self.job.bias = None if self._bias is None else self._bias.data_ptr()
        if isinstance(weight, GroupedInt4):
            self._int4: PackedInt4 | None = self._in_groups(packed(weight, kind.panel, memory.zeros))
        else:
            self._int4 = None
            self._pack(memory, weight, int8=int8)

    def _in_groups(self, weight: PackedInt4) -> PackedInt4:
        job = self.job
        job.w, job.w_scale, job.w_zero = (part.data_ptr() for part in (weight.words, weight.scales, weight.zeros))
        job.group = weight.group
        return weight

    def _pack(self, memory: LargePages, weight: torch.Tensor, *, int8: bool) -> None:
        """Packs a plain weight [outputs, inputs], which int8 rounds."""
        outputs, inputs = weight.shape
        together = 4 if int8 else 2
        self.job.is_int8 = int8
        weight = weight.to(torch.bfloat16).contiguous()
        panels = (outputs // self._panel, inputs // together, self._panel, together)
        self._packed = memory.zeros(panels, torch.int8 if int8 else torch.bfloat16)
        pack = _Pack(x=weight.data_ptr(), w=self._packed.data_ptr(), n=outputs, k=inputs, is_int8=int8)
        if int8:
            self._scale, self._sum = torch.empty(outputs), torch.empty(outputs, dtype=torch.int32)
            pack.w_scale = self.job.w_scale = self._scale.data_ptr()
            pack.w_sum = self.job.w_sum = self._sum.data_ptr()
        self._library.slipway_pack(byref(pack))
        self.job.w = self._packed.data_ptr()

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows `ids` of the packed weight, [T, inputs]: an embedding that shares the head's memory.

        With int8 it has the head's rounding too.
        """
        ids = ids.to(torch.int64)
        y = torch.empty((len(ids), self.job.k), dtype=torch.bfloat16)
        about = self.job
        job = _Rows(about.w, about.w_scale, ids.data_ptr(), y.data_ptr(), len(ids), about.k, about.is_int8)
        self._library.slipway_rows(byref(job))
        return y

    def __call__(
        self, x: torch.Tensor, add: torch.Tensor | None = None, slots: torch.Tensor | None = None
    ) -> torch.Tensor:
        x, job = x.contiguous(), self.job
        y = torch.empty((x.shape[0], self._width), dtype=self._kind)
        job.x, job.y, job.m = x.data_ptr(), y.data_ptr(), x.shape[0]
        job.adapters.slots = None if slots is None else slots.data_ptr()
        if add is not None:
            job.after, job.other = ADD, add.data_ptr()
        elif job.after == ADD:
            job.after = NOTHING
        failed = self._call(byref(job))
        job.adapters.slots = None
        if failed:
            raise torch.OutOfMemoryError("no memory for the packed input of a linear layer")
        return y

    # --- adapters -----------------------------------------------------------------------------------------------------

    def make_room(self, room: AdapterRoom, parts: tuple[int, ...]) -> None:
        """Reserves the table of adapters. `parts`: outputs of each of the layers that this one is made of."""
        self._parts = parts
        if not room.slots:
            return
        self._divide(parts)
        self._table = (_Adapter * room.slots)()
        self._prepared: list[_NativeUpdate | None] = [None] * room.slots  # keeps the memory that the table points to
        adapters = self.job.adapters
        adapters.table, adapters.parts, adapters.most_rank = ctypes.addressof(self._table), len(parts), room.rank
        adapters.ends[:] = [*accumulate(parts), *([sum(parts)] * (MOST_PARTS - len(parts)))]

    def _divide(self, parts: tuple[int, ...]) -> None:
        for size in parts:
            _divisible("the outputs of a part of a linear layer", size, self._panel)

    def prepare(self, update: Update) -> "_NativeUpdate":
        factors = column_factors(update, self._parts, self._weight_rows)
        return _NativeUpdate(update, None if factors is None else self._in_panels(factors), self._panel // 2)

    def adapt(self, slot: int, prepared: "_NativeUpdate | None") -> None:
        self._table[slot] = prepared.entry if prepared else _Adapter()
        self._prepared[slot] = prepared

    def _in_panels(self, outputs: torch.Tensor) -> torch.Tensor:
        """Numbers of the outputs in the order of the panels."""
        return outputs

    def _place(self, outputs: torch.Tensor) -> torch.Tensor:
        """Where each output lies in the order of the panels."""
        return outputs

    def _weight_rows(self, first: int, end: int) -> torch.Tensor:
        """Rows of the weight as it is computed with, [end - first, inputs] float32, on the calling thread alone."""
        places = self._place(torch.arange(first, end))
        if self._int4:
            return self._int4.rows(places, self._panel)
        rows = self._packed[places // self._panel, :, places % self._panel].reshape(end - first, -1).float()
        return rows * self._scale[places, None] if self.job.is_int8 else rows


class _GatedProduct(_Product):
    """Half a panel of gates beside the same half of ups."""

    def __call__(self, x: torch.Tensor, slots: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        return super().__call__(x, None, slots)

    def _divide(self, parts: tuple[int, ...]) -> None:
        """`NativeKernels.gated` has done it."""

    def _in_panels(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.view(2, -1, self._panel // 2).transpose(0, 1).flatten().contiguous()

    def _place(self, outputs: torch.Tensor) -> torch.Tensor:
        half, inner = self._panel // 2, self._parts[0]
        part, column = outputs // inner, outputs % inner
        return column // half * self._panel + part * half + column % half


class _NativeUpdate:
    """What an adapter adds to a layer, as c/low_rank.h reads it, in bfloat16."""

    def __init__(self, update: Update, magnitude: torch.Tensor | None, half: int) -> None:
        """`half`: of a panel, in columns."""
        self.entry = _Adapter()
        self.tensors: list[torch.Tensor] = []
        for number, part in enumerate(update):
            if part is not None:
                self.entry.parts[number] = self._part(part, half)
        if magnitude is not None:
            self.tensors.append(magnitude.float().contiguous())
            self.entry.magnitude = self.tensors[-1].data_ptr()
        self.size_bytes = sum(tensor.nbytes for tensor in self.tensors)

    def _part(self, part: LowRank, half: int) -> _LowRank:
        a, b = _in_groups(part.a.to(torch.bfloat16), half), part.b.to(torch.bfloat16)
        b = b.view(-1, half, b.shape[1]).transpose(1, 2).contiguous()
        self.tensors += (a, b)
        return _LowRank(a=a.data_ptr(), b=b.data_ptr(), rank=part.a.shape[0], scale=part.scale)


def _in_groups(a: torch.Tensor, half: int) -> torch.Tensor:
    """Rows of a [rank, inputs] in groups of 8, then 4, 2 and 1; in each, `half` numbers of all its rows together."""
    groups, first = [], 0
    while first < len(a):
        count = next(size for size in (8, 4, 2, 1) if size <= len(a) - first)
        group = a[first : first + count].view(count, -1, half).transpose(0, 1)
        groups.append(group.flatten())
        first += count
    return torch.cat(groups)


class _NativeNorm:
    def __init__(self, library: ctypes.CDLL, weight: torch.Tensor, epsilon: float) -> None:
        _divisible("the hidden size", len(weight), 16)
        self._call, self._weight = library.slipway_norm, weight.float().contiguous()
        self.job = _Norm(weight=self._weight.data_ptr(), k=len(weight), epsilon=epsilon)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x, job = x.contiguous(), self.job
        y = torch.empty_like(x)
        job.x, job.y, job.m = x.data_ptr(), y.data_ptr(), x.shape[0]
        self._call(byref(job))
        return y


class _NativeAttention:
    def __init__(self, library: ctypes.CDLL, spec: AttentionSpec, *, int8: bool) -> None:
        _divisible("the head size", spec.size, 32)
        if spec.size > MAX_HEAD or spec.heads // spec.kv_heads > TILE_ROWS:
            raise KernelsUnavailable(f"heads of {spec.size} numbers, {spec.heads // spec.kv_heads} to a group")
        self.spec = spec
        self._library, self._int8 = library, int8
        self.caches: tuple[torch.Tensor, ...] = ()
        self.rope = _Rope(heads=spec.heads, kv_heads=spec.kv_heads, size=spec.size, epsilon=spec.epsilon)
        if spec.rotary is not None:
            self.rope.rotary = 2 * spec.rotary.cos.shape[1]
            self.rope.cos, self.rope.sin = spec.rotary.cos.data_ptr(), spec.rotary.sin.data_ptr()
        if spec.q_norm is not None and spec.k_norm is not None:
            self.rope.q_norm, self.rope.k_norm = spec.q_norm.data_ptr(), spec.k_norm.data_ptr()
        self.attend = _Attend(
            heads=spec.heads, kv_heads=spec.kv_heads, size=spec.size, window=spec.window, scale=spec.scale, cap=spec.cap
        )

    @property
    def bytes_per_block(self) -> int:
        """With int8, each number takes a byte, and each key and value of a token and head a float32 scale."""
        each = self.spec.size + 4 if self._int8 else 2 * self.spec.size
        return 2 * self.spec.kv_heads * BLOCK_TOKENS * each

    def reserve(self, blocks: int, memory: LargePages) -> None:
        heads, numbers = self.spec.kv_heads, BLOCK_TOKENS * self.spec.size
        kind = torch.int8 if self._int8 else torch.bfloat16
        keys, values = (memory.zeros((blocks, heads, numbers), kind) for _ in range(2))
        self.caches = (keys, values)
        self.rope.keys = self.attend.keys = keys.data_ptr()
        self.rope.values = self.attend.values = values.data_ptr()
        if self._int8:
            of_keys, of_values = (memory.zeros((blocks, heads, BLOCK_TOKENS), torch.float32) for _ in range(2))
            self.caches += (of_keys, of_values)
            self.rope.key_scales = self.attend.key_scales = of_keys.data_ptr()
            self.rope.value_scales = self.attend.value_scales = of_values.data_ptr()

    def clear(self, blocks: list[int]) -> None:
        for numbers in self.caches:
            numbers[blocks] = 0

    def __call__(self, qkv: torch.Tensor, batch: Batch) -> torch.Tensor:
        rope, attend, width = self.rope, self.attend, self.spec.heads * self.spec.size
        q, y = (
            torch.empty((qkv.shape[0], width), dtype=torch.bfloat16),
            torch.empty((qkv.shape[0], width), dtype=torch.bfloat16),
        )
        rope.qkv, rope.q, rope.tokens = qkv.data_ptr(), q.data_ptr(), qkv.shape[0]
        rope.positions, rope.slot_mapping = batch.positions.data_ptr(), batch.slot_mapping.data_ptr()
        self._library.slipway_rope(byref(rope))
        attend.q, attend.y = q.data_ptr(), y.data_ptr()
        attend.block_tables, attend.first = batch.block_tables.data_ptr(), batch.first.data_ptr()
        attend.counts, attend.starts = batch.counts.data_ptr(), batch.starts.data_ptr()
        attend.spans, attend.table_width = batch.block_tables.shape
        self._library.slipway_attend(byref(attend))
        return y


class NativeLayers:
    """All layers of a decoder in one call: Python between operations would cost small steps a tenth of their time."""

    def __init__(self, library: ctypes.CDLL, layers: Sequence[Any]) -> None:
        self._call, self._layers = library.slipway_layers, layers
        self.spent_ns = (c_int64 * 3)()  # in linear layers, attention and norms, since this was created
        first = layers[0]
        self._hidden, heads = first.qkv.job.k, first.attention.spec.heads * first.attention.spec.size
        self._widths = {
            "normed": self._hidden, "addend": self._hidden, "qkv": first.qkv.job.n, "q": heads, "attended": heads,
            "inner": first.gated.job.n // 2,
        }  # fmt: skip
        self._scratch: dict[str, torch.Tensor] = {}
        self._tokens = 0

    @cached_property
    def _jobs(self) -> Any:
        """Made at the first step: only then are the caches allocated."""
        return (_Layer * len(self._layers))(*map(_job_of, self._layers))

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        y = torch.empty((len(batch.rows), self._hidden), dtype=torch.bfloat16)
        step = _Step(
            **self._scratch_for(len(x)), x=x.data_ptr(), y=y.data_ptr(), spent_ns=ctypes.addressof(self.spent_ns),
            positions=batch.positions.data_ptr(), slot_mapping=batch.slot_mapping.data_ptr(),
            block_tables=batch.block_tables.data_ptr(), first=batch.first.data_ptr(),
            counts=batch.counts.data_ptr(), starts=batch.starts.data_ptr(), rows=batch.rows.data_ptr(), tokens=len(x),
            hidden=self._hidden, spans=batch.block_tables.shape[0],
            table_width=batch.block_tables.shape[1], num_rows=len(batch.rows),
        )  # fmt: skip
        if batch.adapters is not None:
            row_slots = batch.adapters[batch.rows.long()]
            step.slots, step.row_slots = batch.adapters.data_ptr(), row_slots.data_ptr()
        if self._call(self._jobs, c_int64(len(self._layers)), byref(step)):
            raise torch.OutOfMemoryError("no memory for the packed input of a linear layer")
        return y

    def _scratch_for(self, tokens: int) -> dict[str, int]:
        """The addresses of the buffers between operations, which grow to the largest step so far (it is bounded)."""
        if tokens > self._tokens:
            self._scratch = {
                name: torch.empty((tokens, width), dtype=torch.bfloat16) for name, width in self._widths.items()
            }
            self._tokens = tokens
        return {name: room.data_ptr() for name, room in self._scratch.items()}


def _job_of(layer: Any) -> _Layer:
    made = _Layer(qkv=layer.qkv.job, out=layer.out.job, gated=layer.gated.job, down=layer.down.job)
    made.rope, made.attend = layer.attention.rope, layer.attention.attend
    for name in ("norm_in", "norm_attended", "norm_mlp", "norm_mixed"):
        if norm := getattr(layer, name):
            setattr(made, name, norm.job)
    return made


def _divisible(what: str, size: int, by: int) -> None:
    if size % by:
        raise KernelsUnavailable(f"{what} is {size}, not a multiple of {by}")
