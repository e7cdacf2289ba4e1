"""Every field of OpenAI's API is used or refused by its name: a field that the installed client adds fails here."""

import array
import json
import typing
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import ChatCompletionMessageParam, chat_completion_stream_options_param
from openai.types.chat import completion_create_params as chat

from slipway_process.serving.errors import HttpError
from slipway_server.http.requests.bodies import UNSUPPORTED, WITHOUT_EFFECT, checked_body
from slipway_server.http.requests.schemas import ChatRequest, CompletionRequest, EmbeddingRequest, StreamOptions
from slipway_server.http.responses.embeddings import check_dimensions, embedding_data
from slipway_server.text.answers.selection import AnswerFormats
from tests.server.http.inprocess import InProcess, model_of

TYPES: dict[type[msgspec.Struct], list[Any]] = {
    ChatRequest: [chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming],
    CompletionRequest: [
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ],
    EmbeddingRequest: [embedding_create_params.EmbeddingCreateParams],
}
LEAST: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    CompletionRequest: {"model": "m", "prompt": "x"},
    EmbeddingRequest: {"model": "m", "input": "x"},
}


def names_of(types: list[Any]) -> set[str]:
    return {name for kind in types for base in (kind, *kind.__mro__) for name in getattr(base, "__annotations__", ())}


@pytest.mark.finding(11)
@pytest.mark.parametrize("kind", TYPES)
def test_safety_11_every_field_of_the_installed_client_is_used_or_refused(kind: type[msgspec.Struct]) -> None:
    names = names_of(TYPES[kind])
    assert len(names) >= 5 and names - set(kind.__struct_fields__) <= UNSUPPORTED.keys()


def test_fields_for_who_stores_chats_have_no_effect() -> None:
    body = LEAST[ChatRequest] | {"metadata": {"run": "7"}, "safety_identifier": "ada", "store": False}
    assert body.keys() - LEAST[ChatRequest].keys() == WITHOUT_EFFECT | {"store"}
    before, after = (checked_body(dict(one), ChatRequest).params(5, (), 1) for one in (LEAST[ChatRequest], body))
    assert before == after
    for name, value in (("metadata", {"a": 1}), ("metadata", {"a": "x" * 513}), ("store", True)):
        with pytest.raises(HttpError) as refusal:
            checked_body(LEAST[ChatRequest] | {name: value}, ChatRequest)
        assert refusal.value.param == name


def test_fields_of_other_endpoints_are_refused_too() -> None:
    every = {name for kind in TYPES for name in kind.__struct_fields__}
    for kind, least in LEAST.items():
        for name in (every | UNSUPPORTED.keys()) - set(kind.__struct_fields__):
            checked_body(least | {name: None}, kind)
            for neutral in UNSUPPORTED[name]:
                checked_body(least | {name: neutral}, kind)
            with pytest.raises(HttpError) as refusal:
                checked_body(least | {name: "something"}, kind)
            assert (refusal.value.param, refusal.value.code) == (name, "unsupported_parameter")


def test_every_option_of_streams_and_every_role_is_known() -> None:
    options = chat_completion_stream_options_param.ChatCompletionStreamOptionsParam
    assert names_of([options]) <= set(StreamOptions.__struct_fields__)
    for wrong in ({"include_obfuscation": True}, {"more": 1}):
        with pytest.raises(HttpError) as refusal:
            body = LEAST[ChatRequest] | {"stream": True, "stream_options": wrong}
            checked_body(body, ChatRequest).check()
        assert refusal.value.param == "stream_options"
    kinds = typing.get_args(ChatCompletionMessageParam)
    roles = {role for kind in kinds for role in typing.get_args(typing.get_type_hints(kind)["role"])}
    taken = set()
    for role in (*roles, "wizard", "", "User"):
        try:
            checked_body(LEAST[ChatRequest] | {"messages": [{"role": role, "content": "x"}]}, ChatRequest)
            taken.add(role)
        except HttpError as refusal:
            assert refusal.param == "messages"
    assert taken == roles - {"function"}


@pytest.fixture
async def server() -> AsyncIterator[InProcess]:
    async with InProcess(replace(model_of(), formats=AnswerFormats("hermes"))) as made:
        yield made


