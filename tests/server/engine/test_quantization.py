"""What fewer bits cost: perplexity on a real text against float32's, by the engine's own log probabilities."""

import math
from functools import cache
from pathlib import Path

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.models.devices import LoadError
from slipway_server.models.generator import load_generator
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS
from tests.server.kernels.batches import why_not_native

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
TOKENS = Tokenizer(MODELS / "tiny-v1").encode_now(" ".join(TEXT.split()))
KV_BOUND = 1.002  # times that of the same weights with keys and values as they were computed


@cache
def perplexity(name: str, dtype: str, quantization: str, step_tokens: int = 64, kv_cache_dtype: str = "auto") -> float:
    torch.set_num_threads(1)
    folder = MODELS / name
    config = checkpoint.read_config(folder)
    decoder = load_generator(
        folder,
        config,
        dtype=dtype,
        quantization=quantization,
        device="cpu",
        context_tokens=512,
        threads=2,
        kv_cache_dtype=kv_cache_dtype,
    )
    runner = DecoderRunner(decoder, slots=2, context_tokens=512, blocks=32)
    engine = EngineCore(Scheduler(SchedulerConfig(2, step_tokens, 1024), hash_key=bytes(32)), runner)
    prompt = Tokenizer(folder).encode_now(" ".join(TEXT.split()))
    engine.submit(Request("r", prompt, SamplingParams(1, temperature=0.0, prompt_logprobs=0)))
    logprobs = []
    while engine.scheduler.busy:
        logprobs += [item for event in engine.step().events for item in event.prompt_logprobs]
    assert tuple(item.tokens[0] for item in logprobs) == prompt[1:]
    return math.exp(-sum(item.values[0] for item in logprobs) / len(logprobs))


def test_prompt_log_probabilities_do_not_depend_on_chunks() -> None:
    whole = perplexity("tiny-v2", "float32", "none", 512)
    assert perplexity("tiny-v2", "float32", "none", 37) == pytest.approx(whole, rel=1e-4)
    # The better model is better, and both know more than nothing: 2048 tokens to choose from.
    assert whole < perplexity("tiny-v1", "float32", "none") < 200


def needs_native() -> None:
    if reason := why_not_native():
        pytest.skip(reason)


@pytest.mark.parametrize("name", ["tiny-v1", "tiny-v2"])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_fewer_bits_cost_little(name: str, quantization: str) -> None:
    needs_native()
    exact = perplexity(name, "float32", "none")
    ours = perplexity(name, "bfloat16", quantization)
    kind = "int8" if quantization == "int8" else "bfloat16"
    print(f"{name} {kind}: perplexity {ours:.3f}, float32 {exact:.3f}, ratio {ours / exact:.4f}")
    assert ours / exact < BOUNDS[kind]


@pytest.mark.parametrize("name", ["tiny-v1", "tiny-v2"])
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")],
    ids=["float32", "bfloat16", "int8"],
)
def test_keys_and_values_in_int8_cost_little(name: str, dtype: str, quantization: str) -> None:
    """All but the first 32 tokens are computed with keys and values of the cache; the same in chunks of any size."""
    if dtype == "bfloat16":
        needs_native()
    as_computed = perplexity(name, dtype, quantization)
    ours = perplexity(name, dtype, quantization, kv_cache_dtype="int8")
    print(f"{name} {dtype} {quantization}: perplexity {ours:.4f}, {as_computed:.4f} before, {ours / as_computed:.5f}")
    assert ours != as_computed, "it was read from int8 at all"
    assert ours / as_computed < KV_BOUND
    assert perplexity(name, dtype, quantization, 37, "int8") == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_keys_and_values_are_found_again_and_computed_again_alike(dtype: str) -> None:
    """Known beginnings, starting over and resuming change no token: what one leaves in the cache is its own alone."""
    if dtype == "bfloat16":
        needs_native()
    prompts = [TOKENS[:length] for length in (70, 64, 40, 70, 90, 33)]

    def run(limits: SchedulerConfig, resumed: tuple[tuple[int, ...], ...] = ()) -> tuple[EngineCore, list[list[int]]]:
        torch.set_num_threads(1)
        config = checkpoint.read_config(MODELS / "tiny-v1")
        decoder = load_generator(
            MODELS / "tiny-v1",
            config,
            dtype=dtype,
            quantization="none",
            device="cpu",
            context_tokens=512,
            threads=2,
            kv_cache_dtype="int8",
        )
        runner = DecoderRunner(decoder, slots=limits.slots, context_tokens=512, blocks=limits.kv_tokens // 32)
        engine = EngineCore(Scheduler(limits, hash_key=bytes(32)), runner)
        tokens = [list(known) for known in resumed] or [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            params = SamplingParams(40, temperature=0.0)
            engine.submit(Request(str(index), prompt, params, resumed=tuple(tokens[index])))
        while engine.scheduler.busy:
            for event in engine.step().events:
                tokens[int(event.id)] += [] if event.token is None else [event.token]
        return engine, tokens

    _, alone = run(SchedulerConfig(1, 512, 4096, prefix_cache=False))
    crowded, together = run(SchedulerConfig(4, 48, 288))
    assert together == alone and crowded.scheduler.preemptions > 0 and crowded.scheduler.prefix_hits > 0
    assert run(SchedulerConfig(4, 48, 4096), tuple(tuple(tokens[:17]) for tokens in alone))[1] == alone


def test_an_int8_kv_cache_is_refused_where_it_is_not_supported(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    with pytest.raises(LoadError, match="--kv-cache-dtype int8 is for the built-in families only"):
        load_generator(
            tmp_path,
            config,
            dtype="auto",
            quantization="none",
            device="cpu",
            context_tokens=64,
            threads=1,
            kv_cache_dtype="int8",
        )
