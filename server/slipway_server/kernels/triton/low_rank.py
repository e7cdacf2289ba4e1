"""Products of rows with their adapters' matrices in Triton: shrink and expand of LoRA, for rows of many adapters."""

import triton
import triton.language as tl

from .pointwise import wait_for_inputs


@triton.jit(do_not_specialize=["rows"])
def segmented(
    x, weights, scales, slots, y, rows, first_end, second_end,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, X_WIDTH: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, EXPANDS: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (ROWS rows, N outputs): y = x times the matrix of each row's slot, of weights [slots, OUTPUTS, INPUTS].

    Shrink: x [rows, INPUTS] to float32 y [rows, PARTS * rank]. EXPANDS: x is that one, of which a program reads the
    part that its outputs are of; the product is times the scale of slot and part ([slots, PARTS]) and added to
    y [rows, OUTPUTS]. Outputs below `first_end` are of the first part, those below `second_end` of the second one; N
    divides both. Rows with slot -1 are left as they are. A program goes once through the matrix of each slot that its
    rows have: neighbours mostly have the same.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * N
    output, column = first + tl.arange(0, N), tl.arange(0, K)
    inside = output < OUTPUTS
    part = (first >= first_end).to(tl.int32) + (first >= second_end).to(tl.int32) if EXPANDS else 0
    mine = tl.load(slots + row, mask=row < rows, other=-1)
    sums = tl.zeros([ROWS, N], tl.float32)
    left = mine
    slot = tl.max(left, 0)
    while slot >= 0:
        here = mine == slot
        product = tl.zeros([ROWS, N], tl.float32)
        for begin in range(0, INPUTS, K):
            at = begin + column
            matrix = weights + (slot.to(tl.int64) * OUTPUTS + output.to(tl.int64)) * INPUTS
            w = tl.load(matrix[:, None] + at[None, :], mask=inside[:, None] & (at < INPUTS)[None, :], other=0.0)
            numbers = tl.load(x + row.to(tl.int64)[:, None] * X_WIDTH + part * INPUTS + at[None, :],
                              mask=here[:, None] & (at < INPUTS)[None, :], other=0.0)  # fmt: skip
            if ROWS < 16 or N < 16:  # tensor cores take 16 of each
                product += tl.sum(numbers.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :], 2)
            elif EXPANDS or WIDE:  # float32 numbers; and Triton's interpreter knows no products of bfloat16
                product += tl.dot(numbers.to(tl.float32), tl.trans(w.to(tl.float32)), input_precision="ieee")
            else:
                product += tl.dot(numbers, tl.trans(w), input_precision="ieee")
        if EXPANDS:
            product *= tl.load(scales + slot * PARTS + part)
        sums = tl.where(here[:, None], product, sums)
        left = tl.where(left == slot, -1, left)
        slot = tl.max(left, 0)
    to = y + row.to(tl.int64)[:, None] * OUTPUTS + output[None, :]
    stored = (mine >= 0)[:, None] & inside[None, :]
    if EXPANDS:
        sums += tl.load(to, mask=stored, other=0.0).to(tl.float32)
    tl.store(to, sums.to(y.dtype.element_ty), mask=stored)
