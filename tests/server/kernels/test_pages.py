"""Memory for weights and caches: all zeros, in large pages."""

import math
import re
from pathlib import Path

import pytest
import torch

from slipway_server.kernels import pages

pytestmark = pytest.mark.integration

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_memory_is_zero_of_the_shape_and_page_aligned() -> None:
    numbers = pages.LargePages().zeros((3, 5, 7), torch.bfloat16)
    assert numbers.shape == (3, 5, 7) and numbers.dtype == torch.bfloat16 and not numbers.any()
    assert numbers.data_ptr() % pages.LARGE_PAGE_BYTES == 0
    numbers += 1
    assert not pages.LargePages().zeros((3, 5, 7), torch.bfloat16).any()


@pytest.mark.skipif(
    not ENABLED.is_file() or "[never]" in ENABLED.read_text(), reason="NOT RUN: this kernel has no large pages"
)
def test_memory_is_in_large_pages() -> None:
    assert kib("AnonHugePages", pages.LargePages().zeros((8 << 20,), torch.int8).fill_(1)) > 0


def test_memory_is_populated_before_it_is_written_to() -> None:
    numbers = pages.LargePages().zeros((64 << 20,), torch.int8)
    numbers[5] = 7
    before = kib("Rss", numbers)
    pages.populate([numbers], threads=2, at_once_s=math.inf)
    assert before + 50 * 1024 < kib("Rss", numbers)
    assert numbers[5] == 7 and numbers.sum() == 7


def test_the_rest_is_populated_in_the_background() -> None:
    times = iter([0.0, 0.5, *[1.5] * 1000])
    numbers = pages.LargePages().zeros((64 << 20,), torch.int8)
    before = kib("Rss", numbers)
    rest = pages.populate([numbers], threads=1, at_once_s=1.0, clock=lambda: next(times))
    assert rest is not None
    rest.join()
    assert before + 50 * 1024 < kib("Rss", numbers)
    assert pages.populate([], threads=1, at_once_s=1.0) is None


def test_pages_are_populated_in_the_order_of_use() -> None:
    page = pages.LARGE_PAGE_BYTES
    keys, values, scales = (pages.LargePages().zeros((size,), torch.int8) for size in (2 * page + 1, 2 * page, 5))
    at = [tensor.data_ptr() for tensor in (keys, values, scales)]
    first = [(at[0], page), (at[1], page), (at[2], 5)]
    assert list(pages.in_order_of_use([keys, values, scales])) == [
        *first, (at[0] + page, page), (at[1] + page, page), (at[0] + 2 * page, 1)
    ]  # fmt: skip


def kib(field: str, of: torch.Tensor) -> int:
    """Of the mapping that it is in, and not of the process: there, other memory comes and goes."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= of.data_ptr() < int(bounds[2], 16)
        elif inside and line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError("not mapped")


def test_tensors_lie_side_by_side_in_one_mapping() -> None:
    memory = pages.LargePages(4 << 20)
    first, second = memory.zeros((3, 5, 7), torch.bfloat16), memory.zeros((1 << 20,), torch.int8)
    assert second.data_ptr() - first.data_ptr() == pages.aligned(first.nbytes) == 256
    first += 1
    assert not second.any()
    whole, more = memory.zeros((3 << 20,), torch.int8), memory.zeros((9 << 20,), torch.int8)
    assert [tensor.data_ptr() % pages.LARGE_PAGE_BYTES for tensor in (whole, more)] == [0, 0], "mappings of their own"


def test_memory_that_is_taken_whole_is_one_mapping_to_its_end() -> None:
    memory = pages.LargePages(2 * pages.aligned(33))
    first, second = memory.zeros((33,), torch.int8), memory.zeros((33,), torch.int8)
    assert second.data_ptr() - first.data_ptr() == 64


def test_a_part_within_a_page_is_populated_from_the_start_of_the_page() -> None:
    memory, page = pages.LargePages(), pages.LARGE_PAGE_BYTES
    before, tensor = memory.zeros((5000,), torch.int8), memory.zeros((page,), torch.int8)
    start = before.data_ptr()
    assert list(pages.in_order_of_use([tensor])) == [(start + 4096, page - 4096), (start + page, 5056)]
    pages.populate([tensor], threads=1, at_once_s=math.inf)
