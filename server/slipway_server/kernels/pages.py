"""Memory for weights and caches: zeros, in pages of 2 MiB where the kernel has them."""

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch

LARGE_PAGE_BYTES = 2 << 20
MADV_HUGEPAGE = 14  # of sys/mman.h


def in_large_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros: what is read end to end in each step misses fewer pages of 2 MiB.

    A weight of 0 times what was there before must not become "not a number". Untouched memory is only promised, so
    large caches cost nothing until they are used.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size + LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(MADV_HUGEPAGE)
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    start = -raw.data_ptr() % LARGE_PAGE_BYTES
    return raw[start : start + size].view(dtype).view(tuple(shape))
