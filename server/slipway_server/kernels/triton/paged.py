"""Attention over the paged KV cache, in Triton: for decodes, split over the sequence's length, and for prefill chunks.

Sources: online softmax (arXiv 1805.02867), FlashAttention-2 (2307.08691), splitting by length (Flash-Decoding).
Shapes: q and y [tokens, heads, size]; keys and values [blocks, kv_heads, BLOCK, size];
block_tables [spans, table_width].
Everything is summed in float32. Sums of exponentials are kept as logarithms to base 2.
"""

import triton
import triton.language as tl

from .pointwise import wait_for_inputs

LOG2E = tl.constexpr(1.4426950408889634)
UNSEEN = tl.constexpr(float("-inf"))


@triton.jit
def _attend(
    q, positions, keys, values, table, head, begin, end, scale,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """q [ROWS, WIDTH] at `positions` over the tokens [begin, end) of one sequence and head.

    Returns the weighted sum of values [ROWS, WIDTH], the sum of the weights and the largest score, [ROWS] each.
    """
    columns = tl.arange(0, WIDTH)
    peak = tl.full([ROWS], UNSEEN, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for at in range(begin, end, TILE):
        tokens = at + tl.arange(0, TILE)
        there = tokens < end
        blocks = tl.load(table + tokens // BLOCK, mask=there, other=0).to(tl.int64)
        rows = ((blocks * KV_HEADS + head) * BLOCK + tokens % BLOCK) * SIZE
        # Memory that was never written may hold NaN, and NaN times a weight of 0 is NaN.
        inside = there[:, None] & (columns < SIZE)[None, :]
        k = tl.load(keys + rows[:, None] + columns[None, :], mask=inside, other=0.0)
        v = tl.load(values + rows[:, None] + columns[None, :], mask=inside, other=0.0)
        if WIDE:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if CAP > 0.0:
            scores = CAP * (2.0 * tl.sigmoid(2.0 * scores / CAP) - 1.0)
        seen = there[None, :] & (tokens[None, :] <= positions[:, None])
        if WINDOW > 0:
            seen = seen & (tokens[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(seen, scores * LOG2E, UNSEEN)
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen no token yet has no peak, and minus infinity minus itself would be NaN.
        base = tl.where(higher == UNSEEN, 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.sum(weights, 1)
        sums = tl.dot(weights.to(v.dtype), v, sums * fade[:, None], input_precision="ieee")
        peak = higher
    return sums, total, peak


@triton.jit(do_not_specialize=["table_width"])
def decode(
    q, keys, values, block_tables, starts, partials, weights, table_width, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (span, kv head, split): attention of a group's heads to SPLIT tokens of one sequence, read only once.

    Splits lie at fixed positions, so that a row's numbers depend on its own length only. Writes partials
    [spans, heads, splits, size] and the logarithm of their weights [spans, heads, splits], float32.
    """
    wait_for_inputs(PDL)
    span, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position = tl.load(starts + span)
    begin = split * SPLIT
    if WINDOW > 0:
        begin = tl.maximum(begin, position + 1 - WINDOW)
    end = tl.minimum(split * SPLIT + SPLIT, position + 1)
    if begin >= end:
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    members, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    heads = head * GROUP + members
    used = (members < GROUP)[:, None] & (columns < SIZE)[None, :]
    queries = (span * HEADS + heads).to(tl.int64)
    group_q = tl.load(q + queries[:, None] * SIZE + columns[None, :], mask=used, other=0.0)
    if WIDE:
        group_q = group_q.to(tl.float32)
    positions = tl.zeros([ROWS], tl.int32) + position
    sums, total, peak = _attend(
        group_q, positions, keys, values, block_tables + span.to(tl.int64) * table_width, head, begin, end, scale,
        KV_HEADS, SIZE, BLOCK, WIDTH, TILE, ROWS, WINDOW, CAP, WIDE,
    )  # fmt: skip
    parts = queries * tl.num_programs(2) + split
    tl.store(partials + parts[:, None] * SIZE + columns[None, :], sums / total[:, None], mask=used)
    tl.store(weights + parts, peak + tl.log2(total), mask=members < GROUP)


@triton.jit(do_not_specialize=["splits"])
def combine(
    partials, weights, starts, y, splits,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (span, head): sums the parts of one head, each weighted by its share of the attention weights."""
    wait_for_inputs(PDL)
    span, head = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, WIDTH)
    position = tl.load(starts + span)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, position + 1 - WINDOW) // SPLIT
    row = (span * HEADS + head).to(tl.int64)
    peak = tl.full([1], UNSEEN, tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([WIDTH], tl.float32)
    for split in range(first, position // SPLIT + 1):
        weight = tl.load(weights + row * splits + split + tl.arange(0, 1))
        part = tl.load(partials + (row * splits + split) * SIZE + columns, mask=columns < SIZE, other=0.0)
        higher = tl.maximum(peak, weight)
        fade, share = tl.exp2(peak - higher), tl.exp2(weight - higher)
        sums = sums * fade + part * share
        total = total * fade + share
        peak = higher
    tl.store(y + row * SIZE + columns, (sums / total).to(y.dtype.element_ty), mask=columns < SIZE)


@triton.jit(do_not_specialize=["skip", "spans", "table_width"])
def chunk(
    q, keys, values, block_tables, first, counts, starts, y, skip, spans, table_width, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, MEMBERS: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Program (tile, kv head): attention of ROWS / MEMBERS tokens of a span, in all heads of a group, to all they see.

    The keys and values of the span itself are already in the cache. `skip`: the first spans, which are not computed
    here. MEMBERS: heads of a group, rounded up to a power of two.
    """
    QUERIES: tl.constexpr = ROWS // MEMBERS
    GROUP: tl.constexpr = HEADS // KV_HEADS
    tile, head = tl.program_id(0), tl.program_id(1)
    # A span's tiles begin at first / QUERIES + its number: enough for all, a few too many, and known without a plan
    # from the host. The span of this tile is the last one that begins at or before it.
    span = skip + 0
    beyond = spans + 0
    while span + 1 < beyond:
        middle = (span + beyond) // 2
        if tl.load(first + middle) // QUERIES + middle - skip <= tile:
            span = middle
        else:
            beyond = middle
    row, count, start = tl.load(first + span), tl.load(counts + span), tl.load(starts + span)
    offset = (tile - (row // QUERIES + span - skip)) * QUERIES
    if (offset < 0) | (offset >= count):
        return
    rows, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    tokens, members = offset + rows // MEMBERS, rows % MEMBERS
    used = ((tokens < count) & (members < GROUP))[:, None] & (columns < SIZE)[None, :]
    queries = ((row + tokens) * HEADS + head * GROUP + members).to(tl.int64)
    at = queries[:, None] * SIZE + columns[None, :]
    group_q = tl.load(q + at, mask=used, other=0.0)
    if WIDE:
        group_q = group_q.to(tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, start + offset + 1 - WINDOW)
    end = start + tl.minimum(offset + QUERIES, count)
    sums, total, _ = _attend(
        group_q, start + tokens, keys, values, block_tables + span.to(tl.int64) * table_width, head, begin, end, scale,
        KV_HEADS, SIZE, BLOCK, WIDTH, TILE, ROWS, WINDOW, CAP, WIDE,
    )  # fmt: skip
    # Rows beyond the span may have seen no token: their total is 0.
    sums = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=used)
