"""Weights of 4 bits as c/int4.h reads them, and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .weights import LEAST_GROUP, GroupedInt4, Weight, rounded_to_int4

MOST_GROUP = 256  # inputs with the same scale, in the C kernels: their sums are exact in float32
# Inputs of a group where weights are rounded at load: of these the first that divides the inputs.
ROUNDED_GROUPS = (64, 32)
MULTIPLE = 8  # inputs in a word

Zeros = Callable[[Sequence[int], torch.dtype], torch.Tensor]


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """`words`: [outputs / panel, inputs / 8, panel, 4] uint8. `scales`, `zeros`: [outputs / panel, groups, panel]."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group: int

    def rows(self, places: torch.Tensor, panel: int) -> torch.Tensor:
        """Rows of the weight by where they lie, [places, inputs] float32."""
        at, column = places // panel, places % panel
        octets = self.words[at, :, column]
        numbers = torch.stack((octets & 15, octets >> 4), dim=2).flatten(1)
        return GroupedInt4(numbers, self.scales[at, :, column], self.zeros[at, :, column]).dequantized()


def for_products(weight: Weight, *, rounds: bool) -> GroupedInt4 | None:
    """The weight as the products of 4 bits take it; None where they do not: it has to become bfloat16 or int8.

    `rounds`: whether a plain weight is rounded.
    """
    inputs = weight.shape[1]
    if isinstance(weight, torch.Tensor):
        group = next((size for size in ROUNDED_GROUPS if inputs % size == 0), 0)
        return rounded_to_int4(weight, group) if rounds and group else None
    group = next(
        (size for size in range(min(MOST_GROUP, weight.group), 0, -LEAST_GROUP) if weight.group % size == 0), 0
    )
    return weight.in_smaller_groups(group) if group and group % LEAST_GROUP == 0 else None


def packed(weight: GroupedInt4, panel: int, zeros: Zeros) -> PackedInt4:
    """Packs a weight into memory that `zeros` gives."""
    outputs, inputs = weight.shape
    panels = outputs // panel
    words = zeros((panels, inputs // MULTIPLE, panel, 4), torch.uint8)
    eights = weight.numbers.view(panels, panel, inputs // MULTIPLE, 2, 4)
    words.copy_((eights[..., 0, :] | eights[..., 1, :] << 4).transpose(1, 2))
    groups = weight.scales.shape[1]
    scales = zeros((panels, groups, panel), torch.float32)
    scales.copy_(weight.scales.view(panels, panel, groups).transpose(1, 2))
    points = zeros((panels, groups, panel), torch.uint8)
    points.copy_(weight.zeros.view(panels, panel, groups).transpose(1, 2))
    return PackedInt4(words, scales, points, weight.group)
