"""Memory for weights and caches: zeros, in pages of 2 MiB where the kernel has them."""

import contextlib
import ctypes
import math
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

import torch

LARGE_PAGE_BYTES, CACHE_LINE_BYTES = 2 << 20, 64
# Of one mapping for weights. What is not used of it is address space and no memory.
MAPPING_BYTES = 256 << 20
MADV_HUGEPAGE, MADV_POPULATE_WRITE = 14, 23  # of sys/mman.h; the latter since Linux 5.14

Piece = tuple[int, int]  # address, bytes


class LargePages:
    """Memory for tensors that live as long as the model, in pages of 2 MiB where Linux has them.

    Tensors lie side by side in few mappings. With a mapping for each of them, each would end within a page whose rest
    nothing uses: 6 MiB in each layer of a small model.
    """

    def __init__(self, mapping_bytes: int = MAPPING_BYTES) -> None:
        self._mapping_bytes = mapping_bytes
        self._rest = torch.empty(0, dtype=torch.uint8)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros that begins at a cache line.

        Zeros, because an attention weight of 0 times a NaN in unused memory would be NaN. Linux allocates a page at its
        first write, so large caches cost nothing until they are used.
        """
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._rest):
            self._rest = _mapping(max(size, self._mapping_bytes))
        numbers, self._rest = self._rest[:size], self._rest[aligned(size) :]
        return numbers.view(dtype).view(tuple(shape))


def aligned(size: int) -> int:
    """`size`, in bytes, up to the end of its last cache line."""
    return -(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


def _mapping(size: int) -> torch.Tensor:
    """`size` bytes from the start of a large page. The mapping lives as long as a tensor in it does."""
    memory = mmap.mmap(-1, size + LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(MADV_HUGEPAGE)
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    start = -raw.data_ptr() % LARGE_PAGE_BYTES
    return raw[start : start + size]


def populate(
    tensors: Iterable[torch.Tensor],
    threads: int,
    at_once_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> threading.Thread | None:
    """Has Linux allocate the pages of tensors in LargePages, whose content does not change.

    Otherwise the first write to a page waits while Linux clears it, or while a hypervisor provides it: up to a tenth of
    a busy step. `threads` threads do it for `at_once_s` seconds; then one thread with idle priority does the rest.
    Returns that thread, or None if nothing is left. Before Linux 5.14 this does nothing.
    """
    pieces = deque(in_order_of_use(tensors))
    madvise = ctypes.CDLL(None).madvise
    until_s = clock() + at_once_s

    def take(until_s: float) -> None:
        with contextlib.suppress(IndexError):
            while clock() < until_s:
                start, size = pieces.popleft()
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), MADV_POPULATE_WRITE)

    def take_when_idle() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        take(math.inf)

    helpers = [threading.Thread(target=take, args=(until_s,), name="pages") for _ in range(threads)]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    if not pieces:
        return None
    rest = threading.Thread(target=take_when_idle, name="pages", daemon=True)
    rest.start()
    return rest


def in_order_of_use(caches: Iterable[torch.Tensor]) -> Iterator[Piece]:
    """The first page of each cache, then the second pages: blocks are allocated from the first on, in all caches."""
    return (piece for pages in zip_longest(*map(_pieces, caches)) for piece in pages if piece)


def _pieces(tensor: torch.Tensor) -> Iterator[Piece]:
    """A tensor's parts of large pages, one by one: while Linux allocates one, this process can map no other memory.

    They begin at pages, as madvise requires: the first one with the end of what lies before the tensor.
    """
    end = tensor.data_ptr() + tensor.nbytes
    start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    while start < end:
        stop = min(end, (start // LARGE_PAGE_BYTES + 1) * LARGE_PAGE_BYTES)
        yield start, stop - start
        start = stop
