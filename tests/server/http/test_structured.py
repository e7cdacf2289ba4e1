"""What an answer must be: every way to write it, its limits, and its refusals by the name of the field."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_process.serving.bodies import decoded
from slipway_process.serving.errors import HttpError
from slipway_server.engine.request import Grammar
from slipway_server.http.requests.bodies import checked_body
from slipway_server.http.requests.schemas import ChatRequest, CompletionRequest
from slipway_server.http.requests.structured import MAX_DEPTH, MAX_GRAMMAR_BYTES, WHITE_SPACE
from tests.server.http.inprocess import InProcess, model_of

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}


@pytest.fixture
async def server() -> AsyncIterator[InProcess]:
    async with InProcess(model_of()) as made:
        yield made


def grammar_of(**more: Any) -> Grammar | None:
    body = checked_body(decoded(json.dumps(CHAT | more).encode()), ChatRequest)
    body.check()
    return body.grammar


def json_grammar(schema: Any, param: str, white_space: dict[str, Any] | None = None) -> Grammar:
    guidance = white_space or {"whitespace_pattern": WHITE_SPACE}
    text = json.dumps(schema | {"x-guidance": guidance}, separators=(",", ":"))
    return Grammar("json_schema", text, param)


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | more}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, json_grammar({"type": "object"}, "response_format")),
        ({"response_format": json_schema(SCHEMA, strict=True)}, json_grammar(SCHEMA, "response_format")),
        ({"response_format": json_schema(True)}, Grammar("json_schema", "true", "response_format")),
        # A client's options of llguidance would weaken the schema.
        (
            {"response_format": json_schema(SCHEMA | {"x-guidance": {"lenient": True}})},
            json_grammar(SCHEMA, "response_format"),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, json_grammar(SCHEMA, "structured_outputs")),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, json_grammar(SCHEMA, "structured_outputs")),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            json_grammar({"type": "object"}, "structured_outputs", {"whitespace_flexible": False}),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[ ]?"}},
            json_grammar(SCHEMA, "structured_outputs", {"whitespace_pattern": "[ ]?"}),
        ),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+", "structured_outputs")),
        ({"structured_outputs": {"choice": ["a", "ü"]}}, Grammar("choice", '["a","ü"]', "structured_outputs")),
        ({"structured_outputs": {"grammar": "start: x"}}, Grammar("grammar", "start: x", "structured_outputs")),
        ({"guided_json": SCHEMA}, json_grammar(SCHEMA, "guided_json")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+", "guided_regex")),
        ({"guided_choice": ["a"]}, Grammar("choice", '["a"]', "guided_choice")),
        ({"guided_grammar": "start: x"}, Grammar("grammar", "start: x", "guided_grammar")),
    ],
)
def test_every_way_to_write_it(given: dict[str, Any], expected: Grammar | None) -> None:
    assert grammar_of(**given) == expected


DEEP: Any = {}
for _ in range(MAX_DEPTH):
    DEEP = {"items": DEEP}


@pytest.mark.attack_class(17)
@pytest.mark.parametrize(
    ("given", "param", "word"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format", "exactly"),
        ({"response_format": {"type": "text", "json_schema": {"name": "x"}}}, "response_format", "exactly"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "Invalid"),
        ({"response_format": json_schema(SCHEMA, other=1)}, "response_format", "unknown"),
        ({"response_format": json_schema(5)}, "response_format", "Expected"),
        ({"response_format": json_schema(DEEP)}, "response_format", "levels deep"),
        ({"response_format": json_schema({"enum": ["x" * MAX_GRAMMAR_BYTES]})}, "response_format", "bytes"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs", "White space"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "unknown"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "length"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "no JSON schema"),
        ({"structured_outputs": {"json": "5"}}, "structured_outputs", "no JSON schema"),
        ({"guided_choice": ["x" * 5000]}, "guided_choice", "length"),
        ({"guided_choice": ["x"] * 1025}, "guided_choice", "length"),
        ({"guided_choice": ["x" * 4000] * 1000}, "guided_choice", "bytes"),
        ({"guided_regex": "é" * MAX_GRAMMAR_BYTES}, "guided_regex", "bytes"),
        ({"guided_regex": ""}, "guided_regex", "length"),
        ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern", "guided_json"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "together"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "guided_regex"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", "not supported"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(given: dict[str, Any], param: str, word: str) -> None:
    with pytest.raises(HttpError) as refusal:
        grammar_of(**given)
    assert refusal.value.status == 400 and refusal.value.param == param and word in str(refusal.value)


def test_completions_have_the_same_fields() -> None:
    body = checked_body(decoded(b'{"model": "m", "prompt": "x", "guided_regex": "a"}'), CompletionRequest)
    assert body.params(5, (), 1).grammar == Grammar("regex", "a", "guided_regex")


async def test_the_grammar_reaches_the_engine(server: InProcess) -> None:
    status, _ = await server.post("/v1/chat/completions", CHAT | {"guided_choice": ["a"], "max_tokens": 2})
    assert status == 200
    (request,) = server.engine.requests
    assert request.sampling and request.sampling.grammar == Grammar("choice", '["a"]', "guided_choice")
