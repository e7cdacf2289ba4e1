"""Draws the tokens of a step's rows in Triton, one program for each row, without waiting for the host.

The algorithm is that of draws.py. Sums are taken in another order than there, so that a token may differ where two are
equally likely up to rounding.
"""

import triton
import triton.language as tl

UNSEEN = tl.constexpr(float("-inf"))
STRETCHES, GROUPS, TOKENS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # kinds of races, as in draws.py


@triton.jit
def _noise(seed, low, high, places, kind):
    """Exponential noise, float64, for `places` [n] of one race. Philox4x32-10 has four words for each index."""
    index = places // 4
    same = index * 0
    a, b, c, d = tl.philox(seed, index, same + kind, same + low, same + high)
    which = places % 4
    word = tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))
    return -tl.log((word.to(tl.float64) + 0.5) * 2.3283064365386963e-10)  # 2^-32


@triton.jit
def _weights(logits, places, size, top, inverse, value, token):
    """Weights of the tokens at `places`; 0 unless they come before (`value`, `token`) by descending logit, then ID.

    A logit of minus infinity comes before nothing: where `value` is that low, `token` is 0.
    """
    x = tl.load(logits + places, mask=places < size, other=UNSEEN)
    allowed = (x > value) | ((x == value) & (places < token))
    return tl.where(allowed, tl.exp((x - top) * inverse), 0.0)


@triton.jit
def _masses(
    logits, size, top, inverse, value, token, end, STRETCH: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr
):
    """The sum of the weights of each stretch [LANES], of its first `end` tokens."""
    stretches, columns = tl.arange(0, LANES)[:, None] * STRETCH, tl.arange(0, WIDTH // LANES)[None, :]
    sums = tl.zeros([LANES, WIDTH // LANES], tl.float32)
    # A part of each stretch in every turn: threads add numbers of their own, and meet once, at the end.
    for at in range(0, end, WIDTH // LANES):
        sums += _weights(logits, stretches + at + columns, size, top, inverse, value, token)
    return tl.sum(sums, 1)


@triton.jit
def _first_of_best(scores, places):
    """The lowest of the `places` [n] that have the largest score."""
    return tl.min(tl.where(scores == tl.max(scores, 0), places, 2147483647), 0)


@triton.jit
def _winner(masses, noise):
    """The largest mass / noise, and the first place that has it."""
    return tl.max(masses.to(tl.float64) / noise, 0, return_indices=True)


@triton.jit
def _draw(
    logits, masses, size, top, inverse, value, token, seed, low, high, round_,
    STRETCH: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Draws one of the tokens before (`value`, `token`), by three races: of stretches, of groups, of tokens.

    `masses` [LANES]: of the stretches' tokens before (`value`, `token`).
    """
    kind = round_ * 4
    _, stretch = _winner(masses, _noise(seed, low, high, tl.arange(0, LANES), kind + STRETCHES))
    first_group = stretch * (STRETCH // GROUP)
    groups = first_group + tl.arange(0, STRETCH // GROUP)
    places = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    weights = _weights(logits, places, size, top, inverse, value, token)
    _, group = _winner(tl.sum(weights, 1), _noise(seed, low, high, groups, kind + GROUPS))
    tokens = (first_group + group) * GROUP + tl.arange(0, GROUP)
    weights = _weights(logits, tokens, size, top, inverse, value, token)
    _, place = _winner(weights, _noise(seed, low, high, tokens, kind + TOKENS))
    return (first_group + group) * GROUP + place


@triton.jit(do_not_specialize=["stride", "size"])
def draw(
    logits, stride, fields, bound_values, bound_ids, ids, finite, size,
    STRETCH: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Program (row): the token of one row of float32 logits, and whether all of its numbers are finite.

    fields int32 [rows, 7]: seed and position, lower words first, then the bits of float32 inverse temperature (0: the
    likeliest token), top_p and min_p; bound_values and bound_ids [rows]: the token before which top_k ends. Writes ids
    int64 [rows], -1 where no token is allowed, and finite uint8 [rows]. LANES: a power of two, at least the number of
    stretches.
    """
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    # Lanes go on alone and meet once: to meet in every turn took most of the time.
    peaks = tl.full([WIDTH], UNSEEN, tl.float32)
    likeliest = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    for at in range(0, size, WIDTH):
        places = at + tl.arange(0, WIDTH)
        there = places < size
        x = tl.load(logits + places, mask=there, other=UNSEEN)
        likeliest = tl.where(x > peaks, places, likeliest)
        peaks = tl.maximum(peaks, x)
        total += tl.where(there, x, 0.0)
    top, chosen = tl.max(peaks, 0), _first_of_best(peaks, likeliest)
    # A sum is finite only when no number is infinite or NaN.
    tl.store(finite + row, (tl.abs(tl.sum(total, 0)) < float("inf")).to(tl.uint8))

    fields += row * 7
    seed_low, seed_high = tl.load(fields), tl.load(fields + 1)
    seed = (seed_high.to(tl.int64) << 32) | (seed_low.to(tl.int64) & 0xFFFFFFFF)
    low, high = tl.load(fields + 2), tl.load(fields + 3)
    inverse = tl.load(fields + 4).to(tl.float32, bitcast=True)
    top_p = tl.load(fields + 5).to(tl.float32, bitcast=True)
    min_p = tl.load(fields + 6).to(tl.float32, bitcast=True)
    value, token = tl.load(bound_values + row), tl.load(bound_ids + row).to(tl.int32)
    pending = (inverse > 0.0) & (tl.abs(top) < float("inf"))
    if pending:
        # top_p is a share of the mass that top_k leaves, before min_p removes tokens.
        masses = _masses(logits, size, top, inverse, value, token, STRETCH, STRETCH, WIDTH, LANES)
        kept = tl.sum(masses.to(tl.float64), 0) * top_p.to(tl.float64)
        least = top + tl.log(min_p) / inverse
        if least > value:
            value, token = least, size
            masses = _masses(logits, size, top, inverse, value, token, STRETCH, STRETCH, WIDTH, LANES)
        again = tl.where(top_p < 1.0, STRETCH, 0)  # without top_p the first token that is drawn is accepted
        round_ = 0
        while pending:
            chosen = _draw(
                logits, masses, size, top, inverse, value, token, seed, low, high, round_, STRETCH, GROUP, LANES
            )  # fmt: skip
            value, token = tl.load(logits + chosen), chosen
            # What comes before the token decides whether it is accepted, and is what the next round draws from.
            masses = _masses(logits, size, top, inverse, value, token, again, STRETCH, WIDTH, LANES)
            round_ += 1
            pending = (top_p < 1.0) & (tl.sum(masses.to(tl.float64), 0) > kept) & (round_ < size)
    tl.store(ids + row, tl.where(top == UNSEEN, -1, chosen).to(tl.int64))
