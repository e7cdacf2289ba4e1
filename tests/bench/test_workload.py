"""The workload is the same everywhere, and each of its words is one token of the models' tokenizer."""

import json
import random
import statistics
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from bench.engine.models import tokenizer_json
from bench.engine.shapes import QWEN06, TINY, VISIBLE_FROM, ceiling_tokens_per_s, decode_roofline_tokens_per_s
from bench.engine.workload import closed, mean_open_lengths, open_loop, totals, words


def test_same_salt_gives_the_same_prompts_and_another_one_other_words_of_the_same_lengths() -> None:
    first, again, other = closed(32, "1-32"), closed(32, "1-32"), closed(32, "2-32")
    assert first == again
    assert [prompt.tokens for prompt in first] == [prompt.tokens for prompt in other]
    assert not {prompt.text[:40] for prompt in first} & {prompt.text[:40] for prompt in other}


def test_fixed_lengths_are_those_of_all_results() -> None:
    assert totals(closed(32, "x")) == (9714, 2048)


def test_smaller_loads_are_the_beginning_of_larger_ones() -> None:
    assert [prompt.tokens for prompt in closed(4, "a")] == [prompt.tokens for prompt in closed(32, "b")][:4]


def test_arrivals_are_a_poisson_process_of_the_rate_with_heavy_tails() -> None:
    prompts = open_loop(2.0, 1000.0, "x")
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(prompts)]
    assert prompts == open_loop(2.0, 1000.0, "x")
    assert statistics.mean(gaps) == pytest.approx(0.5, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.5, rel=0.1)  # as their mean: exponential
    lengths = sorted(prompt.tokens for prompt in prompts)
    assert lengths[-1] > 5 * statistics.median(lengths)
    assert all(prompt.tokens + prompt.output_tokens <= 1024 for prompt in prompts)
    assert mean_open_lengths() == mean_open_lengths()


def test_each_word_is_one_token_and_every_id_that_is_sampled_shows_text() -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(TINY.vocabulary)))
    assert tokenizer.get_vocab_size() == TINY.vocabulary
    for prompt in closed(3, "tokens"):
        assert len(tokenizer.encode(prompt.text).ids) == prompt.tokens
    sampled = random.Random(0).sample(range(VISIBLE_FROM, TINY.vocabulary), 500)
    assert all(tokenizer.decode([token]).strip().isascii() and tokenizer.decode([token]).strip() for token in sampled)


def test_words_are_many_and_different() -> None:
    assert len(words()) == len(set(words())) == 4000


def test_ceilings_of_the_shape_are_those_of_the_arithmetic() -> None:
    assert QWEN06.layer_parameters == 440_401_920
    assert QWEN06.parameters == pytest.approx(596e6, rel=0.001)
    assert QWEN06.kv_bytes_per_token == 114_688
    # 11,730 tokens through the layers and 2,048 through the head: 10.97 TFLOP, 27.6 s at 397 GFLOP/s.
    assert ceiling_tokens_per_s(QWEN06, 397.0, 9714, 2048, 32) == pytest.approx(74.1, abs=0.2)
    assert decode_roofline_tokens_per_s(QWEN06, 27.0, 2) == pytest.approx(22.7, abs=0.1)
