"""Draws the token of each row, and masks forbidden ones, in torch: the reference for c/sampling.h and for GPUs.

A draw is an exponential race, the largest of mass / noise: first between stretches of the vocabulary, then between
groups of the winner, then between the tokens of a group. Noise is a function of seed, position and place alone.

top_p works by rejection: a token is drawn from all tokens; if the likelier ones together hold more than top_p, the next
one is drawn from those alone. An accepted token has exactly its probability among the tokens that top_p leaves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy
import torch
from numpy.typing import NDArray

from ..sampling import DRAW_FIELDS, DRAW_RULES, INT32, NEUTRAL

STRETCH, GROUP = 1024, 32  # tokens
NUMBERS = 8 << 20  # logits of one pass, which takes several times their memory
STRETCHES, GROUPS, TOKENS = range(3)  # kinds of races
WORD = 0xFFFFFFFF
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)  # of Philox4x32-10

# Aligned as the C struct. inverse_temperature 0: the likeliest token; top_k 0: all tokens.
DRAW: Final = numpy.dtype(list(DRAW_FIELDS.items()), align=True)
_NO_RULES: Final = {name: NEUTRAL[name] for name in DRAW_RULES}


def _packed(values: Mapping[str, float]) -> bytes:
    row = numpy.zeros(1, DRAW)
    row[0] = tuple(values[name] for name in DRAW_FIELDS)
    return row.tobytes()


LIKELIEST: Final = _packed({"seed": 0, "inverse_temperature": 0.0} | _NO_RULES)


def draw_by(seed: int, temperature: float, **rules: float) -> bytes:
    """Packs the sampling parameters of a sequence: one row of `Draws`. A rule that is not given removes no token."""
    limited = {name: min(value, INT32) for name, value in rules.items()}
    return _packed({"seed": seed % 2**64, "inverse_temperature": 1.0 / temperature} | _NO_RULES | limited)


class Draws:
    """The packed sampling parameters of each row, and its position in the output, which determines its noise."""

    def __init__(self, rows: list[bytes], positions: list[int]) -> None:
        self.rows = numpy.frombuffer(b"".join(rows), DRAW)
        self.positions = numpy.array(positions, numpy.int64)


def sample(logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """Implements `Kernels.sample`."""
    top, ids = logits.max(dim=-1)
    # A sum is finite only when no number is infinite or NaN, and costs one pass.
    finite = torch.isfinite(logits.sum(dim=-1))
    ids = torch.where(top == -torch.inf, -1, ids)
    drawing = draws.rows["inverse_temperature"].nonzero()[0]
    count = max(1, NUMBERS // logits.shape[-1])
    for first in range(0, len(drawing), count):
        rows = drawing[first : first + count]
        at = torch.from_numpy(rows).to(logits.device)
        drawn = _Drawing(logits[at], top[at], draws.rows[rows], draws.positions[rows]).drawn()
        # Nothing can be drawn from a row whose largest logit is not finite.
        ids[at] = torch.where(torch.isfinite(top[at]), drawn, ids[at])
    return ids, finite


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound for each row. Called, it returns which tokens come before it: by descending logit, then by ID."""

    values: torch.Tensor
    ids: torch.Tensor

    def __call__(self, logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        values, ids = self.values[:, None], self.ids[:, None]
        return (logits > values) | ((logits == values) & (places < ids))

    def where(self, chosen: torch.Tensor, other: "Bound") -> "Bound":
        return Bound(torch.where(chosen, self.values, other.values), torch.where(chosen, self.ids, other.ids))


def bound_of_top_k(logits: torch.Tensor, top_k: NDArray[numpy.int32]) -> Bound:
    """The bound after the `top_k` likeliest tokens of each row; no bound if `top_k` is 0 or the whole vocabulary."""
    top_k = numpy.where(top_k < logits.shape[1], top_k, 0)
    values = torch.full((len(logits),), -torch.inf, dtype=logits.dtype, device=logits.device)
    ids = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    if not top_k.any():
        return Bound(values, ids)
    limited = torch.from_numpy(top_k > 0).to(values.device)
    ks = torch.from_numpy(top_k.astype(numpy.int64)).to(values.device)
    largest = logits.topk(int(top_k.max())).values
    least = largest.gather(1, (ks - 1).clamp_(min=0)[:, None])[:, 0]
    equal = logits == least[:, None]
    others = ks - (logits > least[:, None]).sum(dim=-1)
    # The place after the last of the equal logits that belong to the top k.
    last = (equal.cumsum(dim=-1) < others[:, None]).sum(dim=-1) + 1
    return Bound(least, last).where(limited & (least > -torch.inf), Bound(values, ids))


class _Drawing:
    """Draws the tokens of the rows of one pass, on the device of their logits."""

    def __init__(
        self, logits: torch.Tensor, top: torch.Tensor, given: NDArray[numpy.void], positions: NDArray[numpy.int64]
    ) -> None:
        def here(numbers: NDArray[numpy.generic]) -> torch.Tensor:
            return torch.from_numpy(numbers).to(logits.device)

        self._logits, self._top = logits, top
        self._inverse = here(given["inverse_temperature"].copy())
        self._top_p, self._min_p = here(given["top_p"].copy()), here(given["min_p"].copy())
        self._seed, self._position = here(given["seed"].astype(numpy.int64)), here(positions)
        self._top_k = given["top_k"]
        self._places = torch.arange(logits.shape[1], device=logits.device)
        weights = torch.exp((logits - top[:, None]) * self._inverse[:, None])
        self._weights = weights.masked_fill_(logits == -torch.inf, 0.0)

    def drawn(self) -> torch.Tensor:
        whole = bound_of_top_k(self._logits, self._top_k)
        bound = self._bound_of_min_p(whole)
        total = self._mass(whole)
        ids = torch.zeros(len(self._logits), dtype=torch.int64, device=self._logits.device)
        pending = torch.isfinite(self._top)
        for round_ in range(self._logits.shape[1]):
            ids = torch.where(pending, self._draw(bound, round_), ids)
            here = Bound(self._logits.gather(1, ids[:, None])[:, 0], ids)
            pending &= (self._top_p < 1.0) & (self._mass(here) > self._top_p.double() * total)
            if not pending.any():
                break
            bound = here.where(pending, bound)
        return ids

    def _mass(self, bound: Bound) -> torch.Tensor:
        return (self._weights * bound(self._logits, self._places)).sum(dim=-1, dtype=torch.float64)

    def _bound_of_min_p(self, bound: Bound) -> Bound:
        least = self._top + torch.log(self._min_p) / self._inverse
        everywhere = torch.full_like(bound.ids, self._logits.shape[1])
        return Bound(least, everywhere).where(least > bound.values, bound)

    def _draw(self, bound: Bound, round_: int) -> torch.Tensor:
        weights = self._weights * bound(self._logits, self._places)
        weights = torch.nn.functional.pad(weights, (0, -weights.shape[1] % STRETCH))
        stretches = weights.view(len(weights), -1, STRETCH)
        zero = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)
        stretch = self._winner(stretches.sum(dim=-1), zero, STRETCHES, round_)
        groups = _row_of(stretches, stretch).view(len(weights), -1, GROUP)
        group = self._winner(groups.sum(dim=-1), stretch * (STRETCH // GROUP), GROUPS, round_)
        first = stretch * STRETCH + group * GROUP
        return first + self._winner(_row_of(groups, group), first, TOKENS, round_)

    def _winner(self, masses: torch.Tensor, first: torch.Tensor, level: int, round_: int) -> torch.Tensor:
        """The index of the winner in each row of `masses` [rows, count].

        `first`: the place of each row's first mass, a multiple of four.
        """
        fours = -(-masses.shape[1] // 4)
        index = (first // 4)[:, None] + torch.arange(fours, device=masses.device)
        words = philox(self._seed, self._position, index, level | round_ << 2)[:, : masses.shape[1]]
        noise = -torch.log((words.double() + 0.5) * 2.0**-32)
        return (masses / noise).argmax(dim=-1)


def _row_of(parts: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return parts[torch.arange(len(parts), device=parts.device), which]


def philox(seed: torch.Tensor, position: torch.Tensor, index: torch.Tensor, kind: int) -> torch.Tensor:
    """Philox4x32-10 of seeds and positions [rows] at index [rows, n]: words below 2^32 in int64, [rows, 4 n]."""
    key = [(seed & WORD)[:, None], (seed >> 32 & WORD)[:, None]]
    low, high = (position & WORD)[:, None], (position >> 32 & WORD)[:, None]
    c = [index, torch.full_like(index, kind), low.expand_as(index), high.expand_as(index)]
    for _ in range(10):
        # The upper bits of a product that does not fit wrap around to the right ones.
        a, b = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [(b >> 32 & WORD) ^ c[1] ^ key[0], b & WORD, (a >> 32 & WORD) ^ c[3] ^ key[1], a & WORD]
        key = [(word + step) & WORD for word, step in zip(key, WEYL, strict=True)]
    return torch.stack(c, dim=-1).flatten(1)


# --- tokens that are not allowed --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """`rows`: for rows of logits, their row of `bits` [any, words of 32 tokens]. All other rows may get any token."""

    bits: NDArray[numpy.int32]
    rows: Mapping[int, int]

    @property
    def of_logits(self) -> NDArray[numpy.int64]:
        return numpy.fromiter(self.rows, numpy.int64, len(self.rows))

    @property
    def of_bits(self) -> NDArray[numpy.int64]:
        return numpy.fromiter(self.rows.values(), numpy.int64, len(self.rows))

    def allowed(self, row: int, size: int) -> NDArray[numpy.int64]:
        """The ids of the tokens that a row of logits may get."""
        words = self.bits[self.rows[row]].view(numpy.uint8)
        return numpy.unpackbits(words, bitorder="little", count=size).nonzero()[0]


def mask(logits: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
    """Implements `Kernels.mask`: copies the bits to the device and masks all rows together."""
    rows = torch.from_numpy(masks.of_logits).to(logits.device)
    words = torch.from_numpy(masks.bits[masks.of_bits]).to(logits.device)
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device) & 1
    allowed = bits.flatten(1)[:, : logits.shape[-1]].bool()
    numbers = logits[rows]
    logits[rows] = numbers.masked_fill(~allowed, -torch.inf)
    return torch.isfinite(numbers.sum(dim=-1))
