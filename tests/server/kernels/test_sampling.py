"""Draws of tokens: the right distribution, the same tokens in C and in torch, and noise that is Philox's."""

from collections.abc import Callable
from itertools import product

import pytest
import torch

from slipway_server.kernels.draws import LIKELIEST, Draws, TokenMasks, draw_by, philox, sample
from slipway_server.kernels.in_torch import TorchKernels
from slipway_server.kernels.native import NativeKernels
from tests.server.kernels.batches import needs_native

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


Choose = Callable[[torch.Tensor, Draws], tuple[torch.Tensor, torch.Tensor]]


def in_c(logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    return NativeKernels(2).sample(logits, draws)


BOTH = [pytest.param(in_c, marks=needs_native), sample]
RULES = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.2},
    {"top_k": 40},
    {"top_k": 700},
    {"min_p": 0.1},
    {"top_k": 60, "top_p": 0.8},
    {"top_k": 60, "top_p": 0.8, "min_p": 0.2},
]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_noise_is_that_of_the_published_generator(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    """The test vectors of Random123."""

    def wide(low: int, high: int) -> torch.Tensor:
        return torch.tensor([low | high << 32], dtype=torch.uint64).view(torch.int64)

    found = philox(wide(*key), wide(*counter[2:]), torch.tensor([[counter[0]]]), counter[1])
    assert found.tolist() == [list(words)]


def probabilities(row: torch.Tensor, temperature: float, rules: dict[str, float]) -> torch.Tensor:
    """By sorting, in double: the top_k, of these the head that holds top_p, of these what min_p leaves."""
    exact = row.double() / temperature
    order = exact.argsort(descending=True, stable=True)
    weights = torch.softmax(exact, dim=-1)[order]
    weights[int(rules.get("top_k", 0)) or len(row) :] = 0
    before = weights.cumsum(dim=-1) - weights
    weights *= (before <= rules.get("top_p", 1.0) * weights.sum()) & (weights >= rules.get("min_p", 0.0) * weights[0])
    return torch.zeros_like(exact).index_copy(0, order, weights / weights.sum())


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("choose", BOTH)
def test_draws_follow_the_distribution(choose: Choose, rules: dict[str, float]) -> None:
    count, size = 6000, 2500
    row = torch.randn(size, generator=torch.Generator().manual_seed(3)) * 1.5
    row[::7] = -torch.inf
    expected = probabilities(row, 0.8, rules) * count
    counts = torch.zeros(size, dtype=torch.int64)
    for first in range(0, count, 1000):
        seeds = range(first, first + 1000)
        draws = Draws([draw_by(seed, 0.8, **rules) for seed in seeds], [seed % 5 for seed in seeds])  # type: ignore[arg-type]
        ids, _ = choose(row.expand(1000, size).contiguous(), draws)
        counts += torch.bincount(ids, minlength=size)
    assert not counts[expected == 0].any()
    rare = expected < 8  # together they are one of the classes
    observed = torch.cat((counts[~rare], counts[rare].sum()[None])).double()
    classes = torch.cat((expected[~rare], expected[rare].sum()[None]))
    observed, classes = observed[classes > 0], classes[classes > 0]
    # Above this once in 10,000 trials (Wilson and Hilferty), and the seeds never change.
    freedom = len(classes) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert float(((observed - classes) ** 2 / classes).sum()) < limit


@needs_native
@pytest.mark.parametrize("size", [1, 5, 31, 33, 1000, 1024, 1025, 5000, 40_000])
def test_c_draws_the_tokens_of_torch(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    kinds = list(product((0.05, 0.7, 1.0, 30.0), RULES))
    logits = torch.randn(len(kinds), size, generator=generator) * 3
    rows = [draw_by(seed << 40 | 7, temperature, **rules) for seed, (temperature, rules) in enumerate(kinds)]  # type: ignore[arg-type]
    different = 0
    for position in (0, 9, 2**33):
        draws = Draws([*rows[1:], LIKELIEST], [position] * len(rows))
        (ours, finite), (torchs, all_finite) = in_c(logits, draws), sample(logits, draws)
        assert finite.all() and all_finite.all()
        different += int((ours != torchs).sum())
    assert different <= 1  # exponentials are rounded differently


@pytest.mark.parametrize("choose", BOTH)
def test_equal_numbers_count_one_by_one(choose: Choose) -> None:
    """Of equal tokens the first ones are among the top_k, and within top_p."""
    seeds = range(400)

    def found(row: torch.Tensor, **rules: float) -> set[int]:
        draws = Draws([draw_by(seed, 1.0, **rules) for seed in seeds], [0] * len(seeds))  # type: ignore[arg-type]
        return set(choose(row.expand(len(seeds), -1).contiguous(), draws)[0].tolist())

    flat = torch.zeros(3000)
    assert found(flat, top_k=3) == {0, 1, 2}
    assert found(flat, top_p=0.0) == found(flat, top_k=1) == {0}
    assert found(flat, top_p=3.5 / 3000) == {0, 1, 2, 3}
    assert max(found(flat, min_p=1.0)) > 2000
    stairs = torch.full((3000,), -9.0)
    stairs[[5, 2000, 2500]] = torch.tensor([0.0, 1.0, 0.0])
    assert found(stairs, top_k=2) == {5, 2000}
    assert found(stairs, top_k=3) == {5, 2000, 2500}


@pytest.mark.parametrize("choose", BOTH)
@pytest.mark.parametrize("size", [1, 15, 16, 33, 1000, 1100])
def test_the_likeliest_token_and_numbers_that_are_not_finite(choose: Choose, size: int) -> None:
    wide = torch.randn(7, size + 5, generator=torch.Generator().manual_seed(1))
    wide[1, :size] = 0.5  # the first one of many
    wide[2, size - 1], wide[3, 0], wide[4, size // 2] = torch.nan, torch.inf, -torch.inf
    wide[5, :size] = -torch.inf
    wide[:, size:] = 1e9  # beyond the end of the rows
    for draw in (LIKELIEST, draw_by(3, 0.01, top_k=1)):
        for logits in (wide[:, :size], wide[:, :size].contiguous()):
            ids, finite = choose(logits, Draws([draw] * 7, [0] * 7))
            assert finite.tolist() == [True, True, False, False, False, False, True]
            assert ids[[0, 1, 6]].tolist() == logits[[0, 1, 6]].argmax(dim=-1).tolist() and ids[1] == 0
            assert ids[5] == -1
            assert size == 1 or ids[4] != size // 2
    ids, finite = choose(wide[:0, :size], Draws([], []))
    assert len(ids) == len(finite) == 0


@needs_native
def test_a_row_depends_on_nothing_else_in_the_batch() -> None:
    logits = torch.randn(9, 3000, generator=torch.Generator().manual_seed(5))
    rows = [draw_by(seed, 1.0, top_p=0.9) for seed in range(9)]
    together, _ = in_c(logits, Draws(rows, list(range(9))))
    alone = [int(in_c(logits[i : i + 1], Draws([rows[i]], [i]))[0]) for i in range(9)]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", [1, 31, 33, 100, 1024, 1500])
@pytest.mark.parametrize("kernels", [pytest.param("c", marks=needs_native), "torch"])
def test_masks_leave_the_tokens_whose_bits_are_set(kernels: str, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    wide = torch.randn(5, size + 3, generator=generator)
    wide[1, 0], wide[2, size - 1] = torch.nan, torch.inf
    logits, before = wide[:, :size], wide.clone()
    bits = torch.randint(-(2**31), 2**31, (4, -(-size // 32) + 1), generator=generator, dtype=torch.int32).numpy()
    masks = TokenMasks(bits, {0: 3, 1: 0, 2: 2, 4: 3})
    made = NativeKernels(1) if kernels == "c" else TorchKernels(torch.float32, "cpu")
    assert made.mask(logits, masks).tolist() == [True, False, False, True]
    for row in range(5):
        allowed = set(masks.allowed(row, size).tolist()) if row in masks.rows else set(range(size))
        for token in range(size):
            expected = before[row, token] if token in allowed else torch.tensor(-torch.inf)
            assert torch.equal(logits[row, token].isnan(), expected.isnan())
            assert expected.isnan() or logits[row, token] == expected
    assert torch.equal(wide[:, size:], before[:, size:])
