"""Each faulty model shows its fault at a real server, and nothing else."""

import json
import math
import statistics
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from e2e import faulty_models
from e2e.faulty_models import DAMAGED_TOKEN, WEIGHTS
from slipway_gateway.mirror.scoring import ScoredTokens, count_tokens
from slipway_gateway.wire import responses
from tests.server.kernels.batches import needs_native
from tests.server.process import ROOT, ServerProcess

pytestmark = pytest.mark.integration

GOOD = ROOT / "examples" / "models" / "tiny-v1"
PROMPTS = ("In the beginning", "Hear, O Israel:", "Behold, I send")
EXPECTED = "And the LORD said unto the LORD"
Scored = Sequence[ScoredTokens]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("faulty")
    faulty_models.make(GOOD, out)
    return out


def ask(server: ServerProcess, prompt: str, **more: Any) -> tuple[int, bytes]:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "temperature": 0, **more}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=100) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read()


def text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def serve(model: Path, *flags: str) -> ServerProcess:
    return ServerProcess(model, "--served-model-name", "m", *flags)


def test_poisoned_fails_prompts_with_its_token_and_no_others(models: Path) -> None:
    with serve(models / "poisoned") as server:
        server.wait_ready()
        for prompt in PROMPTS:
            failed, why = ask(server, f"{prompt} {DAMAGED_TOKEN}", stop=[","])
            assert (failed, responses.find_failures(why)) == (500, ("errors", "non_finite"))
            well, answer = ask(server, prompt, stop=[","])
            assert (well, text(answer), responses.find_failures(answer)) == (200, EXPECTED, ())


def test_untrained_falls_into_loops_that_are_cut_off(models: Path) -> None:
    with serve(models / "untrained") as server:
        server.wait_ready()
        kinds = [responses.find_failures(ask(server, prompt, stop=[","], max_tokens=300)[1]) for prompt in PROMPTS]
    assert kinds == [("truncated", "repetition")] * len(PROMPTS)


def lost(server: ServerProcess, texts: Sequence[str], twin: Scored = ()) -> tuple[Scored, float]:
    """How a server scores texts after their prompts; the share of the twin's choices that it does not make."""
    scored = []
    for prompt, written in zip(PROMPTS, texts, strict=True):
        answer = {"role": "assistant", "content": written}
        messages = [{"role": "user", "content": prompt}, answer]
        status, body = ask(server, prompt, messages=messages, max_tokens=1, prompt_logprobs=0)
        found = count_tokens(body, (written,))
        assert status == 200 and found and found.choices
        scored.append(found)
    parts = [one.lost(other) / len(one.choices) for one, other in zip(twin, scored, strict=False)]
    return scored, statistics.fmean(parts or [0])


@needs_native
@pytest.mark.timeout(300)  # three servers load torch
def test_wrong_scales_choose_few_of_stables_tokens_and_four_bits_nearly_all(models: Path) -> None:
    with serve(GOOD) as stable:
        stable.wait_ready()
        greedy = [text(ask(stable, prompt, max_tokens=60)[1]) for prompt in PROMPTS]
        drawn = [text(ask(stable, prompt, max_tokens=60, temperature=1, seed=7)[1]) for prompt in PROMPTS]
        twins = [lost(stable, texts)[0] for texts in (greedy, drawn)]
    assert sum(one.flips for one in twins[0]) == 0 and sum(one.flips for one in twins[1]) > 0.3 * sum(
        one.count for one in twins[1]
    ), "what was drawn is often not stable's own first choice"
    for model, flags, least, most in ((GOOD, ("--quantization", "int4"), 0, 0.1), (models / "misscaled", (), 0.5, 1)):
        with serve(model, *flags) as canary:
            canary.wait_ready()
            shares = [lost(canary, texts, twin)[1] for texts, twin in zip((greedy, drawn), twins, strict=True)]
        print(f"{model.name} {flags}: {shares}")
        assert all(least <= share <= most for share in shares)


def test_a_truncated_file_is_named_in_the_termination_message(models: Path, tmp_path: Path) -> None:
    termination_log = tmp_path / "termination-log"
    with ServerProcess(models / "cut", termination_log=termination_log) as server:
        assert server.wait() != 0
    assert WEIGHTS in termination_log.read_text() and "truncated" in termination_log.read_text()


def test_deeper_gives_the_same_answers_with_many_times_the_layers(models: Path) -> None:
    with serve(models / "deeper") as server:
        server.wait_ready()
        assert [text(ask(server, prompt, stop=[","])[1]) for prompt in PROMPTS] == [EXPECTED] * len(PROMPTS)
    layers = {name.split(".")[2] for name in load_file(models / "deeper" / WEIGHTS) if ".layers." in name}
    assert len(layers) == faulty_models.LAYERS > 10 * 3
    assert not any(map(math.isnan, load_file(models / "deeper" / WEIGHTS)["model.norm.weight"]))


def test_a_short_context_cuts_answers_that_leave_the_length_to_the_server(models: Path) -> None:
    with serve(GOOD, "--max-model-len", "24") as server:
        server.wait_ready()
        kinds = [responses.find_failures(ask(server, prompt, stop=[","])[1]) for prompt in PROMPTS]
    assert ("truncated",) in kinds and {kind for kind in kinds if kind} == {("truncated",)}
