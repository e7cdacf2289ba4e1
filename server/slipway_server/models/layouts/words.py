"""Whole numbers of 4 and 8 bits out of words of 32 bits. Pure."""

import torch

from ...kernels.weights import GroupedInt4, Weight


def numbers_in(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., n] to uint8 [..., n * 32 / bits]: the lowest bits of a word are its first number."""
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def grouped(numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> Weight:
    """(numbers - zeros) * scales with neighbouring inputs in a group: 4 bits as they are, 8 bits in float32.

    `numbers`: uint8 [outputs, inputs]. `scales`, `zeros`: float32 and uint8 [outputs, groups].
    """
    if bits == 4:
        return GroupedInt4(numbers.contiguous(), scales.contiguous(), zeros.contiguous())
    outputs, groups = scales.shape
    whole = numbers.reshape(outputs, groups, -1).float()
    return whole.sub_(zeros.float()[..., None]).mul_(scales[..., None]).flatten(1)


def ordered(
    numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_of: torch.Tensor | None, bits: int
) -> Weight:
    """As `grouped`, where `group_of` [inputs] int64 names the group of each input; None: they are neighbours.

    Inputs in any order have no layout in memory: their weights are float32.
    """
    inputs, groups = numbers.shape[1], scales.shape[1]
    neighbours = torch.arange(inputs, device=numbers.device) // (inputs // groups)
    if group_of is None or torch.equal(group_of, neighbours):
        return grouped(numbers, scales, zeros, bits)
    return numbers.float().sub_(zeros[:, group_of]).mul_(scales[:, group_of])
