"""Memory for weights and caches: all zeros, in the pages that were asked for."""

import re
from pathlib import Path

import pytest
import torch

from slipway_server.kernels import pages

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("make", [pages.in_large_pages, pages.in_pages_that_come_fast])
def test_it_is_zero_of_the_shape_and_begins_with_a_page(make: object) -> None:
    assert callable(make)
    numbers = make((3, 5, 7), torch.bfloat16)
    assert numbers.shape == (3, 5, 7) and numbers.dtype == torch.bfloat16 and not numbers.any()
    assert numbers.data_ptr() % pages.LARGE_PAGE_BYTES == 0
    numbers += 1
    assert not make((3, 5, 7), torch.bfloat16).any()


@pytest.mark.skipif(
    not ENABLED.is_file() or "[never]" in ENABLED.read_text(), reason="NOT RUN: this kernel has no large pages"
)
@pytest.mark.parametrize("fast", [False, True])
def test_caches_take_large_pages_only_where_those_come_fast(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "large_pages_come_fast", lambda: fast)
    numbers = pages.in_pages_that_come_fast((8 << 20,), torch.int8).fill_(1)
    assert (large_kib(numbers.data_ptr()) > 0) == fast
    assert large_kib(pages.in_large_pages((8 << 20,), torch.int8).fill_(1).data_ptr()) > 0


def test_getting_pages_is_timed_on_real_ones() -> None:
    assert 0 < pages.seconds_to_get(1 << 20, large=False) < 10


def large_kib(address: int) -> int:
    """Of the mapping that this address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    raise AssertionError("not mapped")
