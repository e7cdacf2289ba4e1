"""The Triton kernels against torch, in Triton's interpreter: the CPU's own run of the very code that GPUs compile.

On a GPU: TRITON_INTERPRET=0 pytest tests/server/kernels/test_triton.py
"""

import os
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
import torch

from slipway_server.kernels.api import BLOCK_TOKENS, AttentionSpec, Batch, Rotary
from slipway_server.kernels.draws import LIKELIEST, STRETCH, Draws, draw_by, sample
from slipway_server.kernels.in_torch import TorchKernels
from slipway_server.kernels.in_triton import INTERPRETED, Division, TritonGated, TritonKernels, TritonLinear, TritonNorm
from tests.server.kernels.batches import POSITIONS, a_batch, made, width_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DEVICE = "cpu" if INTERPRETED else "cuda:0"
BLOCKS = 100
# Of the largest value: sums in another order; one rounding of half precision. The interpreter cuts bfloat16 off where
# hardware rounds.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
RULES: list[dict[str, float]] = [{}, {"top_p": 0.9}, {"top_p": 0.2}, {"top_k": 40}, {"min_p": 0.1}]
RULES += [{"top_k": 60, "top_p": 0.8, "min_p": 0.2}, {"top_k": 20}, {"top_k": 20, "top_p": 0.8, "min_p": 0.1}]
SPECS_RANDOM = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def kernels(dtype: torch.dtype = torch.float32) -> TritonKernels:
    return TritonKernels(dtype, DEVICE)


def exact_kernels() -> TorchKernels:
    return TorchKernels(torch.float32, DEVICE)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


def near(ours: torch.Tensor, exact: torch.Tensor) -> None:
    exact = exact.float()
    error = (ours.float() - exact).abs().max() / exact.abs().max()
    assert error <= TOLERANCE[ours.dtype], f"off by {error:.1e} of the largest value"


def test_without_a_gpu_the_interpreter_runs() -> None:
    assert (os.environ["TRITON_INTERPRET"] == "1") is INTERPRETED


# --- number by number -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 96), (5, 130)])
def test_norms(rows: int, size: int) -> None:
    weight, x = torch.rand(size) + 0.5, random(rows, size)
    near(kernels().norm(weight, 1e-6)(x), exact_kernels().norm(weight, 1e-6)(x))
    half = x.to(torch.float16)
    near(kernels(torch.float16).norm(weight, 1e-6)(half), exact_kernels().norm(weight, 1e-6)(half.float()))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # a sigmoid of what is far out is 0, as it should be
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products(activation: str) -> None:
    gate, up, x = random(1030, 8), random(1030, 8), random(2, 8)
    near(kernels().gated(gate, up, activation)(x), exact_kernels().gated(gate, up, activation)(x))


@pytest.mark.parametrize("rows", [1, 3])
def test_products_are_added_in_float32(rows: int) -> None:
    weight, bias, x, other = random(7, 8), random(7), random(rows, 8), random(rows, 7)
    ours, exact = (each.linear(weight, bias) for each in (kernels(), exact_kernels()))
    near(ours(x), exact(x))
    near(ours(x, other.clone()), exact(x, other))


