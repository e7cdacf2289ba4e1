"""Ways in which the weights of a linear layer are stored, as far as config.json says it."""

from dataclasses import dataclass
from typing import Literal

WHOLE_ROW = -1  # as a group size: one group has all inputs of a row

Floats8Strategy = Literal["tensor", "channel", "block"]


@dataclass(frozen=True, slots=True)
class Awq:
    """AutoAWQ's `gemm`: 4 bits, groups of inputs with a zero point each."""

    group: int


@dataclass(frozen=True, slots=True)
class Gptq:
    """`act_order`: each input names its group. `zero_offset`: added to stored zero points (1 before gptq_v2)."""

    bits: Literal[4, 8]
    group: int
    act_order: bool
    zero_offset: Literal[0, 1]


@dataclass(frozen=True, slots=True)
class PackedInts:
    """compressed-tensors' `pack-quantized`: whole numbers of 4 or 8 bits in words, groups of inputs."""

    bits: Literal[4, 8]
    group: int
    symmetric: bool
    act_order: bool


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """compressed-tensors' `int-quantized`: int8, a scale for each tensor or each row."""

    per_row: bool
    symmetric: bool


@dataclass(frozen=True, slots=True)
class Floats8:
    """float8 (e4m3) with scales for the tensor, each row or each block; `scale`: the name of the tensor with them."""

    strategy: Floats8Strategy
    scale: Literal["weight_scale", "weight_scale_inv"]
    block: tuple[int, int] = (0, 0)  # rows and inputs


@dataclass(frozen=True, slots=True)
class Codebook4:
    """bitsandbytes with 4 bits: each number is one of 16 (`nf4` or `fp4`) times the scale of its block."""

    kind: Literal["nf4", "fp4"]


@dataclass(frozen=True, slots=True)
class RowInt8:
    """bitsandbytes with 8 bits: int8, and the largest magnitude of each row."""


Scheme = Awq | Gptq | PackedInts | WholeNumbers | Floats8 | Codebook4 | RowInt8


@dataclass(frozen=True, slots=True)
class Quantization:
    """`schemes`: those that the linear layers of the checkpoint may have; a layer may also have plain weights."""

    method: str
    schemes: tuple[Scheme, ...]

    @property
    def has_float8(self) -> bool:
        return any(isinstance(scheme, Floats8) for scheme in self.schemes)
