"""int4 and int8 at load: what they cost, how it is measured, and a bound beyond which the server does not start."""

import math
import re
import urllib.request
from dataclasses import replace

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.build import checked_accuracy
from slipway_server.engine.messages import Start
from slipway_server.language import ACCURACY_TEXT
from slipway_server.models.accuracy import Accuracy, Inaccurate, Scores, compare
from slipway_server.models.decoder import Decoder
from slipway_server.models.devices import LoadError
from slipway_server.models.generator import load_generator, measure_accuracy
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS
from tests.server.kernels.batches import needs_native
from tests.server.process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NAME = "tiny-v2"
TOKENS = Tokenizer(MODELS / NAME).encode_now(ACCURACY_TEXT.read_text())
# By tests/server/engine/test_quantization.py, int8 costs ≤ 1 %; rounding to 16 steps costs these models some percent.
BOUNDS = {"none": (1.01, 0.97), "int8": (1.01, 0.95), "int4": (1.15, 0.75)}


def decoder_of(quantization: str, name: str = NAME) -> Decoder:
    torch.set_num_threads(1)
    folder = MODELS / name
    config = checkpoint.read_config(folder)
    decoder: Decoder = load_generator(
        folder, config, dtype="bfloat16", quantization=quantization, device="cpu", context_tokens=512, threads=2
    )
    decoder.kernels.reserve(16)
    return decoder


def accuracy(quantization: str, name: str = NAME) -> Accuracy:
    folder = MODELS / name
    config = checkpoint.read_config(folder)
    return measure_accuracy(decoder_of(quantization, name), folder, config, 512, 2, tuple(TOKENS))


def test_the_measure_is_that_of_its_definition() -> None:
    ours = Scores(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([1, 2, 3]))
    plain = Scores(torch.tensor([-1.0, -1.0, -2.5]), torch.tensor([1, 0, 3]))
    found = compare(ours, plain)
    assert found.perplexity == pytest.approx(math.exp(2)) and found.plain_perplexity == pytest.approx(math.exp(1.5))
    assert found.top1_agreement == pytest.approx(2 / 3) and found.ratio == pytest.approx(math.exp(0.5))
    found.check(1.65)
    with pytest.raises(Inaccurate, match=r"a ratio of 1\.6487.*66\.7% of 3: the bound is 1\.6"):
        found.check(1.6)
    with pytest.raises(Inaccurate):
        replace(found, perplexity=math.nan).check(1000.0)


@needs_native
@pytest.mark.parametrize("name", ["tiny-v1", "tiny-v2"])
@pytest.mark.parametrize("quantization", BOUNDS)
def test_what_rounding_costs(quantization: str, name: str) -> None:
    found = accuracy(quantization, name)
    print(f"{name} {quantization}: {found}")
    ratio, agreement = BOUNDS[quantization]
    assert 200 < found.tokens < 384 and found.plain_perplexity < 2048
    assert found.ratio < ratio and found.top1_agreement > agreement
    if quantization == "none":  # two ways to the same numbers
        assert found.ratio == pytest.approx(1.0, abs=0.01)


def start(**more: object) -> Start:
    given: dict[str, object] = {
        "model": str(MODELS / NAME), "task": "generate", "dtype": "auto", "quantization": "int4", "device": "cpu",
        "context_tokens": 512, "slots": 2, "step_tokens": 64, "step_s": 0.1, "kv_tokens": 1024,
        "max_perplexity_ratio": 1.5, "accuracy_tokens": tuple(TOKENS),
    }  # fmt: skip
    return Start(**(given | more))  # type: ignore[arg-type]


@needs_native
def test_an_engine_reports_it_and_refuses_beyond_the_bound() -> None:
    decoder = decoder_of("int4")
    found = checked_accuracy(decoder, start(), 2, 512)
    assert found and found.quantization == "int4"
    assert 0.9 < found.perplexity_ratio < 1.15 and found.top1_agreement > 0.75
    with pytest.raises(LoadError, match=r"--quantization int4 costs too much: .*the bound is 0\.5 .--max-perplexity"):
        checked_accuracy(decoder, start(max_perplexity_ratio=0.5), 2, 512)
    assert checked_accuracy(decoder, start(max_perplexity_ratio=0.0), 2, 512) is None
    assert checked_accuracy(decoder, start(quantization="none"), 2, 512) is None


@needs_native
def test_a_tokenizer_of_another_model_ends_the_load_with_one_sentence() -> None:
    decoder = decoder_of("int4")
    strangers = tuple(decoder.vocab_size + token for token in TOKENS)
    with pytest.raises(LoadError, match=r"its tokenizer and its weights do not fit: of [0-9]+ tokens"):
        checked_accuracy(decoder, start(accuracy_tokens=strangers), 2, 512)


@needs_native
def test_a_server_exports_it() -> None:
    flags = ("--quantization", "int4", "--max-kv-tokens", "1024", "--max-model-len", "512")
    with ServerProcess(MODELS / NAME, *flags) as server:
        server.wait_ready()
        with urllib.request.urlopen(server.url + "/metrics") as answer:
            text = answer.read().decode()
    found = re.search(r'slipway_server_rounding_perplexity_ratio\{quantization="int4"\} (\S+)', text)
    assert found and 0.9 < float(found[1]) < 1.15, text
    assert 'slipway_server_rounding_top1_agreement{quantization="int4"}' in text