# Fewer inputs than a program takes at once, as many, and a few more; an odd number of outputs.
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 7), (1024, 6), (1030, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_single_row_is_normed_multiplied_and_gated_in_one_kernel(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    """What rows beside others get too, where the kernels are separate."""
    weight, bias, gates = random(outputs, inputs), random(outputs), random(2 * outputs, inputs) * inputs**-0.5
    x, other = random(1, inputs, dtype=dtype) * 30, random(1, outputs, dtype=dtype)
    ours = kernels(dtype)
    norm, linear = ours.norm(torch.rand(inputs) + 0.5, 1e-6), ours.linear(weight, bias)
    gated = ours.gated(gates[:outputs], gates[outputs:], "silu")
    assert isinstance(norm, TritonNorm) and isinstance(linear, TritonLinear) and isinstance(gated, TritonGated)
    beside = torch.cat((x, x))
    near(linear.of_normed(norm, x), linear.of_normed(norm, beside)[:1])
    near(linear.of_normed(norm, x, other.clone()), linear.of_normed(norm, beside, torch.cat((other, other)))[:1])
    near(gated.of_normed(norm, x), gated.of_normed(norm, beside)[:1])


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")  # where min_p is 0 nothing is left out
@pytest.mark.parametrize("size", [1, 5, 33, 1025, 5000])
def test_draws_are_those_of_torch(size: int) -> None:
    kinds = list(product((0.05, 0.7, 1.0, 30.0), RULES))
    wide = torch.randn(len(kinds) + 1, size + 3) * 3
    wide[3, :size:7] = -torch.inf
    wide[:, size:] = 1e9  # beyond the end of the rows
    rows = [draw_by(seed << 40 | 7, temperature, **rules) for seed, (temperature, rules) in enumerate(kinds)]  # type: ignore[arg-type]
    draws = Draws([*rows, LIKELIEST], [2**33 + row for row in range(len(wide))])
    ours, finite = kernels().sample(wide[:, :size].to(DEVICE), draws)
    exact, all_finite = sample(wide[:, :size], draws)
    assert finite.tolist() == all_finite.tolist()
    assert sum(one != other for one, other in zip(ours.tolist(), exact.tolist(), strict=True)) <= 1  # by rounding


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
def test_draws_of_a_large_vocabulary() -> None:
    size = 256 * STRETCH + 3000
    logits = torch.randn(3, size)
    logits[0, size - 5] = logits[1, size - 9] = 25.0
    draws = Draws([draw_by(seed, 1.0, top_p=0.97) for seed in (3, 4)] + [LIKELIEST], [5, 6, 7])
    ours, _ = kernels().sample(logits.to(DEVICE), draws)
    exact, _ = sample(logits, draws)
    assert ours.tolist() == exact.tolist()
    assert ours[0] == size - 5 and ours[1] == size - 9


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        # Of 0.5, 0.3, 0.12 and 0.08: top_p is a part of what top_k leaves, min_p takes from it afterwards.
        ({"top_p": 0.55, "min_p": 0.5}, {0, 1}),
        ({"top_p": 0.45, "min_p": 0.5}, {0}),
        ({"top_p": 0.9, "min_p": 0.2}, {0, 1, 2}),
        ({"top_p": 0.6, "top_k": 2, "min_p": 0.5}, {0}),
    ],
)
def test_rules_together_leave_the_tokens_that_they_leave_in_torch(rules: dict[str, Any], left: set[int]) -> None:
    rows = 48
    logits = torch.log(torch.tensor([0.5, 0.3, 0.12, 0.08])).expand(rows, 4).contiguous()
    draws = Draws([draw_by(seed, 1.0, **rules) for seed in range(rows)], [9] * rows)
    exact, _ = sample(logits, draws)
    ours, _ = kernels().sample(logits.to(DEVICE), draws)
    assert set(exact.tolist()) == left
    assert ours.tolist() == exact.tolist()


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("draw", [LIKELIEST, draw_by(3, 0.01, top_k=1)])
def test_the_likeliest_token_and_numbers_that_are_not_finite(draw: bytes) -> None:
    logits = torch.randn(6, 1100)
    logits[1] = 0.5  # the first one of many
    logits[2, 1099], logits[3, 0], logits[4, 550] = torch.nan, torch.inf, -torch.inf
    logits[5] = -torch.inf
    ids, finite = kernels().sample(logits.to(DEVICE), Draws([draw] * 6, [0] * 6))
    assert finite.tolist() == [True, True, False, False, False, False]
    assert ids[:2].tolist() == [int(logits[0].argmax()), 0]
    assert ids[5] == -1 and ids[4] != 550


# --- attention --------------------------------------------------------------------------------------------------------


def rotary(rotated: int) -> Rotary:
    angles = (torch.arange(POSITIONS)[:, None] * torch.rand(rotated // 2, generator=SPECS_RANDOM)).to(DEVICE)
    return Rotary(angles.cos(), angles.sin())


def a_spec(heads: int = 4, kv_heads: int = 2, size: int = 16, **more: Any) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, size, scale=size**-0.5, **({"rotary": rotary(size)} | more))


def norm_weight(size: int) -> torch.Tensor:
    return (torch.rand(size, generator=SPECS_RANDOM) + 0.5).to(DEVICE)


SMALL = {
    "grouped": a_spec(),
    "three to a group, normed": a_spec(3, 1, 24, q_norm=norm_weight(24), k_norm=norm_weight(24)),
    "windowed": a_spec(2, 1, window=20),
    "capped, not turned": a_spec(2, 1, cap=2.0, rotary=None),
}
LARGE = {
    "heads of 64": a_spec(8, 2, 64),
    "heads of 96": a_spec(4, 2, 96),
    "heads of 128, normed": a_spec(4, 2, 128, q_norm=norm_weight(128), k_norm=norm_weight(128)),
    "heads of 256": a_spec(4, 1, 256),
    "one head each": a_spec(3, 3, 32),
    "many to a group": a_spec(40, 1, 32),
    "seven to a group": a_spec(14, 2, 64),
    "partly turned": a_spec(4, 2, 64, rotary=rotary(24)),
    "a window over splits": a_spec(4, 2, 32, window=150),
    "windowed and capped": a_spec(4, 2, 32, window=33, cap=5.0),
}
# Starts at the edges of blocks and of splits, the first and the last position; then spans of several tokens.
SINGLES = [(0, 1), (31, 1), (32, 1), (127, 1), (128, 1), (298, 1)]
CHUNKS = [(0, 2), (30, 3), (126, 1), (250, 2)]


def filled(dtype: torch.dtype, spec: AttentionSpec, batch: Batch) -> tuple[Any, Any]:
    """Our layer and torch's in float32 with the same random cache. What is not written yet is no number in ours."""
    ours, exact = made(kernels(dtype), spec, BLOCKS), made(exact_kernels(), spec, BLOCKS)
    for own, plain in ((ours._keys, exact._keys._numbers), (ours._values, exact._values._numbers)):
        numbers = random(*plain.shape, dtype=dtype)
        plain.copy_(numbers)
        unwritten = torch.ones(len(plain), dtype=torch.bool, device=DEVICE)
        for table, start in zip(batch.block_tables, batch.starts.tolist(), strict=True):
            slot_mapping = table.long()[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS, device=DEVICE)
            unwritten[slot_mapping.flatten()[:start]] = False
        numbers[unwritten] = torch.nan
        own.copy_(numbers.view(BLOCKS, BLOCK_TOKENS, *plain.shape[1:]).transpose(1, 2))
    return ours, exact


def there(batch: Batch) -> Batch:
    members = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: member for name, member in members.items() if isinstance(member, torch.Tensor)}
    return replace(batch, **{name: tensor.to(DEVICE) for name, tensor in tensors.items()})


