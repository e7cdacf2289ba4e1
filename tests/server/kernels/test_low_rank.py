"""Low-rank updates of linear layers in torch, in C and in Triton: the same numbers, and each row its own adapter's."""

from typing import Any

import pytest
import torch

from slipway_server.kernels import native
from slipway_server.kernels.in_torch import TorchKernels
from slipway_server.kernels.in_triton import TritonKernels
from slipway_server.kernels.low_rank import AdapterRoom, LowRank, Update, UpdateRefused
from tests.server.kernels.batches import needs_native

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

BF16 = torch.bfloat16
INPUTS, PARTS, INNER, RANK = 96, (128, 64, 64), 96, 16
ROOM = AdapterRoom(slots=4, rank=RANK)
RANKS = (16, 1, 7, 13)  # of the adapters: whole groups of ranks, and parts of them


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def update_of(slot: int, parts: tuple[int, ...], *, magnitudes: bool = False, without: int = -1) -> Update:
    """An adapter's update, without its part number `without`."""
    rank = RANKS[slot]
    return tuple(
        None
        if number == without
        else LowRank(
            random(rank, INPUTS, seed=10 * slot + number).to(BF16),
            (random(size, rank, seed=50 + 10 * slot + number) * 3).to(BF16),
            0.5 + slot,
            random(size, seed=90 + slot).abs() * 4 + 0.5 if magnitudes else None,
        )
        for number, size in enumerate(parts)
    )


def layers_of(kernels: Any, *, bias: bool = True) -> tuple[Any, Any]:
    weight, gates = random(sum(PARTS), INPUTS, seed=1).to(BF16), random(2 * INNER, INPUTS, seed=2).to(BF16)
    linear = kernels.linear(weight, random(sum(PARTS), seed=3).to(BF16) if bias else None, PARTS)
    return linear, kernels.gated(gates[:INNER], gates[INNER:], "silu")


def filled(kernels: Any, *, magnitudes: bool = False) -> tuple[Any, Any]:
    """A linear layer and a gated product with adapters in all slots; one of them leaves a part out."""
    linear, gated = layers_of(kernels)
    for slot in range(ROOM.slots):
        without = 1 if slot == 2 else -1
        linear.adapt(slot, linear.prepare(update_of(slot, PARTS, magnitudes=magnitudes, without=without)))
        gated.adapt(slot, gated.prepare(update_of(slot, (INNER, INNER), magnitudes=magnitudes, without=without)))
    return linear, gated


def near(ours: torch.Tensor, exact: torch.Tensor, limit: float) -> None:
    error = (ours.float() - exact.float()).norm() / exact.float().norm()
    assert error <= limit, f"off by {error:.1e}"


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers, and slots in segments and one by one, with rows without an adapter among them."""
    slots = torch.tensor([(index // 5 if index < 20 else index) % 5 - 1 for index in range(count)], dtype=torch.int32)
    return random(count, INPUTS, seed=7).to(BF16), slots


def merged(weight: torch.Tensor, update: Update, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The layer with the update merged into its weight, in float64: the definition of LoRA and DoRA."""
    parts, wide = [], weight.double()
    for size, part in zip(PARTS, update, strict=True):
        rows, wide = wide[:size], wide[size:]
        if part is not None:
            rows = rows + part.scale * part.b.double() @ part.a.double()
            if part.magnitude is not None:
                rows = rows * (part.magnitude.double() / rows.norm(dim=1))[:, None]
        parts.append(rows)
    y = x.double() @ torch.cat(parts).T
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("magnitudes", [False, True], ids=["LoRA", "DoRA"])
def test_torch_computes_what_merged_weights_would(magnitudes: bool) -> None:
    linear, _ = filled(TorchKernels(torch.float32, "cpu"), magnitudes=magnitudes)
    x, slots = rows(23)
    y = linear(x.float(), None, slots)
    weight, bias = random(sum(PARTS), INPUTS, seed=1).to(BF16), random(sum(PARTS), seed=3).to(BF16)
    for row, slot in enumerate(slots.tolist()):
        update = update_of(slot, PARTS, magnitudes=magnitudes, without=1 if slot == 2 else -1) if slot >= 0 else ()
        exact = merged(weight, update or (None,) * 3, x[row], bias)
        near(y[row], exact, 1e-5)


@needs_native
@pytest.mark.parametrize("magnitudes", [False, True], ids=["LoRA", "DoRA"])
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
@pytest.mark.parametrize("count", [1, 3, 8, 130])
def test_the_c_kernels_compute_what_torch_does(count: int, int8: bool, magnitudes: bool) -> None:
    ours = filled(native.NativeKernels(2, int8=int8, adapters=ROOM), magnitudes=magnitudes)
    exact = filled(TorchKernels(torch.float32, "cpu"), magnitudes=magnitudes)
    x, slots = rows(count)
    for own, plain in zip(ours, exact, strict=True):
        y = own(x, slots=slots)
        near(y, plain(x.float(), slots=slots), 2e-2 if int8 else 6e-3)
        assert not torch.equal(y[slots >= 0], own(x)[slots >= 0]) or not (slots >= 0).any()


@needs_native
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_a_row_is_the_same_bits_alone_and_beside_any_others(int8: bool) -> None:
    """Those without an adapter are what kernels without room for one compute."""
    plain = layers_of(native.NativeKernels(2, int8=int8))
    for number, own in enumerate(filled(native.NativeKernels(2, int8=int8, adapters=ROOM), magnitudes=True)):
        x, slots = rows(130)
        together = own(x, slots=slots)
        for row in (0, 1, 6, 21, 22, 129):
            alone = own(x[row : row + 1], slots=slots[row : row + 1])
            assert torch.equal(alone[0], together[row])
        assert torch.equal(together[slots < 0], plain[number](x)[slots < 0])
        own.adapt(1, None)
        assert torch.equal(own(x, slots=slots)[slots == 2], together[slots == 2])


@needs_native
def test_a_residual_sum_is_added_to_rows_with_and_without_adapters() -> None:
    linear, _ = filled(native.NativeKernels(2, adapters=ROOM))
    x, slots = rows(9)
    other = random(9, sum(PARTS), seed=8).to(BF16)
    near(linear(x, other.clone(), slots), linear(x, None, slots).float() + other.float(), 6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 70])
def test_the_triton_kernel_computes_what_torch_does(count: int, dtype: torch.dtype) -> None:
    ours = filled(TritonKernels(dtype, "cpu", adapters=ROOM))
    exact = filled(TorchKernels(torch.float32, "cpu"))
    x, slots = rows(count)
    for own, plain in zip(ours, exact, strict=True):
        y = own(x.to(dtype), slots=slots)
        near(y, plain(x.float(), slots=slots), 1e-5 if dtype == torch.float32 else 2e-2)
        if count > 1:
            assert torch.equal(y[slots < 0], own(x.to(dtype))[slots < 0])


def test_gpus_refuse_dora_by_its_name() -> None:
    linear, _ = layers_of(TritonKernels(torch.float32, "cpu", adapters=ROOM))
    with pytest.raises(UpdateRefused, match="use_dora"):
        linear.prepare(update_of(0, PARTS, magnitudes=True))
