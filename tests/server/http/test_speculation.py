"""A whole server with `--speculation ngram`: the responses of one without it, and what it shows of drafts."""

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
