"""A whole server with `--speculation`: the responses of one without it, and what it shows of drafts."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import MODELS
from tests.server.process import ServerProcess, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# The model begins to repeat itself, and the prompt repeats itself from the beginning.
PROMPT = "the heaven and the earth. In the beginning God created the heaven and the earth. In the beginning God"
BODIES = [
    {"model": "chat", "prompt": PROMPT, "max_tokens": 60, "temperature": 0, "logprobs": 2},
    {"model": "chat", "prompt": PROMPT, "max_tokens": 60, "temperature": 0.4, "seed": 7, "n": 3},
    {"model": "chat", "prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stop": ["heaven"]},
    {"model": "chat", "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "frequency_penalty": 0.3},
]


def test_its_responses_are_those_of_a_server_without(server: ServerProcess) -> None:
    flags = ("--served-model-name", "chat", "--model-version", "v1", "--speculation", "ngram")
    with ServerProcess(MODELS / "tiny-v1", *flags) as drafting:
        drafting.wait_ready()
        accepted = rejected = 0
        for body in BODIES:
            plain = post(f"{server.url}/v1/completions", body)[2]
            drafted = post(f"{drafting.url}/v1/completions", body)[2]
            assert [choice["text"] for choice in drafted["choices"]] == [choice["text"] for choice in plain["choices"]]
            details = drafted["usage"].pop("completion_tokens_details")
            assert "completion_tokens_details" not in plain["usage"]
            assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
            accepted += details["accepted_prediction_tokens"]
            rejected += details["rejected_prediction_tokens"]
        counted = drafting.metric("vllm:spec_decode_num_accepted_tokens_total")
        tokens = drafting.metric("vllm:spec_decode_num_draft_tokens_total")
        assert 0 < accepted <= counted <= tokens and drafting.metric("vllm:spec_decode_num_drafts_total") > 0
        # What a stop string cut off was drafted in vain. The engine may draft more until it gets to know of it.
        assert accepted + rejected <= tokens


def test_a_draft_model_changes_no_response() -> None:
    """The model drafts for the better one of the same tokenizer."""
    flags = ("--served-model-name", "chat", "--model-version", "v2")
    drafts = ("--speculation", "draft", "--speculative-draft-model", str(MODELS / "tiny-v1"))
    with (
        ServerProcess(MODELS / "tiny-v2", *flags) as plain,
        ServerProcess(MODELS / "tiny-v2", *flags, *drafts) as drafting,
    ):
        plain.wait_ready()
        drafting.wait_ready()
        for body in BODIES:
            expected = post(f"{plain.url}/v1/completions", body)[2]
            drafted = post(f"{drafting.url}/v1/completions", body)[2]
            assert [one["text"] for one in drafted["choices"]] == [one["text"] for one in expected["choices"]]
            assert "completion_tokens_details" in drafted["usage"]
        assert drafting.metric("vllm:spec_decode_num_draft_tokens_total") > 0


def test_a_draft_model_of_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(MODELS / "tiny-v1", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (name for name, token in vocabulary.items() if token in (500, 501))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    drafts = ("--speculation", "draft", "--speculative-draft-model", str(other))
    with ServerProcess(MODELS / "tiny-v2", *drafts) as server:
        assert server.wait() != 0
    refusal = "--speculative-draft-model: other has another tokenizer than the model: token 500 is"
    assert any(refusal in line["msg"] for line in server.lines), server.lines
