"""Memory for weights and caches: zeros, in pages of 2 MiB or in small ones, whichever serve better.

Zeros, because a weight of 0 times what was there before must not become "not a number". Untouched memory is only
promised, so large caches cost nothing until they are used.
"""

import contextlib
import math
import mmap
import time
from collections.abc import Sequence
from functools import cache

import torch

LARGE_PAGE_BYTES = 2 << 20
PROBE_BYTES = 32 * LARGE_PAGE_BYTES
MADV_HUGEPAGE, MADV_POPULATE_WRITE = 14, 23  # of sys/mman.h


def in_large_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """In pages of 2 MiB where the kernel has them: what is read end to end in each step misses fewer of them."""
    return _zeros(shape, dtype, large=True)


def in_pages_that_come_fast(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """For what is touched first while requests wait.

    Large pages are read faster, by some percent. But where a host gives its guests memory only when they touch it, a
    large page takes milliseconds to come, and small ones are mostly there already.
    """
    return _zeros(shape, dtype, large=large_pages_come_fast())


@cache
def large_pages_come_fast() -> bool:
    """Measured once. Where the kernel cannot be asked for pages, they are taken to."""
    try:
        return seconds_to_get(PROBE_BYTES, large=True) < 2 * seconds_to_get(PROBE_BYTES, large=False)
    except OSError:
        return True


def seconds_to_get(size_bytes: int, *, large: bool) -> float:
    """Raises OSError where the kernel is older than Linux 5.14."""
    with _mapped(size_bytes, large=large) as memory:
        began = time.perf_counter()
        memory.madvise(MADV_POPULATE_WRITE)
        return time.perf_counter() - began


def _zeros(shape: Sequence[int], dtype: torch.dtype, *, large: bool) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    raw = torch.frombuffer(_mapped(size + LARGE_PAGE_BYTES, large=large), dtype=torch.uint8)
    start = -raw.data_ptr() % LARGE_PAGE_BYTES
    return raw[start : start + size].view(dtype).view(tuple(shape))


def _mapped(size_bytes: int, *, large: bool) -> mmap.mmap:
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large:
        with contextlib.suppress(OSError):
            memory.madvise(MADV_HUGEPAGE)
    return memory
