"""Elementwise kernels in Triton, one pass each: norms, gates, rotary embedding with the write to the KV cache."""

import triton
import triton.language as tl


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """To be called before a kernel reads what another one has written.

    PDL: programmatic dependent launch, which GPUs have since Hopper. A kernel's programs start while the last ones of
    the kernel in front of it still run, and wait here until all that it wrote can be read.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def rms_norm(x, weight, y, epsilon, SIZE: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    """Program (row): RMSNorm (arXiv 1910.07467) of x [rows, SIZE] with a float32 weight [SIZE]."""
    wait_for_inputs(PDL)
    columns = tl.arange(0, WIDTH)
    inside = columns < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + columns
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    wide = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + epsilon)
    wide = wide * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(y + at, wide.to(y.dtype.element_ty), mask=inside)


@triton.jit
def activation(x, GELU: tl.constexpr):
    """SiLU, or GELU by tanh, of float32."""
    # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
    slope = 1.5957691216057308 * (x + 0.044715 * x * x * x) if GELU else x
    return x * tl.sigmoid(slope)


@triton.jit
def gate(both, y, SIZE: tl.constexpr, WIDTH: tl.constexpr, GELU: tl.constexpr):
    """Program (row, part): activation(gate) * up, of [rows, 2 * SIZE] with the gates in front."""
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < SIZE
    g = tl.load(both + row * 2 * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * SIZE + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * SIZE + columns, (activation(g, GELU) * up).to(y.dtype.element_ty), mask=inside)


@triton.jit
def rotary_embedding_and_cache(
    qkv, norms, cos, sin, positions, slot_mapping, q, keys, values, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    HALF: tl.constexpr, NORMED: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (token, PARTS heads of q, k or v): norm, rotary embedding, and the write to q or to the paged KV cache.

    qkv [tokens, HEADS + 2 * KV_HEADS, SIZE]; norms [2, SIZE], of queries and of keys; cos and sin [positions, HALF].
    Rotary embedding (arXiv 2104.09864) of the first 2 * HALF numbers, in pairs (i, i + HALF).
    """
    wait_for_inputs(PDL)
    token = tl.program_id(0)
    parts = (tl.program_id(1) * PARTS + tl.arange(0, PARTS))[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    inside = (parts < HEADS + 2 * KV_HEADS) & (columns < SIZE)
    turned = inside & (parts < HEADS + KV_HEADS)  # values are stored as they are
    heads = qkv + (token.to(tl.int64) * (HEADS + 2 * KV_HEADS) + parts) * SIZE
    x = tl.load(heads + columns, mask=inside, other=0.0).to(tl.float32)
    partner = tl.where(columns < HALF, columns + HALF, columns - HALF)
    rotated = turned & (columns < 2 * HALF)
    other = tl.load(heads + partner, mask=rotated, other=0.0).to(tl.float32)
    if NORMED:
        norm = norms + (parts >= HEADS).to(tl.int32) * SIZE
        shrink = tl.rsqrt(tl.sum(x * x, 1) / SIZE + epsilon)[:, None]
        x = tl.where(turned, x * shrink * tl.load(norm + columns, mask=turned, other=0.0), x)
        other = other * shrink * tl.load(norm + partner, mask=rotated, other=0.0)
    if HALF > 0:
        angle = tl.load(positions + token).to(tl.int64) * HALF + columns % HALF
        side = tl.where(columns < HALF, -1.0, 1.0)
        x = x * tl.load(cos + angle, mask=rotated, other=1.0)
        x = x + side * other * tl.load(sin + angle, mask=rotated, other=0.0)
    tl.store(q + (token.to(tl.int64) * HEADS + parts) * SIZE + columns, x.to(q.dtype.element_ty),
             mask=inside & (parts < HEADS))  # fmt: skip
    slot = tl.load(slot_mapping + token).to(tl.int64)
    row = (slot // BLOCK * KV_HEADS + (parts - HEADS) % KV_HEADS) * BLOCK + slot % BLOCK
    stored = x.to(keys.dtype.element_ty)
    tl.store(keys + row * SIZE + columns, stored, mask=turned & (parts >= HEADS))
    tl.store(values + row * SIZE + columns, stored, mask=inside & (parts >= HEADS + KV_HEADS))
