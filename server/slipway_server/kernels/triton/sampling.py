"""Draws the tokens of a step's rows in Triton, without waiting for the host.

The algorithm is that of draws.py. Sums are taken in another order than there, so that a token may differ where two are
equally likely up to rounding.

A row is long for one processor, so passes over all of it have a program for each few stretches: `summarize`, and
`masses`. `first_draw` and `next_draw` have one for each row and read what these found. A token that was drawn is
accepted by the mass of what is likelier, which `masses` finds; else the next one is drawn from that. Most rows are done
after one or two draws: the last `next_draw` goes on by itself. `bound_of_top_k` comes before the first draw.

`state` float32 [rows, 4 * LANES + SCALARS] is what they pass on. Of each stretch: its largest logit, the first place
that has it, the sum of its logits, its mass; of the row: the scalars below, and MOST_TOP_K numbers of `bound_of_top_k`.
`fields` int32 [rows, FIELDS] is what is given: the words of a row of draws, then the two of its position, lower words
first.
"""

import triton
import triton.language as tl

from ..draws import DRAW
from .pointwise import wait_for_inputs

UNSEEN = tl.constexpr(float("-inf"))
STRETCHES, GROUPS, TOKENS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # kinds of races, as in draws.py
MOST_TOP_K = 32
SCALARS = 8 + MOST_TOP_K
# Their places. Tokens are drawn from those before (VALUE, TOKEN): the bound, then the token that was drawn last. The
# largest logit; the mass that top_p keeps; draws so far.
VALUE, TOKEN, TOP, KEPT, ROUND, STRETCHES_OF_TOP_K = (tl.constexpr(place) for place in (0, 1, 2, 3, 4, 8))
DONE = tl.constexpr(-1)  # as ROUND: the row has its token


