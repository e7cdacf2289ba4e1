"""What fewer bits cost: perplexity on a real text against float32's, by the engine's own log probabilities."""

import math
from functools import cache

import pytest
import torch

from slipway_server.engine.engine import Engine
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.runner import DecoderRunner
from slipway_server.engine.scheduler import Limits, Scheduler
from slipway_server.kernels import native
from slipway_server.models import checkpoint
from slipway_server.models.generator import load_generator
from slipway_server.text.tokenizer import Tokenizer

from ..conftest import MODELS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# Genesis 1:1-13 in the King James translation of 1611.
TEXT = """\
In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness
was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let
there be light: and there was light. And God saw the light, that it was good: and God divided the light from
the darkness. And God called the light Day, and the darkness he called Night. And the evening and the morning
were the first day. And God said, Let there be a firmament in the midst of the waters, and let it divide the
waters from the waters. And God made the firmament, and divided the waters which were under the firmament from
the waters which were above the firmament: and it was so. And God called the firmament Heaven. And the evening
and the morning were the second day. And God said, Let the waters under the heaven be gathered together unto
one place, and let the dry land appear: and it was so. And God called the dry land Earth; and the gathering
together of the waters called he Seas: and God saw that it was good. And God said, Let the earth bring forth
grass, the herb yielding seed, and the fruit tree yielding fruit after his kind, whose seed is in itself, upon
the earth: and it was so. And the earth brought forth grass, and herb yielding seed after his kind, and the
tree yielding fruit, whose seed was in itself, after his kind: and God saw that it was good. And the evening
and the morning were the third day.
"""
BOUNDS = {"bfloat16": 1.005, "int8": 1.01}  # times float32's perplexity


@cache
def perplexity(name: str, dtype: str, quantization: str, step_tokens: int = 64) -> float:
    torch.set_num_threads(1)
    folder = MODELS / name
    config = checkpoint.read_config(folder)
    decoder = load_generator(
        folder, config, dtype=dtype, quantization=quantization, device="cpu", context_tokens=512, threads=2
    )
    runner = DecoderRunner(decoder, slots=2, context_tokens=512, blocks=32)
    engine = Engine(Scheduler(Limits(2, step_tokens, 1024)), runner)
    prompt = Tokenizer(folder).encode_now(" ".join(TEXT.split()))
    engine.submit(Request("r", prompt, SamplingParams(1, temperature=0.0, prompt_logprobs=0)))
    told = []
    while engine.scheduler.busy:
        told += [item for event in engine.step().events for item in event.prompt_logprobs]
    assert tuple(item.tokens[0] for item in told) == prompt[1:]
    return math.exp(-sum(item.values[0] for item in told) / len(told))


def test_prompt_log_probabilities_are_those_of_the_text_in_any_parts() -> None:
    whole = perplexity("tiny-v2", "float32", "none", 512)
    assert perplexity("tiny-v2", "float32", "none", 37) == pytest.approx(whole, rel=1e-4)
    # The better model is better, and both know more than nothing: 2048 tokens to choose from.
    assert whole < perplexity("tiny-v1", "float32", "none") < 200


@pytest.mark.parametrize("name", ["tiny-v1", "tiny-v2"])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_fewer_bits_cost_little(name: str, quantization: str) -> None:
    try:
        native.library(2)
    except native.Unavailable as reason:
        pytest.skip(f"NOT RUN, the C kernels: {reason}")
    exact = perplexity(name, "float32", "none")
    ours = perplexity(name, "bfloat16", quantization)
    kind = "int8" if quantization == "int8" else "bfloat16"
    print(f"{name} {kind}: perplexity {ours:.3f}, float32 {exact:.3f}, ratio {ours / exact:.4f}")
    assert ours / exact < BOUNDS[kind]
