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
    """Weights of the tokens at `places`; 0 unless they come before (`value`, `token`) by descending logit, then ID."""
    x = tl.load(logits + places, mask=places < size, other=UNSEEN)
    allowed = (x > UNSEEN) & ((x > value) | ((x == value) & (places < token)))
    return tl.where(allowed, tl.exp((x - top) * inverse), 0.0)


@triton.jit
def _mass(logits, size, top, inverse, value, token, WIDTH: tl.constexpr):
    """The sum of the weights of all tokens before (`value`, `token`), float64."""
    # Each lane adds some twenty numbers of its own, and threads meet once, at the end.
    total = tl.zeros([WIDTH], tl.float32)
    for at in range(0, size, WIDTH):
        total += _weights(logits, at + tl.arange(0, WIDTH), size, top, inverse, value, token)
    return tl.sum(total.to(tl.float64), 0)


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
    logits, size, top, inverse, value, token, seed, low, high, round_,
    STRETCH: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Draws one of the tokens before (`value`, `token`), by three races: of stretches, of groups, of tokens.

    LANES: stretches whose masses are summed beside each other.
    """
    kind = round_ * 4
    ahead = tl.full([LANES], -1.0, tl.float64)
    leaders = tl.zeros([LANES], tl.int32)
    columns = tl.arange(0, WIDTH // LANES)[None, :]
    for first in range(0, tl.cdiv(size, STRETCH), LANES):
        stretches = first + tl.arange(0, LANES)
        # A part of each stretch in every turn: noise and the sum over a stretch, which all threads share, come once.
        masses = tl.zeros([LANES, WIDTH // LANES], tl.float32)
        for at in range(0, STRETCH, WIDTH // LANES):
            places = stretches[:, None] * STRETCH + at + columns
            masses += _weights(logits, places, size, top, inverse, value, token)
        scores = tl.sum(masses, 1).to(tl.float64) / _noise(seed, low, high, stretches, kind + STRETCHES)
        leaders = tl.where(scores > ahead, stretches, leaders)
        ahead = tl.maximum(ahead, scores)
    first_group = _first_of_best(ahead, leaders) * (STRETCH // GROUP)
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
    int64 [rows], -1 where no token is allowed, and finite uint8 [rows].
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
        kept = _mass(logits, tl.where(top_p < 1.0, size, 0), top, inverse, value, token, WIDTH)
        kept = kept * top_p.to(tl.float64)
        least = top + tl.log(min_p) / inverse
        token = tl.where(least > value, size, token)
        value = tl.maximum(value, least)
        round_ = 0
        while pending:
            chosen = _draw(
                logits, size, top, inverse, value, token, seed, low, high, round_, STRETCH, GROUP, WIDTH, LANES
            )  # fmt: skip
            drawn = tl.load(logits + chosen)
            before = _mass(logits, tl.where(top_p < 1.0, size, 0), top, inverse, drawn, chosen, WIDTH)
            round_ += 1
            pending = (top_p < 1.0) & (before > kept) & (round_ < size)
            value, token = drawn, chosen
    tl.store(ids + row, tl.where(top == UNSEEN, -1, chosen).to(tl.int64))
