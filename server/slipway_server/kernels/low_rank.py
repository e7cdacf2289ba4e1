"""Low-rank updates of linear layers: what an adapter adds to one, and which adapter each row of a batch has.

LoRA (arXiv 2106.09685): y = x @ (w + scale * b @ a).T. DoRA (arXiv 2402.09353): each output of that sum is scaled to a
norm that was learned. Adapters have slots: rows name them by number, and a step may have rows of many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MOST_PARTS = 3  # of a layer: q, k and v; gate and up
NORM_ROWS = 256  # of a weight whose norms are computed at once


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """How many adapters are loaded at a time, and the highest rank of one. Without slots there are none."""

    slots: int = 0
    rank: int = 0


NO_ADAPTERS = AdapterRoom()


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one part of a layer: scale * b @ a. On the CPU, in any floating-point dtype."""

    a: torch.Tensor  # [rank, inputs]
    b: torch.Tensor  # [outputs of the part, rank]
    scale: float
    magnitude: torch.Tensor | None = None  # DoRA: [outputs of the part] float32, norms of the rows of w + scale * b @ a


# One for each part of a layer; None: this part stays as it is.
Update = tuple[LowRank | None, ...]


class Prepared(Protocol):
    """An update in the layout of its layer."""

    @property
    def size_bytes(self) -> int: ...


class UpdateRefused(Exception):
    """Why these kernels cannot compute an update; the message is one sentence for a person."""


class Adaptable(Protocol):
    """A linear layer, or a gated product, whose rows may have adapters."""

    def prepare(self, update: Update) -> Prepared:
        """Converts an update, on any thread and without other threads. Raises UpdateRefused."""
        ...

    def adapt(self, slot: int, prepared: Any) -> None:
        """Puts an update into a slot, between steps; None empties the slot."""
        ...


def column_factors(
    update: Update, parts: tuple[int, ...], weight: Callable[[int, int], torch.Tensor]
) -> torch.Tensor | None:
    """DoRA's factor of each output, [outputs] float32: its magnitude by its norm. None where no part has magnitudes.

    `weight` returns the rows from a first one to before another one. Raises UpdateRefused.
    """
    if all(part is None or part.magnitude is None for part in update):
        return None
    factors, first = [], 0
    for size, part in zip(parts, update, strict=True):
        magnitude = part.magnitude if part else None
        for begin in range(0, size, NORM_ROWS):
            end = min(size, begin + NORM_ROWS)
            if part is None or magnitude is None:
                factors.append(torch.ones(end - begin))
                continue
            rows = weight(first + begin, first + end).float().cpu()
            rows = rows + part.scale * (part.b[begin:end].float() @ part.a.float())
            factors.append(magnitude[begin:end].float() / rows.norm(dim=1))
        first += size
    whole = torch.cat(factors)
    if not bool(whole.isfinite().all()):
        raise UpdateRefused("use_dora: a row of a weight with its update is 0, so that it has no direction")
    return whole


def slots_in(slots: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """Each slot that rows have, with the indices of these rows."""
    return [(slot, (slots == slot).nonzero()[:, 0]) for slot in sorted(set(slots.tolist())) if slot >= 0]