def _place(name: str) -> tl.constexpr:
    """The place of a draw's field in `fields`, in words of 32 bits."""
    return tl.constexpr(DRAW.fields[name][1] // 4)


SEED, INVERSE_TEMPERATURE = _place("seed"), _place("inverse_temperature")
TOP_P, TOP_K, MIN_P = _place("top_p"), _place("top_k"), _place("min_p")
POSITION = tl.constexpr(DRAW.itemsize // 4)
FIELDS = tl.constexpr(DRAW.itemsize // 4 + 2)
NO_PLACE, LEAST_KEY = tl.constexpr(2147483647), tl.constexpr(-2147483648)


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _int(bits):
    return bits.to(tl.int32, bitcast=True)


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
def _weights(logits, places, inside, top, inverse, value, token):
    """Weights of the tokens at `places`; 0 unless they come before (`value`, `token`) by descending logit, then ID.

    A logit of minus infinity comes before nothing: where `value` is that low, `token` is 0.
    """
    x = tl.load(logits + places, mask=inside, other=UNSEEN)
    allowed = (x > value) | ((x == value) & (places < token))
    return tl.where(allowed, tl.exp((x - top) * inverse), 0.0)


@triton.jit
def _relative_weights(x, peaks, inverse):
    """Weights of x [n, m], where it is finite, in relation to those of `peaks` [n]."""
    base = peaks[:, None]
    finite = (tl.abs(x) < float("inf")) & (tl.abs(base) < float("inf"))
    return tl.exp((tl.where(finite, x, 0.0) - tl.where(finite, base, 0.0)) * inverse)


@triton.jit
def _stretches(part, STRETCH: tl.constexpr, AT_ONCE: tl.constexpr):
    """The stretches [AT_ONCE] of a program, and their tokens [AT_ONCE, STRETCH]."""
    stretches = part * AT_ONCE + tl.arange(0, AT_ONCE)
    return stretches, stretches[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]


@triton.jit(do_not_specialize=["stride", "size"])
def summarize(
    logits, stride, fields, state, size,
    STRETCH: tl.constexpr, AT_ONCE: tl.constexpr, LANES: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    """Program (row, part): what `state` has of AT_ONCE stretches. Masses are relative to a stretch's largest logit."""
    row = tl.program_id(0)
    stretches, tokens = _stretches(tl.program_id(1), STRETCH, AT_ONCE)
    inside = tokens < size
    x = tl.load(logits + row.to(tl.int64) * stride + tokens, mask=inside, other=UNSEEN)
    inverse = _float(tl.load(fields + row * FIELDS + INVERSE_TEMPERATURE))
    sums = tl.sum(tl.where(inside, x, 0.0), 1)
    x = tl.where(x == x, x, UNSEEN)  # the sums say that there was a NaN
    peaks = tl.max(x, 1)
    places = tl.min(tl.where(x == peaks[:, None], tokens, NO_PLACE), 1)
    weights = tl.where(x > UNSEEN, _relative_weights(x, peaks, inverse), 0.0)
    state += row * (4 * LANES + SCALARS)
    tl.store(state + stretches, peaks)
    tl.store(state + LANES + stretches, _float(places))
    tl.store(state + 2 * LANES + stretches, sums)
    tl.store(state + 3 * LANES + stretches, tl.sum(weights, 1))
    if tl.program_id(1) == 0:  # no bound yet
        tl.store(state + 4 * LANES + VALUE, UNSEEN)
        tl.store(state + 4 * LANES + TOKEN, 0.0)


@triton.jit
def _key(x):
    """Integers in the order of the floats."""
    bits = _int(x + 0.0)  # -0.0 is 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    return _float(key ^ ((key >> 31) & 0x7FFFFFFF))


@triton.jit
def _kth_largest(keys, k, low, high):
    """The largest number of [low, high] that at least `k` of the keys reach; `low` if none is."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        if tl.sum((keys >= middle.to(tl.int32)).to(tl.int32)) >= k:
            low = middle
        else:
            high = middle - 1
    return low.to(tl.int32)


@triton.jit(do_not_specialize=["stride", "size"])
def bound_of_top_k(
    logits, stride, fields, state, size,
    STRETCH: tl.constexpr, LANES: tl.constexpr, SCALARS: tl.constexpr, MOST_TOP_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (row): the token before which top_k ends, and the masses of what is before it. top_k <= MOST_TOP_K.

    The k likeliest tokens are in the k stretches with the largest logits: every other token has at least these before
    it. Of equally large ones the first stretches are taken, because of equal logits the lower IDs come first.
    """
    wait_for_inputs(PDL)
    row, lanes = tl.program_id(0), tl.arange(0, LANES)
    fields += row * FIELDS
    k = tl.load(fields + TOP_K)
    if (k <= 0) | (k >= size):
        return
    logits += row.to(tl.int64) * stride
    state += row * (4 * LANES + SCALARS)
    scalars = state + 4 * LANES
    peaks = tl.load(state + lanes, mask=lanes * STRETCH < size, other=UNSEEN)
    keys = _key(peaks)
    top = tl.max(keys, 0)
    least = _kth_largest(keys, k, tl.full([], LEAST_KEY, tl.int32), top)
    equal = (keys == least).to(tl.int32)
    more = (keys > least).to(tl.int32)
    taken = more + equal * (tl.cumsum(equal, 0) <= k - tl.sum(more, 0)).to(tl.int32)
    order = scalars + STRETCHES_OF_TOP_K
    tl.store(order + tl.cumsum(taken, 0) - 1, _float(lanes), mask=taken > 0)
    tl.debug_barrier()
    numbers = tl.arange(0, MOST_TOP_K)
    there = numbers < tl.sum(taken, 0)
    stretches = _int(tl.load(order + numbers, mask=there, other=0.0))
    tokens = stretches[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
    x = tl.load(logits + tokens, mask=there[:, None] & (tokens < size), other=UNSEEN)
    found = _key(tl.where(x == x, x, UNSEEN))
    least = _kth_largest(found, k, least, top)
    value = _value(least)
    if value > UNSEEN:
        # Of the tokens that are as likely as the last one the first ones, so that there are k.
        ties = tl.where(found == least, -tokens, -NO_PLACE)
        wanted = k - tl.sum((found > least).to(tl.int32))
        last = -_kth_largest(ties, wanted, -size, tl.full([], 0, tl.int32))
        tl.store(scalars + VALUE, value)
        tl.store(scalars + TOKEN, _float(last + 1))
        before = (found > least) | ((found == least) & (tokens <= last))
        inverse = _float(tl.load(fields + INVERSE_TEMPERATURE))
        x = _value(found)
        weights = tl.where(before, _relative_weights(x, tl.max(x, 1), inverse), 0.0)
        tl.store(state + 3 * LANES + lanes, tl.zeros([LANES], tl.float32))
        tl.debug_barrier()
        tl.store(state + 3 * LANES + stretches, tl.sum(weights, 1), mask=there)


@triton.jit(do_not_specialize=["stride", "size"])
def masses(
    logits, stride, fields, state, size,
    STRETCH: tl.constexpr, AT_ONCE: tl.constexpr, LANES: tl.constexpr, SCALARS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (row, part): the masses of AT_ONCE stretches, of their tokens before the one that was drawn last."""
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    state += row * (4 * LANES + SCALARS)
    scalars = state + 4 * LANES
    if _int(tl.load(scalars + ROUND)) == DONE:
        return
    value, token, top = tl.load(scalars + VALUE), _int(tl.load(scalars + TOKEN)), tl.load(scalars + TOP)
    inverse = _float(tl.load(fields + row * FIELDS + INVERSE_TEMPERATURE))
    stretches, tokens = _stretches(tl.program_id(1), STRETCH, AT_ONCE)
    # A stretch whose largest logit is below the value is not read.
    inside = (tl.load(state + stretches) >= value)[:, None] & (tokens < size)
    weights = _weights(logits + row.to(tl.int64) * stride, tokens, inside, top, inverse, value, token)
    tl.store(state + 3 * LANES + stretches, tl.sum(weights, 1))


@triton.jit
def _masses(
    logits, peaks, size, top, inverse, value, token, STRETCH: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr
):
    """The masses of all stretches [LANES], of their tokens before (`value`, `token`), by one program."""
    COLUMNS: tl.constexpr = WIDTH // LANES
    tokens = tl.arange(0, LANES)[:, None] * STRETCH + tl.arange(0, COLUMNS)[None, :]
    reached = (peaks >= value)[:, None]
    sums = tl.zeros([LANES, COLUMNS], tl.float32)
    # A part of each stretch in every turn: threads add numbers of their own, and meet once, at the end.
    for at in range(0, STRETCH, COLUMNS):
        inside = reached & (tokens + at < size)
        sums += _weights(logits, tokens + at, inside, top, inverse, value, token)
    return tl.sum(sums, 1)


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
    weights = _weights(logits, places, places < size, top, inverse, value, token)
    _, group = _winner(tl.sum(weights, 1), _noise(seed, low, high, groups, kind + GROUPS))
    tokens = (first_group + group) * GROUP + tl.arange(0, GROUP)
    weights = _weights(logits, tokens, tokens < size, top, inverse, value, token)
    _, place = _winner(weights, _noise(seed, low, high, tokens, kind + TOKENS))
    return (first_group + group) * GROUP + place


@triton.jit
def _keys(fields):
    """The seed and the two words of the position."""
    low, high = tl.load(fields + SEED), tl.load(fields + SEED + 1)
    seed = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
    return seed, tl.load(fields + POSITION), tl.load(fields + POSITION + 1)


@triton.jit(do_not_specialize=["stride", "size", "bounded"])
def first_draw(
    logits, stride, fields, state, ids, finite, size, bounded,
    STRETCH: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, SCALARS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (row): the first token that is drawn of a row of float32 logits, and whether all of them are finite.

    `bounded`: masses are those of the tokens before the bound. Writes ids int64 [rows], -1 where no token is allowed,
    and finite uint8 [rows]. LANES: a power of two, at least the number of stretches. WIDTH: logits of all stretches
    together that one program reads in a turn. Where the inverse temperature is 0, the token is the likeliest one.
    """
    wait_for_inputs(PDL)
    row, lanes = tl.program_id(0), tl.arange(0, LANES)
    logits += row.to(tl.int64) * stride
    fields += row * FIELDS
    state += row * (4 * LANES + SCALARS)
    known = lanes * STRETCH < size
    peaks = tl.load(state + lanes, mask=known, other=UNSEEN)
    places = _int(tl.load(state + LANES + lanes, mask=known, other=0.0))
    sums = tl.load(state + 2 * LANES + lanes, mask=known, other=0.0)
    # A sum is finite only when no number is infinite or NaN.
    tl.store(finite + row, (tl.abs(tl.sum(sums, 0)) < float("inf")).to(tl.uint8))
    top = tl.max(peaks, 0)
    token = tl.min(tl.where(peaks == top, places, NO_PLACE), 0)

    scalars = state + 4 * LANES
    inverse = _float(tl.load(fields + INVERSE_TEMPERATURE))
    top_p, min_p = _float(tl.load(fields + TOP_P)), _float(tl.load(fields + MIN_P))
    round_ = DONE
    if (inverse > 0.0) & (tl.abs(top) < float("inf")):
        weights = tl.load(state + 3 * LANES + lanes, mask=known, other=0.0)
        weights = tl.where(peaks > UNSEEN, weights * tl.exp((peaks - top) * inverse), 0.0)
        value, token = tl.load(scalars + VALUE), _int(tl.load(scalars + TOKEN))
        if (bounded == 0) & (value > UNSEEN):
            weights = _masses(logits, peaks, size, top, inverse, value, token, STRETCH, WIDTH, LANES)
        # top_p is a share of the mass that top_k leaves, before min_p removes tokens.
        kept = tl.sum(weights.to(tl.float64), 0) * top_p.to(tl.float64)
        least = top + tl.log(min_p) / inverse
        if least > value:
            value, token = least, size
            weights = _masses(logits, peaks, size, top, inverse, value, token, STRETCH, WIDTH, LANES)
        seed, low, high = _keys(fields)
        token = _draw(logits, weights, size, top, inverse, value, token, seed, low, high, 0, STRETCH, GROUP, LANES)
        if top_p < 1.0:  # else the first token that is drawn is accepted
            round_ = 1
            tl.store(scalars + VALUE, tl.load(logits + token))
            tl.store(scalars + TOKEN, _float(token))
            tl.store(scalars + TOP, top)
            tl.store(scalars + KEPT, kept.to(tl.float32))
    tl.store(scalars + ROUND, _float(tl.full([], round_, tl.int32)))
    tl.store(ids + row, tl.where(top == UNSEEN, -1, token).to(tl.int64))


@triton.jit(do_not_specialize=["stride", "size", "last"])
def next_draw(
    logits, stride, fields, state, ids, size, last,
    STRETCH: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, SCALARS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (row): accepts the token that was drawn last, or draws another one; until one is accepted if `last`."""
    wait_for_inputs(PDL)
    row, lanes = tl.program_id(0), tl.arange(0, LANES)
    state += row * (4 * LANES + SCALARS)
    scalars = state + 4 * LANES
    round_ = _int(tl.load(scalars + ROUND))
    if round_ == DONE:
        return
    logits += row.to(tl.int64) * stride
    fields += row * FIELDS
    known = lanes * STRETCH < size
    peaks = tl.load(state + lanes, mask=known, other=UNSEEN)
    weights = tl.load(state + 3 * LANES + lanes, mask=known, other=0.0)
    value, token = tl.load(scalars + VALUE), _int(tl.load(scalars + TOKEN))
    top, kept = tl.load(scalars + TOP), tl.load(scalars + KEPT).to(tl.float64)
    inverse = _float(tl.load(fields + INVERSE_TEMPERATURE))
    seed, low, high = _keys(fields)
    refused = (tl.sum(weights.to(tl.float64), 0) > kept) & (round_ < size)
    drawing = refused
    while drawing:
        token = _draw(logits, weights, size, top, inverse, value, token, seed, low, high, round_, STRETCH, GROUP, LANES)
        value = tl.load(logits + token)
        round_ += 1
        drawing = last > 0
        if drawing:
            weights = _masses(logits, peaks, size, top, inverse, value, token, STRETCH, WIDTH, LANES)
            drawing = (tl.sum(weights.to(tl.float64), 0) > kept) & (round_ < size)
    tl.store(ids + row, token.to(tl.int64))
    tl.store(scalars + VALUE, value)
    tl.store(scalars + TOKEN, _float(token))
    tl.store(scalars + ROUND, _float(tl.where(refused, round_, DONE)))
