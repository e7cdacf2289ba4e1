"""Batches of sequences whose blocks lie anywhere, for tests of kernels."""

from typing import Any

import pytest
import torch

from slipway_server.kernels import native
from slipway_server.kernels.api import BLOCK_TOKENS, AttentionSpec, Batch
from slipway_server.kernels.c.library import KernelsUnavailable

POSITIONS = 300


def why_not_native() -> str:
    """Why the C kernels cannot run here; empty where they can."""
    try:
        native.library(2)
    except KernelsUnavailable as reason:
        return f"NOT RUN, the C kernels: {reason}"
    return ""


needs_native = pytest.mark.skipif(bool(why_not_native()), reason=why_not_native() or "they are there")


def a_batch(spans: list[tuple[int, int]], width: int = POSITIONS // BLOCK_TOKENS + 1) -> Batch:
    """Spans of (start, count), each of a sequence whose blocks lie anywhere."""
    block_tables = torch.randperm(len(spans) * width, generator=torch.Generator().manual_seed(3)).int().view(-1, width)
    counts = torch.tensor([count for _, count in spans])
    positions = torch.cat([torch.arange(start, start + count) for start, count in spans])
    owner = torch.repeat_interleave(torch.arange(len(spans)), counts)
    slot_mapping = block_tables[owner, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return Batch(
        ids=torch.zeros(len(positions), dtype=torch.int64),
        positions=positions.int(),
        slot_mapping=slot_mapping.int(),
        first=(counts.cumsum(0) - counts).int(),
        counts=counts.int(),
        starts=torch.tensor([start for start, _ in spans]).int(),
        block_tables=block_tables,
        rows=torch.empty(0, dtype=torch.int64),
        num_decodes=next((number for number, (_, count) in enumerate(spans) if count != 1), len(spans)),
    )


def width_of(spec: AttentionSpec) -> int:
    return (spec.heads + 2 * spec.kv_heads) * spec.size


def made(kernels: Any, spec: AttentionSpec, blocks: int = 100) -> Any:
    layer = kernels.attention(spec)
    kernels.reserve(blocks)
    return layer
