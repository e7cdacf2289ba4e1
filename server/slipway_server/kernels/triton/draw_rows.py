"""Launches the kernels of sampling.py for the rows of a step."""

from collections.abc import Mapping

import numpy
import torch
import triton
from numpy.typing import NDArray

from ..draws import GROUP, STRETCH, Draws
from ..draws import bound_of_top_k as bound_in_torch
from .sampling import MOST_TOP_K, SCALARS, TOKEN, VALUE, bound_of_top_k, first_draw, masses, next_draw, summarize

# Logits that a program reads in one turn, of a whole row, and stretches where a row has many programs.
WIDTH, STRETCHES_AT_ONCE = 8192, 2
ROW_WARPS = 16
DRAWS = 3  # with top_p, before a program goes on alone: with 0.95, for one row in 400


def draw_rows(logits: torch.Tensor, draws: Draws, early: Mapping[str, bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """Implements `Kernels.sample`. `early`: options of kernels that wait for the one in front of them by themselves."""
    count, size = logits.shape
    # Else the copy waits until the logits are computed.
    fields = torch.from_numpy(fields_of(draws)).to(logits.device, non_blocking=True)
    ids = torch.empty(count, dtype=torch.int64, device=logits.device)
    finite = torch.empty(count, dtype=torch.uint8, device=logits.device)
    stretches = -(-size // STRETCH)
    lanes = max(WIDTH // STRETCH, triton.next_power_of_2(stretches))
    state = torch.empty(count, 4 * lanes + SCALARS, device=logits.device)

    given = logits, logits.stride(0), fields
    shape = {"STRETCH": STRETCH, "LANES": lanes, "SCALARS": SCALARS}
    parts, of_parts = (count, -(-stretches // STRETCHES_AT_ONCE)), shape | {"AT_ONCE": STRETCHES_AT_ONCE}
    rows, of_rows = (count,), shape | {"GROUP": GROUP, "WIDTH": WIDTH, "num_warps": ROW_WARPS} | early
    summarize[parts](*given, state, size, **of_parts)
    most = int(draws.rows["top_k"].max())
    if most > MOST_TOP_K:
        bound = bound_in_torch(logits, draws.rows["top_k"])
        scalars = state[:, 4 * lanes :]
        scalars[:, VALUE.value] = bound.values
        scalars[:, TOKEN.value] = bound.ids.int().view(torch.float32)
    elif most > 0:
        bound_of_top_k[rows](
            *given, state, size, MOST_TOP_K=MOST_TOP_K, num_warps=ROW_WARPS, **shape, **early
        )  # fmt: skip
    first_draw[rows](*given, state, ids, finite, size, int(most <= MOST_TOP_K), **of_rows)
    if (draws.rows["top_p"] < 1.0).any():
        for last in [0] * (DRAWS - 2) + [1]:
            masses[parts](*given, state, size, **of_parts, **early)
            next_draw[rows](*given, state, ids, size, last, **of_rows)
    return ids, finite.view(torch.bool)


def fields_of(draws: Draws) -> NDArray[numpy.int32]:
    """What sampling.py calls fields, flat."""
    words = draws.rows.view(numpy.int32).reshape(len(draws.rows), -1)
    positions = draws.positions.view(numpy.int32).reshape(-1, 2)
    return numpy.concatenate((words, positions), axis=1).reshape(-1)
