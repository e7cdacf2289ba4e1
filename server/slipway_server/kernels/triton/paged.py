"""Attention over the paged KV cache, in Triton: for decodes, in parts of a sequence, and for prefill chunks.

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


@triton.jit
def _parts(position, parts, LEAST: tl.constexpr, WINDOW: tl.constexpr):
    """How a sequence is divided: the first token that is seen, the tokens of each part, the parts that have any.

    Parts have at least LEAST tokens, and whole tiles of 128 where there are more than `parts` of these.
    """
    seen = position + 1
    if WINDOW > 0:
        seen = tl.minimum(seen, WINDOW)
    tokens = tl.maximum(LEAST, tl.cdiv(tl.cdiv(seen, parts), 128) * 128)
    return position + 1 - seen, tokens, tl.cdiv(seen, tokens)


@triton.jit
def _combined(partials, weights, row, parts, used, SIZE: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Attention [WIDTH] of one head from its first `used` parts, each weighted by its share of the weights."""
    columns, numbers = tl.arange(0, WIDTH), tl.arange(0, PARTS)
    there = numbers < used
    logs = tl.load(weights + row * parts + numbers, mask=there, other=UNSEEN)
    shares = tl.exp2(logs - tl.max(logs, 0))
    inside = there[:, None] & (columns < SIZE)[None, :]
    sums = tl.load(partials + (row * parts + numbers)[:, None] * SIZE + columns[None, :], mask=inside, other=0.0)
    return tl.sum(sums * shares[:, None], 0) / tl.sum(shares, 0)


@triton.jit(do_not_specialize=["table_width"])
def decode(
    q, keys, values, block_tables, starts, partials, weights, arrived, y, table_width, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, WIDE: tl.constexpr, COMBINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (span, kv head, part): attention of a group's heads to a part of one sequence, which is read only once.

    Writes partials [spans, heads, parts, size] and the logarithm of their weights [spans, heads, parts], float32.
    COMBINES: y too, at once where a sequence has one part, else by the last program of a span and head: it finds in
    `arrived` int32 [spans, kv_heads], which is 0 before and afterwards, that all others are done. PARTS: a power of
    two, at least the number of parts.
    """
    wait_for_inputs(PDL)
    span, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(2)
    position = tl.load(starts + span)
    first, tokens, count = _parts(position, parts, LEAST, WINDOW)
    begin = first + part * tokens
    end = tl.minimum(begin + tokens, position + 1)
    if begin >= end:
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    members, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    used = (members < GROUP)[:, None] & (columns < SIZE)[None, :]
    queries = (span * HEADS + head * GROUP + members).to(tl.int64)
    at = queries[:, None] * SIZE + columns[None, :]
    group_q = tl.load(q + at, mask=used, other=0.0)
    if WIDE:
        group_q = group_q.to(tl.float32)
    positions = tl.zeros([ROWS], tl.int32) + position
    sums, total, peak = _attend(
        group_q, positions, keys, values, block_tables + span.to(tl.int64) * table_width, head, begin, end, scale,
        KV_HEADS, SIZE, BLOCK, WIDTH, TILE, ROWS, WINDOW, CAP, WIDE,
    )  # fmt: skip
    sums = sums / total[:, None]
    if COMBINES and count == 1:
        tl.store(y + at, sums.to(y.dtype.element_ty), mask=used)
    else:
        rows = queries * parts + part
        tl.store(partials + rows[:, None] * SIZE + columns[None, :], sums, mask=used)
        tl.store(weights + rows, peak + tl.log2(total), mask=members < GROUP)
        if COMBINES:
            tl.debug_barrier()  # what all threads wrote is there before the program counts itself
            counter = arrived + span * KV_HEADS + head
            if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1:
                tl.store(counter, 0)
                for member in range(GROUP):
                    row = (span * HEADS + head * GROUP + member).to(tl.int64)
                    whole = _combined(partials, weights, row, parts, count, SIZE, WIDTH, PARTS)
                    tl.store(y + row * SIZE + columns, whole.to(y.dtype.element_ty), mask=columns < SIZE)


@triton.jit(do_not_specialize=["parts"])
def combine(
    partials, weights, starts, y, parts,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr,
    WINDOW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (span, head): y of one head from the parts of its sequence, after `decode` without COMBINES."""
    wait_for_inputs(PDL)
    span, columns = tl.program_id(0), tl.arange(0, WIDTH)
    _, _, count = _parts(tl.load(starts + span), parts, LEAST, WINDOW)
    row = (span * HEADS + tl.program_id(1)).to(tl.int64)
    whole = _combined(partials, weights, row, parts, count, SIZE, WIDTH, PARTS)
    tl.store(y + row * SIZE + columns, whole.to(y.dtype.element_ty), mask=columns < SIZE)


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
