"""Matrix-vector products in Triton, for a step of one token: norm, product, gate and residual sum in one kernel.

Such a step reads every weight for a single product, so that its time is the weights' way from memory, and what a launch
costs. cuBLAS is made for more rows: with one it took up to four times as long for the layers of a 0.6B model.
"""

import triton
import triton.language as tl

from .pointwise import activation, wait_for_inputs


@triton.jit
def _load(weight, outputs, at, size, INPUTS: tl.constexpr):
    """Rows `outputs` [N] of the weight at the columns `at` [K], once from memory: nothing of it is read again."""
    mask = (outputs < size)[:, None] & (at < INPUTS)[None, :]
    return tl.load(weight + outputs.to(tl.int64)[:, None] * INPUTS + at[None, :], mask=mask, other=0.0,
                   eviction_policy="evict_first")  # fmt: skip


@triton.jit
def _inverse_of_root_mean_square(x, epsilon, INPUTS: tl.constexpr, K: tl.constexpr):
    squares = tl.zeros([K], tl.float32)
    for begin in range(0, INPUTS, K):
        at = begin + tl.arange(0, K)
        wide = tl.load(x + at, mask=at < INPUTS, other=0.0).to(tl.float32)
        squares += wide * wide
    return tl.rsqrt(tl.sum(squares, 0) / INPUTS + epsilon)


@triton.jit(do_not_specialize=["size"])
def matvec(
    x, norm, weight, bias, add, y, size, epsilon,
    INPUTS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, NORMED: tl.constexpr, GATED: tl.constexpr,
    GELU: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (part): N of the numbers of y [size] = weight [size, INPUTS] times x [INPUTS], plus bias and `add`.

    NORMED: times RMSNorm(x) with a float32 weight [INPUTS] in place of x. GATED: the weight is [2 * size, INPUTS], the
    gates in front, and y is activation(gate) * up. `add` and `y` may be the same memory. What the separate kernels
    round is rounded here too.
    """
    outputs, columns = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
    ups = outputs + size if GATED else outputs
    # The weights are there before the kernel in front of this one has ended, x is not.
    w = _load(weight, outputs, columns, size, INPUTS)
    if GATED:
        u = _load(weight, ups, columns, 2 * size, INPUTS)
    wait_for_inputs(PDL)
    shrink = _inverse_of_root_mean_square(x, epsilon, INPUTS, K) if NORMED else 1.0
    sums = tl.zeros([N, K], tl.float32)
    up_sums = tl.zeros([N, K], tl.float32)
    for begin in range(0, INPUTS, K):
        at = begin + columns
        part = tl.load(x + at, mask=at < INPUTS, other=0.0)
        if NORMED:
            part = (part.to(tl.float32) * shrink * tl.load(norm + at, mask=at < INPUTS, other=0.0)).to(part.dtype)
        wide = part.to(tl.float32)[None, :]
        sums += w.to(tl.float32) * wide
        w = _load(weight, outputs, at + K, size, INPUTS)
        if GATED:
            up_sums += u.to(tl.float32) * wide
            u = _load(weight, ups, at + K, 2 * size, INPUTS)
    found = tl.sum(sums, 1)
    inside = outputs < size
    if GATED:
        both = found.to(y.dtype.element_ty), tl.sum(up_sums, 1).to(y.dtype.element_ty)
        found = activation(both[0].to(tl.float32), GELU) * both[1].to(tl.float32)
    if BIASED:
        found += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        found += tl.load(add + outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + outputs, found.to(y.dtype.element_ty), mask=inside)
