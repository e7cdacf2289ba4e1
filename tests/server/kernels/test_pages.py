"""Memory for weights and caches: all zeros, in large pages."""

import re
from pathlib import Path

import pytest
import torch

from slipway_server.kernels import pages

pytestmark = pytest.mark.integration

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_it_is_zero_of_the_shape_and_begins_with_a_page() -> None:
    numbers = pages.in_large_pages((3, 5, 7), torch.bfloat16)
    assert numbers.shape == (3, 5, 7) and numbers.dtype == torch.bfloat16 and not numbers.any()
    assert numbers.data_ptr() % pages.LARGE_PAGE_BYTES == 0
    numbers += 1
    assert not pages.in_large_pages((3, 5, 7), torch.bfloat16).any()


@pytest.mark.skipif(
    not ENABLED.is_file() or "[never]" in ENABLED.read_text(), reason="NOT RUN: this kernel has no large pages"
)
def test_it_lies_in_large_pages() -> None:
    assert large_kib(pages.in_large_pages((8 << 20,), torch.int8).fill_(1).data_ptr()) > 0


def large_kib(address: int) -> int:
    """Of the mapping that this address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    raise AssertionError("not mapped")