def compare(spec: AttentionSpec, spans: list[tuple[int, int]], dtype: torch.dtype = torch.float32) -> None:
    batch = there(a_batch(spans))
    ours, exact = filled(dtype, spec, batch)
    qkv = random(len(batch.ids), width_of(spec), dtype=dtype)
    near(ours(qkv, batch), exact(qkv.float(), batch))


@pytest.mark.parametrize("name", SMALL)
def test_attention_is_that_of_torch(name: str) -> None:
    """A step of decodes and chunks together: both ways at once, and rows that must not touch each other."""
    compare(SMALL[name], SINGLES[1::2] + CHUNKS[1:3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_in_half_precision(dtype: torch.dtype) -> None:
    compare(SMALL["windowed"], [(40, 1), (9, 2)], dtype)


HALVES = ("heads of 64", "heads of 128, normed", "heads of 256", "windowed and capped")
SHAPES = [(name, torch.float32) for name in SMALL | LARGE]
SHAPES += [(name, dtype) for name in HALVES for dtype in (torch.float16, torch.bfloat16)]


@pytest.mark.extended
@pytest.mark.parametrize(("name", "dtype"), SHAPES)
def test_attention_is_that_of_torch_in_all_shapes(name: str, dtype: torch.dtype) -> None:
    """Decodes and chunks together, and a chunk of several tiles in front of single tokens."""
    spec = (SMALL | LARGE)[name]
    for spans in (SINGLES + CHUNKS[1:], [(3, 35), (0, 1), (200, 1)]):
        compare(spec, spans, dtype)


def test_a_decode_is_bitwise_the_same_beside_few_or_fewer_others_and_in_any_width_of_tables() -> None:
    spec = SMALL["grouped"]
    together = there(a_batch([(5, 1), (140, 1), (260, 1)]))
    ours, _ = filled(torch.float32, spec, together)
    qkv = random(3, width_of(spec))
    answer = ours(qkv, together)
    for rows, blocks in (([0, 1], 5), ([1, 2], 9)):
        fewer = there(a_batch([(int(together.starts[row]), 1) for row in rows]))
        block_tables = together.block_tables[rows, :blocks].contiguous()
        fewer = replace(fewer, block_tables=block_tables, slot_mapping=together.slot_mapping[rows])
        assert torch.equal(ours(qkv[rows], fewer), answer[rows])


def test_few_sequences_are_divided_most() -> None:
    divisions = [Division.of(programs) for programs in (1, 255, 256, 511, 512, 4096)]
    assert [each.least for each in divisions] == [128, 128, 512, 512, 2048, 2048]
    assert [each.combines for each in divisions] == [False, False, True, True, True, True]


@pytest.mark.parametrize("name", ["grouped", "windowed", "three to a group, normed"])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_last_part_of_a_sequence_combines_all(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are many sequences, whatever the number of parts is; twice, with what the first step left."""
    monkeypatch.setattr(Division, "of", lambda programs: Division(parts, 128, combines=True))
    spec, batch = SMALL[name], there(a_batch([(0, 1), (127, 1), (128, 1), (298, 1)]))
    ours, exact = filled(torch.float32, spec, batch)
    for _ in range(2):
        qkv = random(len(batch.ids), width_of(spec))
        near(ours(qkv, batch), exact(qkv, batch))
    assert not any(counts.any() for counts in ours._arrived.values())
