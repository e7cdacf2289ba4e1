"""Each faulty model shows its fault at a real server, and nothing else."""

import json
import math
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from e2e import faulty_models
from e2e.faulty_models import DAMAGED_TOKEN, WEIGHTS
from slipway_gateway.wire import responses
from tests.server.process import ROOT, ServerProcess

pytestmark = pytest.mark.integration

GOOD = ROOT / "examples" / "models" / "tiny-v1"
PROMPTS = ("In the beginning", "Hear, O Israel:", "Behold, I send")
EXPECTED = "And the LORD said unto the LORD"


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
