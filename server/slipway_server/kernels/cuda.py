"""The only module that calls CUDA: devices, their memory, and a decoder's steps as captured graphs.

What can be tested without a GPU is in packing.py.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch

from .api import BLOCK_TOKENS, Batch, CausalLM
from .packing import Ints, Layout, Packed, padded, size_for, sizes

log = logging.getLogger(__name__)


def num_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def capability(device: torch.device) -> int:
    """The major compute capability: 8 of Ampere and Ada, 9 of Hopper, 10 and 12 of Blackwell; 0 of a CPU."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


def set_device(device: str) -> None:
    """Makes `device` the current one of this process: Triton launches its kernels there."""
    torch.cuda.set_device(device)


def memory_bytes() -> tuple[int, int]:
    """Free and total memory of the device in bytes, after torch's unused memory was released."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()


def release_unused_memory() -> None:
    """Releases torch's unused GPU memory, if this process has used a GPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def to_host(*tensors: torch.Tensor) -> Callable[[], Sequence[torch.Tensor]]:
    """Starts to copy the tensors to the host. The returned function waits for the copies, but for no later work."""
    if tensors[0].device.type != "cuda":
        return lambda: tensors
    copies = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors]
    for copy, each in zip(copies, tensors, strict=True):
        copy.copy_(each, non_blocking=True)
    done: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def read() -> Sequence[torch.Tensor]:
        done.synchronize()
        return copies

    return read


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Tokens of a step that the next one reads: `tokens[rows[i]]` goes to `places[i]` of its ids."""

    tokens: torch.Tensor
    rows: Ints
    places: Ints

    def put_into(self, ids: torch.Tensor) -> None:
        """Writes to `ids` on the device, without waiting. A missing token (-1) becomes 0: its results are dropped."""
        tokens, order = self.tokens.clamp(min=0), numpy.arange(len(self.rows))
        # While the same sequences decode, which is most of the time, one operation of the host suffices.
        if numpy.array_equal(self.rows, order) and numpy.array_equal(self.places, order):
            ids[: len(order)].copy_(tokens[: len(order)])
            return
        rows, places = torch.from_numpy(numpy.stack((self.rows, self.places))).to(ids.device, non_blocking=True)
        ids.index_copy_(0, places, tokens[rows].to(ids.dtype))


class CudaSteps:
    """Computes the logits of packed steps. `scratch`: a KV block that no sequence gets.

    The first step of a size runs directly, which compiles its kernels; the second one is captured; later ones are
    replayed. So the server is ready before any graph exists, and sizes that never occur cost nothing.
    """

    def __init__(self, model: CausalLM, *, slots: int, table_width: int, scratch: int, captures: bool = True) -> None:
        """`captures`: False: every step runs directly, without CUDA graphs."""
        self._model, self._device = model, model.kernels.device
        self._captures = captures and model.kernels.replays
        self._width, self._scratch = table_width, scratch
        self._sizes = sizes(slots)
        self._graphs: dict[tuple[int, bool], _Decodes] = {}  # by size, and whether rows have adapters
        self._shared = _Shared(slots)
        self._staging = _Staging()

    def logits(self, packed: Packed, drawn: DrawnTokens | None = None) -> torch.Tensor:
        """float32 [R, vocabulary] on the device. The next step overwrites them.

        `drawn`: tokens that the device has, for ids that the host does not know yet.
        """
        if not (self._captures and packed.decodes_only):
            layout = Layout.of(packed)
            buffer = torch.empty(layout.ints, dtype=torch.int32, device=self._device)
            self._send(layout, packed, buffer, drawn)
            return self._model.logits(batch_in(layout, buffer, packed.num_decodes))
        size = size_for(len(packed.ids), self._sizes)
        whole = padded(packed, size, self._width, self._scratch, BLOCK_TOKENS)
        key = size, packed.adapters is not None
        if key not in self._graphs:
            self._graphs[key] = _Decodes(self._model, Layout.of(whole), size, self._shared)
        graph = self._graphs[key]
        self._send(graph.layout, whole, graph.inputs, drawn)
        return graph.logits()[: len(packed.ids)]

    def _send(self, layout: Layout, packed: Packed, to: torch.Tensor, drawn: DrawnTokens | None) -> None:
        self._staging.send(layout, packed, to)
        if drawn:
            part = next(part for name, part, _ in layout.slices() if name == "ids")
            drawn.put_into(to[part])


def batch_in(layout: Layout, buffer: torch.Tensor, num_decodes: int) -> Batch:
    """A batch whose fields are views of a buffer of int32."""
    return Batch(**{name: buffer[part].view(shape) for name, part, shape in layout.slices()}, num_decodes=num_decodes)


def pinned(ints: int) -> torch.Tensor:
    return torch.empty(ints, dtype=torch.int32, pin_memory=True)


class _Staging:
    """Pinned memory of the host that the device copies from; each step uses it again."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.int32)
        self._read: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, layout: Layout, packed: Packed, to: torch.Tensor) -> None:
        self._read.synchronize()  # the copy of the step before may still run
        if len(self._memory) < layout.ints:
            self._memory = pinned(2 * layout.ints)
        part = self._memory[: layout.ints]
        layout.fill(part.numpy(), packed)
        to.copy_(part, non_blocking=True)
        self._read.record()


class _Shared:
    """What all graphs share, because they run one after the other: their memory pool, and the memory of the logits."""

    def __init__(self, most: int) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self._most = most
        self._logits: torch.Tensor | None = None

    def logits_like(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for logits of this shape."""
        if self._logits is None:
            self._logits = torch.empty((self._most, like.shape[1]), dtype=like.dtype, device=like.device)
        return self._logits[: len(like)]


class _Decodes:
    """Steps of one size: the first one runs directly, later ones replay a CUDA graph if it can be captured."""

    def __init__(self, model: CausalLM, layout: Layout, size: int, shared: _Shared) -> None:
        self.layout = layout
        self.inputs = torch.empty(layout.ints, dtype=torch.int32, device=model.kernels.device)
        self._model, self._shared = model, shared
        self._batch = batch_in(layout, self.inputs, size)
        self._first: torch.Tensor | None = None  # logits of the first step, which ran without a graph
        self._replay: tuple[torch.cuda.CUDAGraph, torch.Tensor] | None = None
        self._can_capture = True

    def logits(self) -> torch.Tensor:
        """float32 [size, vocabulary] of the step in `inputs`."""
        if self._replay is None and self._first is not None and self._can_capture:
            self._capture(self._shared.logits_like(self._first))
        if self._replay is None:
            self._first = self._model.logits(self._batch)
            return self._first
        graph, logits = self._replay
        graph.replay()
        return logits

    def _capture(self, logits: torch.Tensor) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Only this thread is captured: other threads of the process may use the device.
            with torch.cuda.graph(graph, pool=self._shared.pool, capture_error_mode="thread_local"):
                logits.copy_(self._model.logits(self._batch))
        # Any exception: drivers and kernels refuse captures in many ways, and a step that runs directly needs none. A
        # device that is broken fails this very step again.
        except Exception as error:
            log.warning(
                "steps of a size cannot be captured: they stay slower",
                extra={"size": len(logits), "error": repr(error)},
            )
            self._can_capture = False
        else:
            self._replay, self._first = (graph, logits), None
