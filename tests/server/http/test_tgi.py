"""TGI's endpoints at the gateway, through Hugging Face's own client, against the completions of a real server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError
from transformers import AutoTokenizer

from tests.gateway.harness import gateway
from tests.server.process import ServerProcess, post

# A start imports torch and transformers: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROMPT = "In the beginning"
Generate = Callable[..., Any]


@contextlib.asynccontextmanager
async def text_generation(server: ServerProcess, path: str = "/") -> AsyncIterator[Generate]:
    """`text_generation` of a client that has the gateway's address in the place of a model; streams as lists."""
    async with gateway() as door:
        door.route(("r1", 100, [server.url]))
        client = InferenceClient(model=door.url + path, token="none", timeout=60)

        def generate(**parameters: Any) -> Any:
            found = client.text_generation(PROMPT, **parameters)
            return list(found) if parameters.get("stream") else found

        async def in_thread(**parameters: Any) -> Any:
            return await asyncio.to_thread(generate, **parameters)

        yield in_thread


def completed(server: ServerProcess, **fields: Any) -> Any:
    body = {"model": "chat", "prompt": PROMPT, "temperature": 0, "max_tokens": 12} | fields
    return post(server.url + "/v1/completions", body)[2]


@pytest.mark.parametrize("path", ["/", "/models/chat"])
async def test_the_client_gets_the_text_whole_and_in_pieces(server: ServerProcess, path: str) -> None:
    expected = completed(server)["choices"][0]["text"]
    async with text_generation(server, path) as generate:
        assert await generate(max_new_tokens=12) == expected
        pieces = await generate(max_new_tokens=12, stream=True)
        assert "".join(pieces) == expected and len(pieces) == 12
        assert await generate(max_new_tokens=12, return_full_text=True) == PROMPT + expected


async def test_details_are_the_tokens_of_the_model(server: ServerProcess, tiny_v1: Any) -> None:
    choice = completed(server, logprobs=0)["choices"][0]
    tokenizer = AutoTokenizer.from_pretrained(tiny_v1)
    async with text_generation(server) as generate:
        whole = await generate(max_new_tokens=12, details=True, seed=4)
        events = await generate(max_new_tokens=12, details=True, stream=True, seed=4)
    details = whole.details
    assert (details.finish_reason, details.generated_tokens, details.seed, details.prefill) == ("length", 12, 4, [])
    assert [token.logprob for token in details.tokens] == choice["logprobs"]["token_logprobs"]
    assert tokenizer.decode([token.id for token in details.tokens]) == whole.generated_text == choice["text"]
    assert [event.index for event in events] == list(range(1, 13))
    assert [(event.token.id, event.token.logprob) for event in events] == [
        (token.id, token.logprob) for token in details.tokens
    ]
    last = events[-1]
    assert all(event.generated_text is None for event in events[:-1]) and last.generated_text == choice["text"]
    assert (last.details.finish_reason, last.details.generated_tokens) == ("length", 12)
    assert last.details.input_length == len(tokenizer(PROMPT).input_ids)


async def test_a_stop_sequence_is_in_the_text_and_the_reason(server: ServerProcess) -> None:
    text = completed(server)["choices"][0]["text"]
    stop = text[4:9]
    async with text_generation(server) as generate:
        whole = await generate(max_new_tokens=12, details=True, stop=[stop])
        events = await generate(max_new_tokens=12, details=True, stop=[stop], stream=True)
    assert whole.generated_text == text[: text.index(stop) + len(stop)] == events[-1].generated_text
    assert whole.details.finish_reason == events[-1].details.finish_reason == "stop_sequence"
    assert "".join(event.token.text for event in events) == whole.generated_text


async def test_an_end_token_is_special_and_its_reason_is_it(server: ServerProcess) -> None:
    """A regular expression ends the text where the model would go on."""
    grammar = {"type": "regex", "value": "light"}
    async with text_generation(server) as generate:
        whole = await generate(max_new_tokens=40, details=True, grammar=grammar)
        events = await generate(max_new_tokens=40, details=True, grammar=grammar, stream=True)
    assert whole.generated_text == events[-1].generated_text == "light"
    assert whole.details.finish_reason == events[-1].details.finish_reason == "eos_token"
    for tokens in (whole.details.tokens, [event.token for event in events]):
        assert [token.special for token in tokens] == [False] * (len(tokens) - 1) + [True]
        assert "".join(token.text for token in tokens if not token.special) == "light"
    assert len(events) == whole.details.generated_tokens


async def test_a_seed_draws_the_same_text_and_a_schema_shapes_it(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"],
              "additionalProperties": False}  # fmt: skip
    async with text_generation(server) as generate:
        one, two = [await generate(max_new_tokens=12, do_sample=True, seed=2**64 - 5) for _ in range(2)]
        shaped = await generate(max_new_tokens=80, grammar={"type": "json", "value": schema}, temperature=1.0, seed=1)
    assert one == two != completed(server)["choices"][0]["text"]
    assert json.loads(shaped)["days"] in (1, 2)


async def test_the_client_knows_an_error_by_its_type(server: ServerProcess) -> None:
    async with text_generation(server) as generate:
        for parameters, named in (
            ({"watermark": True}, "watermark"),
            ({"best_of": 3}, "best_of"),
            ({"max_new_tokens": 1 << 20}, "max_new_tokens"),
            ({"temperature": 50.0}, "temperature"),
        ):
            with pytest.raises(ValidationError, match=named):
                await generate(**parameters)


def test_completions_have_the_ids_of_their_tokens(client: openai.OpenAI, tiny_v1: Any) -> None:
    """vLLM's field, by which the gateway makes TGI's tokens."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_v1)
    body: dict[str, Any] = {"model": "chat", "prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    body["extra_body"] = {"return_token_ids": True}
    whole = client.completions.create(**body).choices[0]
    ids = (whole.model_extra or {})["token_ids"]
    assert len(ids) == 12 and tokenizer.decode(ids) == whole.text
    chunks = [chunk.choices[0].model_extra or {} for chunk in client.completions.create(**body, stream=True)]
    assert [id for chunk in chunks for id in chunk["token_ids"]] == ids
    without = {"model": "chat", "prompt": PROMPT, "max_tokens": 0, "echo": True, "extra_body": body["extra_body"]}
    nothing = client.completions.create(**without)
    assert (nothing.choices[0].model_extra or {})["token_ids"] == []
    with pytest.raises(openai.BadRequestError, match="return_token_ids"):
        client.completions.create(**body | {"n": 2, "extra_body": {"return_token_ids": True, "use_beam_search": True}})
