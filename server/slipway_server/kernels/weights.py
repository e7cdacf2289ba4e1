"""Weights of linear layers: plain tensors, or whole numbers with scales as published checkpoints have them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

LEAST_GROUP = 32  # inputs; the C kernels sum so many products before they widen
MOST_ZERO = 15


@dataclass(frozen=True, slots=True)
class GroupedInt4:
    """w = (numbers - zeros) * scales, with a scale and a zero point for each group of neighbouring inputs.

    `numbers`: [outputs, inputs] uint8 from 0 to 15. `scales`: [outputs, groups] float32. `zeros`: [outputs, groups]
    uint8 from 0 to 15. All on one device.
    """

    numbers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    @property
    def group(self) -> int:
        """Inputs of a group."""
        return self.numbers.shape[1] // self.scales.shape[1]

    def __len__(self) -> int:
        return len(self.numbers)

    def rows(self, first: int, end: int) -> "GroupedInt4":
        return GroupedInt4(self.numbers[first:end], self.scales[first:end], self.zeros[first:end])

    def dequantized(self) -> torch.Tensor:
        """[outputs, inputs] float32."""
        outputs, groups = self.scales.shape
        numbers = self.numbers.view(outputs, groups, -1).float()
        return ((numbers - self.zeros[..., None]) * self.scales[..., None]).view(outputs, -1)

    def in_smaller_groups(self, group: int) -> "GroupedInt4":
        """The same numbers with the scales of each group repeated; `group` divides the present one."""
        times = self.group // group
        return replace(
            self,
            scales=self.scales.repeat_interleave(times, dim=1),
            zeros=self.zeros.repeat_interleave(times, dim=1),
        )


Weight = torch.Tensor | GroupedInt4


def dense(weight: Weight) -> torch.Tensor:
    """[outputs, inputs]: the tensor itself, or in float32 what the numbers stand for."""
    return weight.dequantized() if isinstance(weight, GroupedInt4) else weight


def stacked(weights: Sequence[Weight]) -> Weight:
    """All outputs as one weight: in groups only where all have the same."""
    packed = [weight for weight in weights if isinstance(weight, GroupedInt4)]
    if len(packed) < len(weights) or len({weight.group for weight in packed}) > 1:
        return torch.cat([dense(weight) for weight in weights])
    return GroupedInt4(
        torch.cat([weight.numbers for weight in packed]),
        torch.cat([weight.scales for weight in packed]),
        torch.cat([weight.zeros for weight in packed]),
    )


def scaled(weight: Weight, factor: float) -> Weight:
    if isinstance(weight, GroupedInt4):
        return replace(weight, scales=weight.scales * factor)
    return weight * factor


def halves(weight: Weight) -> tuple[Weight, Weight]:
    """The first and the last half of the outputs."""
    middle = len(weight) // 2
    if isinstance(weight, GroupedInt4):
        return weight.rows(0, middle), weight.rows(middle, len(weight))
    return weight[:middle], weight[middle:]


def beside(gate: Weight, up: Weight, half: int) -> Weight:
    """`half` outputs of gate, the same of up, and so on."""
    if isinstance(gate, GroupedInt4) and isinstance(up, GroupedInt4) and gate.group == up.group:
        pairs = ((gate.numbers, up.numbers), (gate.scales, up.scales), (gate.zeros, up.zeros))
        return GroupedInt4(*(_alternating(*pair, half) for pair in pairs))
    return _alternating(dense(gate), dense(up), half)


def _alternating(gate: torch.Tensor, up: torch.Tensor, half: int) -> torch.Tensor:
    width = gate.shape[1]
    return torch.stack((gate.reshape(-1, half, width), up.reshape(-1, half, width)), dim=1).view(-1, width)


# --- rounding ---------------------------------------------------------------------------------------------------------

ROWS_AT_ONCE = 256  # so that what is computed with stays in the caches
# Shares of the range of a group that its 16 steps span: the best one of each group is taken.
SHARES = (1.0, 0.92, 0.84)


def rounded_to_int4(weight: torch.Tensor, group: int) -> GroupedInt4:
    """Rounds a weight [outputs, inputs] to the nearest of 16 steps in each group of `group` inputs.

    The steps span the numbers of the group and zero, or less of that where the squared error is smaller. A group with
    something that is no number gets no number as its scale.
    """
    parts = [_rounded(weight[at : at + ROWS_AT_ONCE], group) for at in range(0, len(weight), ROWS_AT_ONCE)]
    return stacked_parts(parts)


def stacked_parts(parts: Sequence[GroupedInt4]) -> GroupedInt4:
    whole = stacked(parts)
    assert isinstance(whole, GroupedInt4), "parts of one weight have the same groups"
    return whole


def _rounded(weight: torch.Tensor, group: int) -> GroupedInt4:
    x = weight.float().view(len(weight), -1, group)
    low, high = x.amin(dim=2).clamp(max=0.0), x.amax(dim=2).clamp(min=0.0)
    best: tuple[torch.Tensor, ...] | None = None
    for share in SHARES:
        scales = ((high - low) * (share / MOST_ZERO)).clamp(min=torch.finfo(torch.float32).tiny)
        zeros = (-low * share / scales).round_().clamp_(0, MOST_ZERO)
        numbers = (x / scales[..., None]).add_(zeros[..., None]).round_().clamp_(0, MOST_ZERO)
        error = (numbers - zeros[..., None]).mul_(scales[..., None]).sub_(x).square_().sum(dim=2)
        if best is None:
            best = (numbers, scales, zeros, error)
            continue
        better = error < best[3]
        best = (
            torch.where(better[..., None], numbers, best[0]),
            *(torch.where(better, new, old) for new, old in zip((scales, zeros, error), best[1:], strict=True)),
        )
    assert best is not None
    numbers, scales, zeros, _ = best
    finite = x.isfinite().all(dim=2)
    scales = torch.where(finite, scales, torch.full_like(scales, torch.nan))
    numbers, zeros = numbers.nan_to_num_(0.0), zeros.nan_to_num_(0.0)
    return GroupedInt4(numbers.to(torch.uint8).flatten(1), scales, zeros.to(torch.uint8))
