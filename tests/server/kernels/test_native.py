"""The C kernels against torch, and bit for bit against themselves in other batches."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from slipway_server.kernels import native
from slipway_server.kernels.api import BLOCK_TOKENS, AttentionSpec, Rotary
from slipway_server.kernels.c.library import KernelsUnavailable
from slipway_server.kernels.in_torch import TorchKernels
from tests.server.kernels.batches import POSITIONS, a_batch, made, needs_native, width_of

pytestmark = [pytest.mark.integration, needs_native]

BF16 = torch.bfloat16
# One rounding of a bfloat16 is 2^-9 of the value; sums of products are rounded once, at their end.
ROUNDING = 2**-8
# For what is drawn when this module is imported: the same in every run.
SPECS_RANDOM = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def near(ours: torch.Tensor, exact: torch.Tensor, factor: float = 1.0) -> None:
    exact = exact.float()
    limit = factor * ROUNDING * exact.abs() + factor * 1e-3 * exact.abs().max()
    assert ((ours.float() - exact).abs() <= limit).all(), (ours.float() - exact).abs().max()


def distance(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """Root of the mean square of the difference, as a share of that of the values."""
    return float((ours.float() - exact).norm() / exact.norm())


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(BF16)


# --- linear layers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 11, 12, 13, 24, 33, 100])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 16), (96, 64), (224, 272)])
def test_products_equal_those_of_torch(rows: int, outputs: int, inputs: int) -> None:
    weight, bias, x, other = bf16(outputs, inputs), bf16(outputs), bf16(rows, inputs), bf16(rows, outputs)
    product = native.NativeKernels(2).linear(weight, bias)
    exact = x.float() @ weight.float().T + bias.float()
    near(product(x), exact)
    near(product(x, other), exact + other.float())
    near(product(x), exact)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 50])
def test_products_of_wide_layers_are_summed_in_blocks(rows: int, int8: bool) -> None:
    """And are the same bits in any batch, however many blocks there are."""
    weight, x = bf16(64, 14336 + 16), bf16(rows, 14336 + 16)
    exact = x.float() @ weight.float().T
    product = native.NativeKernels(2, int8=int8).linear(weight)
    together = product(x)
    assert distance(together, exact) < (0.02 if int8 else 0.004)
    assert torch.equal(torch.cat([product(row[None]) for row in x]), together)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products(activation: str) -> None:
    gate, up, x = bf16(80, 64), bf16(80, 64), bf16(5, 64)
    x[0] *= 30  # far out, where exponentials under- and overflow
    g, u = x.float() @ gate.float().T, x.float() @ up.float().T
    act = torch.nn.functional.silu if activation == "silu" else torch.nn.GELU(approximate="tanh")
    near(native.NativeKernels(2).gated(gate, up, activation)(x), act(g) * u)


def test_a_head_of_any_size_gives_float32_logits() -> None:
    weight, x = bf16(101, 64), bf16(3, 64)
    logits = native.NativeKernels(2).head(weight)(x)
    assert logits.shape == (3, 101) and logits.dtype == torch.float32
    near(logits, x.float() @ weight.float().T)


def test_int8_is_exact_on_whole_numbers_and_near_on_others() -> None:
    kernels = native.NativeKernels(2, int8=True)
    weight, x = torch.randint(-127, 128, (64, 128)).to(BF16), torch.randint(-127, 128, (9, 128)).to(BF16)
    weight[:, 0], x[:, 0] = 127, 127  # so that the scales are 1
    exact = x.float() @ weight.float().T
    near(kernels.linear(weight)(x), exact)
    weight, x = bf16(64, 512), bf16(9, 512)
    exact = x.float() @ weight.float().T
    error = (kernels.linear(weight)(x).float() - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
    assert error < 0.02
    assert kernels.linear(weight)(torch.zeros(2, 512, dtype=BF16)).abs().max() == 0


def test_norms() -> None:
    weight, x = torch.rand(96) + 0.5, bf16(17, 96) * 3
    exact = TorchKernels(torch.float32, "cpu").norm(weight, 1e-6)(x.float())
    near(native.NativeKernels(2).norm(weight, 1e-6)(x), exact)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("outputs", [64, 70])
def test_a_tied_weight_is_embedding_and_head(int8: bool, outputs: int) -> None:
    weight, x, ids = bf16(outputs, 48), bf16(3, 48), torch.tensor([outputs - 1, 0, 33, 31])
    rows, head = native.NativeKernels(2, int8=int8).tied(weight)
    scale = weight[ids].float().abs().amax(1, keepdim=True) / 127
    rounded = ((weight[ids].float() / scale).round() * scale).to(BF16)
    assert torch.equal(rows(ids), rounded if int8 else weight[ids])
    assert torch.equal(head(x), native.NativeKernels(2, int8=int8).head(weight)(x))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_nan_input_stays_nan_in_int8(odd: float) -> None:
    x = bf16(14, 48)
    x[3, 41] = odd
    y = native.NativeKernels(2, int8=True).linear(bf16(32, 48))(x)
    assert y.isfinite().all(dim=1).logical_not().nonzero().flatten().tolist() == [3]


def test_a_nan_weight_stays_nan_in_int8() -> None:
    weight = bf16(32, 64)
    weight[5, 7] = math.nan
    y = native.NativeKernels(2, int8=True).linear(weight)(bf16(2, 64))
    assert y.isnan().any(dim=0).nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize(("outputs", "inputs"), [(33, 64), (32, 24)])
def test_shapes_that_do_not_fit_are_refused(outputs: int, inputs: int) -> None:
    with pytest.raises(KernelsUnavailable, match="not a multiple"):
        native.NativeKernels(2).linear(bf16(outputs, inputs))


# --- attention --------------------------------------------------------------------------------------------------------


def rotary(rotated: int) -> Rotary:
    angles = torch.arange(POSITIONS)[:, None] * torch.rand(rotated // 2, generator=SPECS_RANDOM)
    return Rotary(angles.cos(), angles.sin())


def norm_weight(size: int) -> torch.Tensor:
    return torch.rand(size, generator=SPECS_RANDOM) + 0.5


def a_spec(heads: int = 4, kv_heads: int = 2, size: int = 64, **more: Any) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, size, scale=size**-0.5, rotary=rotary(size), **more)


SPECS = {
    "grouped": a_spec(),
    "one head each": a_spec(3, 3, 32),
    "many to a group": a_spec(14, 2, 64),
    "large heads": a_spec(4, 1, 256),
    "odd heads": a_spec(4, 2, 96),
    "normed": a_spec(q_norm=norm_weight(64), k_norm=norm_weight(64)),
    "windowed": a_spec(window=20),
    "capped": a_spec(cap=2.0),
    "partly turned": replace(a_spec(), rotary=rotary(24)),
    "not turned": replace(a_spec(), rotary=None),
}


@pytest.mark.parametrize("name", SPECS)
def test_attention_is_that_of_torch(name: str) -> None:
    """Prompts of sizes around those of blocks and tiles, then more of them over what is cached, then single tokens."""
    spec = SPECS[name]
    ours, exact = made(native.NativeKernels(2), spec), made(TorchKernels(torch.float32, "cpu"), spec)
    half = made(TorchKernels(BF16, "cpu"), spec)
    sizes = [1, 2, 31, 32, 33, 64, 90]
    for spans in (
        [(0, size) for size in sizes],
        [(size, 40) for size in sizes],
        [(size + 40, 1) for size in sizes],
    ):
        batch, qkv = a_batch(spans), bf16(sum(count for _, count in spans), width_of(spec))
        found, wanted = ours(qkv, batch), exact(qkv.float(), batch)
        near(found, wanted, factor=8)
        assert distance(found, wanted) <= 1.1 * distance(half(qkv, batch), wanted), "further off than torch in bfloat16"


@pytest.mark.parametrize("name", SPECS)
def test_attention_over_int8_is_that_of_torch_over_int8(name: str) -> None:
    """And off from what is exact by no more than the rounding of keys and values costs."""
    spec = SPECS[name]
    ours = made(native.NativeKernels(2, kv_int8=True), spec)
    same = made(TorchKernels(torch.float32, "cpu", kv_int8=True), spec)
    exact = made(TorchKernels(torch.float32, "cpu"), spec)
    sizes = [1, 2, 31, 32, 33, 64, 90]
    for spans in ([(0, size) for size in sizes], [(size, 40) for size in sizes], [(size + 40, 1) for size in sizes]):
        batch, qkv = a_batch(spans), bf16(sum(count for _, count in spans), width_of(spec))
        found, wanted = ours(qkv, batch), same(qkv.float(), batch)
        assert distance(found, wanted) < 0.01
        assert distance(found, exact(qkv.float(), batch)) < 0.03


@pytest.mark.parametrize("kernels", [native.NativeKernels, TorchKernels], ids=["native", "torch"])
def test_int8_keys_and_values_take_their_bytes_and_scales(kernels: Any) -> None:
    arguments = (2,) if kernels is native.NativeKernels else (BF16, "cpu")
    ours, plain = kernels(*arguments, kv_int8=True), kernels(*arguments)
    for one in (ours, plain):
        one.attention(a_spec(size=64))
        one.attention(a_spec(kv_heads=1, size=128))
    tokens_heads = BLOCK_TOKENS * 2
    assert plain.bytes_per_block == tokens_heads * (2 * 64 + 1 * 128) * 2
    assert ours.bytes_per_block == tokens_heads * (2 * (64 + 4) + 1 * (128 + 4))


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("kernels", [native.NativeKernels, TorchKernels], ids=["native", "torch"])
def test_int8_does_not_hide_non_finite_numbers(kernels: Any, odd: float) -> None:
    arguments = (2,) if kernels is native.NativeKernels else (BF16, "cpu")
    spec = replace(a_spec(heads=2, kv_heads=2, size=32), rotary=None)
    qkv = bf16(4, width_of(spec))
    key, value = 2 * 32 + 5, 4 * 32 + 37  # of the first head, of the second one
    qkv[1, key] = qkv[2, value] = odd
    layer = made(kernels(*arguments, kv_int8=True), spec)
    found = torch.cat([layer(qkv[at : at + 1], a_batch([(at, 1)])) for at in range(4)]).view(4, 2, 32)
    assert found.isfinite().all(dim=-1).tolist() == [[True, True], [False, True], [False, False], [False, False]]


@pytest.mark.parametrize("kv_int8", [False, True])
def test_a_cleared_block_leaks_no_earlier_content(kv_int8: bool) -> None:
    spec = a_spec()
    kernels = native.NativeKernels(2, kv_int8=kv_int8)
    layer = made(kernels, spec)
    batch, qkv = a_batch([(0, 5)]), bf16(5, width_of(spec))
    clean = layer(qkv, batch)
    layer(torch.full((40, width_of(spec)), math.nan, dtype=BF16), a_batch([(0, 40)]))
    kernels.clear(batch.block_tables[0, :2].tolist())
    assert torch.equal(layer(qkv, batch), clean)


# --- the same bits in any batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("int8", [False, True])
def test_a_rows_product_is_bitwise_the_same_in_any_batch(int8: bool) -> None:
    product = native.NativeKernels(2, int8=int8).linear(bf16(96, 272))
    x = bf16(61, 272)
    together = product(x)
    assert torch.equal(torch.cat([product(row[None]) for row in x]), together)
    assert torch.equal(product(x.flip(0)).flip(0), together)
    assert torch.equal(torch.cat([product(part) for part in x.split([5, 12, 13, 31])]), together)


@pytest.mark.parametrize("kv_int8", [False, True])
@pytest.mark.parametrize("window", [0, 700])
def test_threads_share_a_long_context_in_splits(window: int, kv_int8: bool) -> None:
    """One sequence alone, whose splits several threads compute, and among so many that one thread computes each."""
    spec, size, many = replace(a_spec(window=window), rotary=None), 1300, 12
    width = size // BLOCK_TOKENS + 1
    exact = made(TorchKernels(torch.float32, "cpu", kv_int8=kv_int8), spec, many * width)
    layer = made(native.NativeKernels(2, kv_int8=kv_int8), spec, many * width)
    qkv = bf16(size, width_of(spec))
    batch = a_batch([(0, size - 1)] * many, width)
    layer(qkv[:-1].repeat(many, 1), batch)
    exact(qkv[:-1].repeat(many, 1).float(), batch)
    last = a_batch([(size - 1, 1)] * many, width)
    among = layer(qkv[-1:].repeat(many, 1), last)
    assert distance(among, exact(qkv[-1:].repeat(many, 1).float(), last)) < 0.01
    for number in range(many):
        of_one = {
            name: getattr(last, name)[number : number + 1]
            for name in ("ids", "positions", "slot_mapping", "counts", "starts", "block_tables")
        }
        alone = replace(last, **of_one, first=last.first[:1], num_decodes=1)
        assert torch.equal(layer(qkv[-1:], alone), among[number : number + 1])


@pytest.mark.parametrize("kv_int8", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_a_sequences_attention_is_bitwise_the_same_in_any_batch_and_any_parts(name: str, kv_int8: bool) -> None:
    """At once, in parts, token by token, and beside others."""
    spec, size = SPECS[name], 70
    qkv = bf16(size, width_of(spec))
    layer = made(native.NativeKernels(2, kv_int8=kv_int8), spec)
    whole = layer(qkv, a_batch([(0, size)]))
    for cuts in ([33, 37], [1, 31, 38], [1] * size):
        layer = made(native.NativeKernels(2, kv_int8=kv_int8), spec)
        starts = [sum(cuts[:index]) for index in range(len(cuts))]
        parts = [layer(qkv[s : s + c], a_batch([(s, c)])) for s, c in zip(starts, cuts, strict=True)]
        assert torch.equal(torch.cat(parts), whole)
    layer = made(native.NativeKernels(2, kv_int8=kv_int8), spec)
    beside = torch.cat((bf16(45, width_of(spec)), qkv, bf16(3, width_of(spec))))
    assert torch.equal(layer(beside, a_batch([(0, 45), (0, size), (0, 3)]))[45 : 45 + size], whole)
