"""The sampler: distributions, truncation, penalties, and independence of the batch."""

import pytest
import torch

from slipway_server.engine.execution.sampler import Sampler, log_probabilities
from slipway_server.engine.request import Request, SamplingParams, Sequence
from slipway_server.kernels.in_torch import TorchKernels

SAMPLER = Sampler(TorchKernels(torch.float32, "cpu"))

pytestmark = pytest.mark.integration


def sequence(output: tuple[int, ...] = (), prompt: tuple[int, ...] = (1,), **params: object) -> Sequence:
    chosen = SamplingParams(max_tokens=8, **params)  # type: ignore[arg-type]
    return Sequence(Request("r", prompt, chosen), output=list(output))


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[int | None]:
    return [result.token for result in SAMPLER.sample(logits, sequences)]


def draws(logits: torch.Tensor, count: int, **params: object) -> torch.Tensor:
    sequences = [sequence(seed=seed, **params) for seed in range(count)]
    return torch.bincount(torch.tensor(sample(logits.repeat(count, 1), sequences)), minlength=logits.shape[-1])


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])
    counts = draws(logits, 20_000, temperature=0.7)
    expected = torch.softmax(logits / 0.7, dim=-1) * 20_000
    # Chi-square with 4 degrees of freedom: above 23.5 once in 10,000 trials, and the seeds never change.
    assert ((counts - expected) ** 2 / expected).sum() < 23.5


def test_top_k_and_top_p_cut_the_tail() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert (draws(logits, 500, top_k=2) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, 500, top_p=0.65) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, 500, top_p=0.75) > 0).tolist() == [True, True, True, False]
    assert (draws(logits, 500, top_k=3, top_p=0.5) > 0).tolist() == [True, True, False, False]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 50)
    rows = [sequence(seed=i, temperature=0.5 * i, top_k=5 * i, top_p=1 - 0.1 * i, output=(1,) * i) for i in range(6)]
    alone = [sample(logits[i : i + 1].clone(), [rows[i]])[0] for i in range(6)]
    assert sample(logits.clone(), rows) == alone
    assert sample(logits.flip(0).clone(), rows[::-1]) == alone[::-1]


def test_each_position_draws_for_itself() -> None:
    logits = torch.zeros(1, 1000)
    assert len({sample(logits, [sequence(seed=3, output=(0,) * n)])[0] for n in range(20)}) > 15


def test_penalties_count_the_output() -> None:
    logits = torch.tensor([[1.0, 0.9, 0.0]])
    assert sample(logits.clone(), [sequence(temperature=0.0, output=(0,))]) == [0]
    assert sample(logits.clone(), [sequence(temperature=0.0, output=(0,), presence_penalty=0.5)]) == [1]
    assert sample(logits.clone(), [sequence(temperature=0.0, output=(0, 0, 1), frequency_penalty=0.06)]) == [0]
    assert sample(logits.clone(), [sequence(temperature=0.0, output=(0, 0, 0, 1), frequency_penalty=0.06)]) == [1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_rows_are_reported(bad: float) -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    tokens = sample(logits, [sequence(seed=1), sequence(seed=1), sequence(temperature=0.0)])
    assert tokens[1] is None and tokens[0] is not None and tokens[2] == 0


# --- rules beside the usual ones --------------------------------------------------------------------------------------


def first(logits: list[float], output: tuple[int, ...] = (), prompt: tuple[int, ...] = (1,), **params: object) -> int:
    """The likeliest token under some rules."""
    (token,) = sample(torch.tensor([logits]), [sequence(output, prompt, temperature=0.0, **params)])
    assert token is not None
    return token


def test_each_parameter_changes_the_choice() -> None:
    row = [3.0, 2.0, 1.0, 0.0]
    assert first(row) == 0
    assert first(row, logit_bias=((2, 5.0),)) == 2
    assert first(row, logit_bias=((0, -100.0),)) == 1
    assert first(row, allowed_token_ids=(2, 3)) == 2
    assert first(row, min_tokens=2, stop_token_ids=(0,)) == 1
    assert first(row, (5, 5), min_tokens=2, stop_token_ids=(0,)) == 0
    assert first(row, bad_words=((0,),)) == 1
    assert first(row, (9, 7), bad_words=((9, 7, 0),)) == 1
    assert first(row, (7, 9), bad_words=((9, 7, 0),)) == 0
    assert first(row, (9,), bad_words=((8, 9, 0),)) == 0
    # Repetition counts the prompt too, and pushes down what is above zero and what is below.
    assert first(row, prompt=(0,), repetition_penalty=2.0) == 1
    assert first([-1.0, -1.5], prompt=(0,), repetition_penalty=2.0) == 1


def test_min_p_keeps_tokens_near_the_likeliest() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    assert (draws(logits, 500, min_p=0.5) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, 500, min_p=0.2, top_k=3) > 0).tolist() == [True, True, True, False]


def test_truncation_is_the_same_where_only_a_part_of_the_vocabulary_is_sorted() -> None:
    torch.manual_seed(1)
    logits = torch.randn(20_000) * 0.1  # flat: thousands of tokens are candidates
    weights = torch.softmax(logits, dim=-1).sort(descending=True)
    head = set(weights.indices[: int((weights.values.cumsum(0) < 0.5).sum()) + 1].tolist())
    drawn = set(sample(logits.repeat(40, 1), [sequence(seed=i, top_p=0.5) for i in range(40)]))
    assert drawn <= head and len(drawn) > 30


def test_rank_1_is_the_token_that_greedy_sampling_chooses_and_no_other() -> None:
    """A model that computes NaN, or the same logit for each token, has not every token as its first choice."""
    torch.manual_seed(2)
    rows = torch.cat((torch.randint(0, 4, (50, 9)).float(), torch.zeros(1, 9)))
    greedy = sample(rows.clone(), [sequence(temperature=0.0) for _ in rows])
    for token in range(9):
        ranks = [item.rank for item in log_probabilities(rows, [token] * len(rows), 0)]
        assert [rank == 1 for rank in ranks] == [token == chosen for chosen in greedy]
        broken = [item.rank for item in log_probabilities(torch.full((1, 9), torch.nan), [token], 0)]
        assert broken == [10]


def test_logprobs_are_those_of_the_model_before_any_rule() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    biased = sequence(temperature=0.0, logprobs=2, logit_bias=((2, 50.0),))
    (result,) = SAMPLER.sample(logits.clone(), [biased])
    assert result.token == 2 and result.logprobs is not None
    assert result.logprobs.tokens == (2, 0, 1) and result.logprobs.rank == 3
    expected = torch.log_softmax(logits[0], dim=-1)[[2, 0, 1]]
    assert torch.allclose(torch.tensor(result.logprobs.values), expected)
    (silent,) = SAMPLER.sample(logits, [sequence(temperature=0.0)])
    assert silent.logprobs is None
