"""Steps of a decoder on a GPU: one copy to it for each, and decodes replayed as captured graphs.

The only room that calls CUDA. Not run on a GPU yet: what can be proven without one is in packing.py.
"""

import logging
from typing import TYPE_CHECKING

import torch

from ..kernels.api import BLOCK_TOKENS, Batch
from .packing import Layout, Packed, padded, size_for, sizes

if TYPE_CHECKING:
    from .runner import Model

log = logging.getLogger(__name__)


class CudaSteps:
    """Packed steps to logits. `scratch`: a block of the cache that no sequence is given.

    The first step of a size runs as it is, which compiles what it needs; the second is captured; all others are
    replays. So the server is ready before any graph is there, and sizes that never come cost nothing.
    """

    def __init__(self, model: "Model", *, slots: int, table_width: int, scratch: int) -> None:
        self._model, self._device = model, model.kernels.device
        self._width, self._scratch = table_width, scratch
        self._sizes = sizes(slots)
        self._graphs: dict[int, _Decodes] = {}
        self._shared = _Shared(slots)
        self._staging = _Staging()

    def logits(self, packed: Packed) -> torch.Tensor:
        """float32 [R, vocabulary] on the device, where they are overwritten by the next step."""
        if not (self._model.kernels.replays and packed.decodes_only):
            layout = Layout.of(packed)
            buffer = torch.empty(layout.ints, dtype=torch.int32, device=self._device)
            self._staging.send(layout, packed, buffer)
            return self._model.logits(batch_in(layout, buffer, packed.num_decodes))
        size = size_for(len(packed.ids), self._sizes)
        whole = padded(packed, size, self._width, self._scratch, BLOCK_TOKENS)
        if size not in self._graphs:
            self._graphs[size] = _Decodes(self._model, Layout.of(whole), size, self._shared)
        graph = self._graphs[size]
        self._staging.send(graph.layout, whole, graph.inputs)
        return graph.logits()[: len(packed.ids)]


def batch_in(layout: Layout, buffer: torch.Tensor, num_decodes: int) -> Batch:
    """A step's fields where they lie in a buffer of int32."""
    return Batch(**{name: buffer[part].view(shape) for name, part, shape in layout.slices()}, num_decodes=num_decodes)


def pinned(ints: int) -> torch.Tensor:
    return torch.empty(ints, dtype=torch.int32, pin_memory=True)


class _Staging:
    """Memory of the host that the device reads by itself, used for one step after another."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.int32)
        self._read: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, layout: Layout, packed: Packed, to: torch.Tensor) -> None:
        self._read.synchronize()  # the step before may not have been copied yet
        if len(self._memory) < layout.ints:
            self._memory = pinned(2 * layout.ints)
        part = self._memory[: layout.ints]
        layout.fill(part.numpy(), packed)
        to.copy_(part, non_blocking=True)
        self._read.record()


class _Shared:
    """What all graphs use, one after the other: the memory in between, and a place for the logits."""

    def __init__(self, most: int) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self._most = most
        self._logits: torch.Tensor | None = None

    def room(self, like: torch.Tensor) -> torch.Tensor:
        """For logits as these."""
        if self._logits is None:
            self._logits = torch.empty((self._most, like.shape[1]), dtype=like.dtype, device=like.device)
        return self._logits[: len(like)]


class _Decodes:
    """Steps of one size."""

    def __init__(self, model: "Model", layout: Layout, size: int, shared: _Shared) -> None:
        self.layout = layout
        self.inputs = torch.empty(layout.ints, dtype=torch.int32, device=model.kernels.device)
        self._model, self._shared = model, shared
        self._batch = batch_in(layout, self.inputs, size)
        self._first: torch.Tensor | None = None  # logits of the first step, which was none of a graph
        self._replay: tuple[torch.cuda.CUDAGraph, torch.Tensor] | None = None
        self._can_capture = True

    def logits(self) -> torch.Tensor:
        """float32 [size, vocabulary] of what lies in `inputs`."""
        if self._replay is None and self._first is not None and self._can_capture:
            self._capture(self._shared.room(self._first))
        if self._replay is None:
            self._first = self._model.logits(self._batch)
            return self._first
        graph, logits = self._replay
        graph.replay()
        return logits

    def _capture(self, logits: torch.Tensor) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Only what this thread does is captured: others may be at work in the process.
            with torch.cuda.graph(graph, pool=self._shared.pool, capture_error_mode="thread_local"):
                logits.copy_(self._model.logits(self._batch))
        except torch.OutOfMemoryError:
            log.warning("no memory to capture steps of a size: they stay slower", extra={"size": len(logits)})
            self._can_capture = False
        else:
            self._replay, self._first = (graph, logits), None
