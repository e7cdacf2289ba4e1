"""The modules of a decoder that adapters may change, by the names that peft's files have for them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..families import DecoderShape


@dataclass(frozen=True, slots=True)
class Target:
    """A module, and the operation that computes it: one of the layer's `qkv`, `out`, `gated` and `down`.

    `parts`: of the operation that are this module's outputs, each with its number and size. `factor`: what the
    operation multiplies the module's outputs by.
    """

    layer: int
    operation: str
    inputs: int
    parts: tuple[tuple[int, int], ...]
    factor: float = 1.0

    @property
    def outputs(self) -> int:
        return sum(size for _, size in self.parts)


def targets_of(shape: DecoderShape) -> dict[str, Target]:
    """Every module by its name in a checkpoint, such as `model.layers.0.self_attn.q_proj`."""
    return {
        f"model.layers.{layer}.{name}": target
        for layer in range(len(shape.layers))
        for name, target in _of_layer(shape, layer)
    }


def parts_of(shape: DecoderShape) -> dict[str, int]:
    """The number of parts of each operation."""
    return {"qkv": 1 if shape.packed_names else 3, "out": 1, "gated": 2, "down": 1}


def _of_layer(shape: DecoderShape, layer: int) -> Iterator[tuple[str, Target]]:
    hidden, inner, factor = shape.hidden, shape.inner, shape.residual_factor
    heads = [count * shape.head_size for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
    if shape.packed_names:
        yield "self_attn.qkv_proj", Target(layer, "qkv", hidden, ((0, sum(heads)),))
        yield "mlp.gate_up_proj", Target(layer, "gated", hidden, ((0, inner), (1, inner)))
    else:
        for number, (name, size) in enumerate(zip("qkv", heads, strict=True)):
            yield f"self_attn.{name}_proj", Target(layer, "qkv", hidden, ((number, size),))
        for number, name in enumerate(("gate", "up")):
            yield f"mlp.{name}_proj", Target(layer, "gated", hidden, ((number, inner),))
    yield "self_attn.o_proj", Target(layer, "out", heads[0], ((0, hidden),), factor)
    yield "mlp.down_proj", Target(layer, "down", inner, ((0, hidden),), factor)
