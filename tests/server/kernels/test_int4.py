"""Products with weights of 4 bits: against torch, as published and rounded, and bit for bit in any batch."""

import math

import pytest
import torch

from slipway_server.kernels import native
from slipway_server.kernels.int4 import for_products
from slipway_server.kernels.low_rank import AdapterRoom, LowRank
from slipway_server.kernels.weights import GroupedInt4, dense, rounded_to_int4, stacked
from tests.server.kernels.batches import needs_native

pytestmark = [pytest.mark.integration, needs_native]

BF16 = torch.bfloat16
INPUT_ROUNDING = 0.02  # of int8 inputs, and of the result to bfloat16: root of the mean square, as a share


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(BF16)


def grouped(outputs: int, inputs: int, group: int) -> GroupedInt4:
    groups = inputs // group
    return GroupedInt4(
        torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8),
        torch.rand(outputs, groups) * 0.02 + 0.01,
        torch.randint(0, 16, (outputs, groups), dtype=torch.uint8),
    )


def distance(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 13, 50, 130])
@pytest.mark.parametrize(("inputs", "group"), [(96, 32), (256, 64), (512, 128), (768, 768), (1024, 512)])
def test_products_are_those_of_the_dequantized_weight(rows: int, inputs: int, group: int) -> None:
    weight, bias, x, other = grouped(96, inputs, group), bf16(96), bf16(rows, inputs), bf16(rows, 96)
    product = native.NativeKernels(2).linear(weight, bias)
    exact = x.float() @ dense(weight).T + bias.float()
    assert distance(product(x), exact) < INPUT_ROUNDING
    assert distance(product(x, other), exact + other.float()) < INPUT_ROUNDING


def test_whole_inputs_are_exact() -> None:
    weight, x = grouped(64, 128, 32), torch.randint(-127, 128, (9, 128)).to(BF16)
    x[:, ::32] = 127  # so that the scale of each group is 1
    weight.scales[:] = 1.0
    exact = x.float() @ dense(weight).T
    assert torch.equal(native.NativeKernels(2).linear(weight)(x), exact.to(BF16))


def test_large_inputs_of_one_group_leave_the_others_exact() -> None:
    """A scale for each group of inputs, where int8 weights have one for the row."""
    weight, x = grouped(64, 256, 64), bf16(5, 256)
    x[:, 7] *= 1000
    rest = x.clone()
    rest[:, :64] = 0
    numbers = weight.scales.clone()
    numbers[:, 0] = 0.0
    without_first = GroupedInt4(weight.numbers, numbers, weight.zeros)
    ours = native.NativeKernels(2).linear(without_first)(x)
    assert distance(ours, rest.float() @ dense(weight).T) < INPUT_ROUNDING


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_gated_products(rows: int) -> None:
    gate, up, x = grouped(80, 64, 32), grouped(80, 64, 32), bf16(rows, 64)
    exact = torch.nn.functional.silu(x.float() @ dense(gate).T) * (x.float() @ dense(up).T)
    assert distance(native.NativeKernels(2).gated(gate, up, "silu")(x), exact) < 2 * INPUT_ROUNDING


def test_a_rows_product_is_bitwise_the_same_in_any_batch() -> None:
    product = native.NativeKernels(2).linear(grouped(96, 288, 32))
    x = bf16(61, 288)
    together = product(x)
    assert torch.equal(torch.cat([product(row[None]) for row in x]), together)
    assert torch.equal(product(x.flip(0)).flip(0), together)
    assert torch.equal(torch.cat([product(part) for part in torch.split(x, [5, 12, 13, 31])]), together)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_nan_input_stays_nan(odd: float) -> None:
    x = bf16(14, 64)
    x[3, 41] = odd
    y = native.NativeKernels(2).linear(grouped(32, 64, 32))(x)
    assert y.isfinite().all(dim=1).logical_not().nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_nan_weight_stays_nan(odd: float) -> None:
    weight = bf16(32, 64)
    weight[5, 7] = odd
    y = native.NativeKernels(2, int4=True).linear(weight)(bf16(2, 64))
    assert y.isnan().any(dim=0).nonzero().flatten().tolist() == [5]


def test_rounding_is_near_and_keeps_what_has_16_steps() -> None:
    weight = torch.randn(300, 256)
    rounded = rounded_to_int4(weight, 64)
    assert rounded.group == 64 and distance(dense(rounded), weight) < 0.09
    plain = (weight.view(300, -1, 64).amax(2) - weight.view(300, -1, 64).amin(2)) / 15
    assert distance(dense(rounded), weight) < float(plain.square().mean().div(12).sqrt() / weight.std()), "of the range"
    steps = (torch.arange(64) % 16 - 5).float().repeat(2, 1)
    assert torch.equal(dense(rounded_to_int4(steps, 64)).round(), steps)
    assert torch.equal(dense(rounded_to_int4(torch.zeros(2, 64), 64)), torch.zeros(2, 64))


@pytest.mark.parametrize(("inputs", "kept"), [(64, True), (96, True), (48, False)])
def test_layers_whose_inputs_have_no_groups_are_int8(inputs: int, kept: bool) -> None:
    weight, x = bf16(64, inputs), bf16(3, inputs)
    ours = native.NativeKernels(2, int4=True).linear(weight)
    whole = native.NativeKernels(2, int8=True).linear(weight)
    assert torch.equal(ours(x), whole(x)) != kept
    assert (for_products(weight, rounds=True) is None) != kept


@pytest.mark.parametrize("group", [16, 48])
def test_published_groups_that_products_do_not_take_are_widened(group: int) -> None:
    weight, x = grouped(64, 96, group), bf16(3, 96)
    widened = native.NativeKernels(2).linear(dense(weight).to(BF16))
    assert torch.equal(native.NativeKernels(2).linear(weight)(x), widened(x))


def test_int8_is_chosen_over_published_groups_where_it_is_named() -> None:
    weight, x = grouped(64, 128, 32), bf16(3, 128)
    named = native.NativeKernels(2, int8=True)
    assert torch.equal(named.linear(weight)(x), named.linear(dense(weight).to(BF16))(x))


def test_weights_of_different_groups_are_stacked_widened() -> None:
    parts = [grouped(32, 128, 32), grouped(32, 128, 64)]
    assert torch.equal(dense(stacked(parts)), torch.cat([dense(part) for part in parts]))
    assert isinstance(stacked([parts[0], grouped(32, 128, 32)]), GroupedInt4)


@pytest.mark.parametrize("magnitude", [None, torch.rand(96) + 0.5])
def test_adapters_are_added(magnitude: torch.Tensor | None) -> None:
    """LoRA and DoRA, whose norms are those of the numbers of 4 bits."""
    weight, x = grouped(96, 128, 32), bf16(6, 128)
    layer = native.NativeKernels(2, adapters=AdapterRoom(2, 8)).linear(weight)
    a, b = torch.randn(8, 128) * 0.05, torch.randn(96, 8) * 0.05
    layer.adapt(1, layer.prepare((LowRank(a, b, 2.0, magnitude),)))
    whole = dense(weight) + 2.0 * b @ a
    if magnitude is not None:
        whole *= (magnitude / whole.norm(dim=1))[:, None]
    slots = torch.tensor([1, -1, 1, -1, -1, 1], dtype=torch.int32)
    exact = torch.where((slots == 1)[:, None], x.float() @ whole.T, x.float() @ dense(weight).T)
    y = layer(x, None, slots)
    assert distance(y, exact) < INPUT_ROUNDING
    assert torch.equal(y[slots < 0], layer(x)[slots < 0])
