"""The requests: lengths, words and arrival times, the same on every machine for the same seed (pure)."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import mean

from bench.engine.shapes import QWEN06, Shape

REQUESTS = {1: 4, 8: 16, 32: 32}  # of the closed loop at each concurrency: at 8 in two waves
WORDS = 4000
ONSETS = "b d f g k l m n p r s t v z br dr gr kr pl tr"
# The open loop's lengths are log-normal: a few requests are many times longer than the median. All fit into 1024.
OPEN_PROMPT = (128.0, 0.9, 16, 768)  # median, sigma, least, most
OPEN_OUTPUT = (32.0, 0.8, 4, 192)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text of exactly `tokens` tokens, and how many tokens are wanted for it."""

    text: str
    tokens: int
    output_tokens: int
    at_s: float = 0.0  # when it is sent, in the open loop


@cache
def words() -> tuple[str, ...]:
    """Pronounceable words of two syllables; the tokenizer of the models has a token for each, space included."""
    onsets, vowels = ONSETS.split(), "aeiou"
    syllables = ["".join(pair) for pair in product(onsets, vowels)]
    pairs = ["".join(pair) for pair in product(syllables, syllables)]
    return tuple(random.Random(0).sample(pairs, WORDS))


def closed(requests: int, salt: str, shape: Shape = QWEN06) -> list[Prompt]:
    """The first `requests` of the shape's lengths. Words are drawn for each salt, so that no prefix is shared."""
    lengths = random.Random(0)
    known = words()
    return [
        Prompt(_text(known, length, f"{salt}-{number}"), length, shape.output_tokens)
        for number, length in enumerate(lengths.randint(*shape.prompt_tokens) for _ in range(requests))
    ]


def open_loop(rate_per_s: float, seconds: float, salt: str) -> list[Prompt]:
    """Poisson arrivals within `seconds`, lengths with heavy tails. Times and lengths do not depend on the salt."""
    known = words()
    return [
        Prompt(_text(known, length, f"{salt}-{number}"), length, wanted, at_s)
        for number, (at_s, length, wanted) in enumerate(_arrivals(rate_per_s, seconds))
    ]


def mean_open_lengths() -> tuple[float, float]:
    """Tokens of an average request of the open loop: prompt and answer."""
    sample = list(_arrivals(1.0, 2000.0))
    return mean(length for _, length, _ in sample), mean(wanted for _, _, wanted in sample)


def _arrivals(rate_per_s: float, seconds: float) -> Iterator[tuple[float, int, int]]:
    """When, how long the prompt, how long the answer."""
    draw, at_s = random.Random(1), 0.0
    while (at_s := at_s + draw.expovariate(rate_per_s)) < seconds:
        yield at_s, _log_normal(draw, *OPEN_PROMPT), _log_normal(draw, *OPEN_OUTPUT)


def requests_at(concurrency: int) -> int:
    return REQUESTS.get(concurrency, 2 * concurrency)


def totals(prompts: Sequence[Prompt]) -> tuple[int, int]:
    return sum(prompt.tokens for prompt in prompts), sum(prompt.output_tokens for prompt in prompts)


def _log_normal(draw: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return max(least, min(most, round(draw.lognormvariate(math.log(median), sigma))))


def _text(known: Sequence[str], length: int, seed: str) -> str:
    draw = random.Random(seed)
    return "".join(" " + draw.choice(known) for _ in range(length))
