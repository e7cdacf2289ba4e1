"""All layers of a decoder in one call of the C kernels: to the bit what their operations give one after the other."""

from typing import Any

import pytest
import torch

from slipway_server.kernels import native
from slipway_server.kernels.api import AttentionSpec, Batch, Layer, Rotary, in_sequence
from tests.server.kernels.batches import POSITIONS, a_batch, needs_native

pytestmark = [pytest.mark.integration, needs_native]

BF16 = torch.bfloat16
HIDDEN, HEADS, KV_HEADS, SIZE, INNER = 96, 4, 2, 32, 160
# A prompt in two parts beside others, then what is decoded: the first step is not the largest.
STEPS = ([(0, 7), (0, 1)], [(7, 40), (1, 1), (0, 33)], [(47, 1), (2, 1), (33, 1)])


def test_layers_in_sequence_equal_their_operations() -> None:
    for after in (False, True):
        check(after=after, int8=False)


def test_in_int8_too() -> None:
    check(after=False, int8=True)


def check(*, after: bool, int8: bool) -> None:
    together, in_parts = (layers_of(kernels, after=after, int8=int8) for kernels in (True, False))
    for number, spans in enumerate(STEPS):
        batch = a_batch(spans)
        batch = wanting(batch, [0, 1, len(batch.positions) - 1] if number else [])
        x = torch.randn(len(batch.positions), HIDDEN, generator=torch.Generator().manual_seed(number)).to(BF16)
        found, wanted = together(x.clone(), batch), in_parts(x.clone(), batch)
        assert found.shape == (len(batch.rows), HIDDEN) and torch.equal(found, wanted)
        assert found.isfinite().all()


def test_layers_report_the_time_of_their_operations() -> None:
    layers = layers_of(True, after=False, int8=False)
    layers(torch.ones(3, HIDDEN, dtype=BF16), wanting(a_batch([(0, 3)]), [2]))
    assert all(spent_ns > 0 for spent_ns in layers.spent_ns)


def wanting(batch: Batch, rows: list[int]) -> Batch:
    fields = {name: getattr(batch, name) for name in Batch.__slots__}
    return Batch(**fields | {"rows": torch.tensor(rows, dtype=torch.int64)})


def layers_of(as_one: bool, *, after: bool, int8: bool) -> Any:
    kernels = native.NativeKernels(2, int8=int8, kv_int8=int8)
    draw = torch.Generator().manual_seed(11)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=draw) / shape[-1] ** 0.5).to(BF16)

    def norm(size: int = HIDDEN) -> Any:
        return kernels.norm(torch.rand(size, generator=draw) + 0.5, 1e-6)

    angles = torch.rand(POSITIONS, SIZE // 2, generator=draw)
    spec = AttentionSpec(HEADS, KV_HEADS, SIZE, SIZE**-0.5, rotary=Rotary(angles.cos(), angles.sin()))
    made = [
        Layer(
            norm_in=norm(),
            qkv=kernels.linear(weight((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN)),
            attention=kernels.attention(spec),
            out=kernels.linear(weight(HIDDEN, HEADS * SIZE)),
            norm_mlp=norm(),
            gated=kernels.gated(weight(INNER, HIDDEN), weight(INNER, HIDDEN), "silu"),
            down=kernels.linear(weight(HIDDEN, INNER)),
            norm_attended=norm() if after else None,
            norm_mixed=norm() if after else None,
        )
        for _ in range(3)
    ]
    kernels.reserve(100)
    return kernels.layers(made) if as_one else in_sequence(made)