async def test_tokens_and_texts_both_ways(server: InProcess) -> None:
    tokenizer = server.service.model.tokenizer
    text = "In the beginning <|im_end|> ü 🚢"
    status, answer = await server.post("/tokenize", {"prompt": text, "return_token_strs": True})
    assert status == 200 and tuple(answer["tokens"]) == tokenizer.encode_now(text)
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 512
    assert answer["token_strs"] == [tokenizer.text_of(token) for token in answer["tokens"]]
    status, back = await server.post("/detokenize", {"model": "chat", "tokens": answer["tokens"]})
    assert (status, back) == (200, {"prompt": text})
    messages = [{"role": "user", "content": "In the beginning"}]
    status, answer = await server.post("/tokenize", {"model": "chat", "messages": messages})
    prompt = "<user>In the beginning<assistant>"
    assert status == 200 and tuple(answer["tokens"]) == tokenizer.encode_now(prompt, special_tokens=False)
    assert answer["token_strs"] is None and not server.engine.requests
    assert (await server.post("/tokenize", {"prompt": ""}))[1]["tokens"] == []
    assert (await server.post("/detokenize", {"tokens": []}))[1] == {"prompt": ""}


@pytest.mark.attack_class(15)
@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user"}]}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "x", "chat_template": "y"}, 400, "chat_template"),
        ("/tokenize", {"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "wizard"}]}, 400, "messages"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "continue_final_message": True},
            400,
            "continue_final_message",
        ),
        ("/tokenize", {"prompt": ["x"]}, 400, "prompt"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/v1/embeddings", {"model": "chat", "input": "x", "dimensions": 0}, 400, "dimensions"),
        ("/v1/embeddings", {"model": "chat", "input": "x", "dimensions": 8}, 400, "dimensions"),
    ],
)
async def test_mistakes_are_named(server: InProcess, path: str, body: Any, status: int, param: str) -> None:
    found, answer = await server.post(path, body)
    assert (found, answer["error"]["param"]) == (status, param)


def test_vectors_are_cut_where_the_model_allows_it() -> None:
    for config in ({}, {"is_matryoshka": False}, {"matryoshka_dimensions": []}):
        with pytest.raises(HttpError) as refusal:
            check_dimensions(2, config)
        assert (refusal.value.param, refusal.value.code) == ("dimensions", "unsupported_parameter")
    with pytest.raises(HttpError, match="one of 2, 4"):
        check_dimensions(3, {"matryoshka_dimensions": [2, 4]})
    check_dimensions(2, {"matryoshka_dimensions": [2, 4]})
    check_dimensions(3, {"is_matryoshka": True})
    check_dimensions(None, {})
    vector = array.array("f", [0.48, 0.64, 0.6])
    (entry,) = embedding_data([vector], 2, "float")
    assert entry["embedding"] == pytest.approx([0.6, 0.8])
    assert embedding_data([vector], None, "float")[0]["embedding"] == vector.tolist()
    assert embedding_data([array.array("f", [0.0, 0.0, 1.0])], 2, "float")[0]["embedding"] == [0.0, 0.0]
    with pytest.raises(HttpError, match="at most 3"):
        embedding_data([vector], 4, "float")


async def test_embeddings_of_fewer_dimensions() -> None:
    async with InProcess(model_of(task="embed", is_matryoshka=True)) as server:
        body = {"model": "chat", "input": ["x", "y"], "dimensions": 2, "user": "u"}
        status, answer = await server.post("/v1/embeddings", body)
        assert status == 200 and [len(item["embedding"]) for item in answer["data"]] == [2, 2]
        assert (await server.post("/v1/embeddings", body | {"dimensions": 5}))[1]["error"]["param"] == "dimensions"


@pytest.mark.parametrize("stream", [False, True])
async def test_cached_tokens_of_a_prompt_are_in_the_usage(server: InProcess, stream: bool) -> None:
    server.engine.cached_tokens = [3, 5, 4, 6]
    body = {"model": "chat", "prompt": ["a b c d e f", "g h i j k l"], "n": 2, "max_tokens": 2}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    status, answer = await server.post("/v1/completions", body)
    assert status == 200
    usage = json.loads(answer.split("data: ")[-2])["usage"] if stream else answer["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3 + 4} and usage["completion_tokens"] == 8
