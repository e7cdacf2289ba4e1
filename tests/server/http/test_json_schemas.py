"""JSON Schema's vocabulary: what demands nothing is accepted, what is kept is kept, the rest is refused by its name."""

import json
from typing import Any

import pytest

from slipway_process.model_folder import checkpoint
from slipway_server.engine.grammars.compiler import GrammarError, compile_grammar, load_tokenizer
from slipway_server.http.requests.json_schemas import FORMATS, demanded
from slipway_server.http.requests.structured import of_schema
from slipway_server.http.requests.tools import FunctionDefinition, ToolDefinition, ToolUse, plan_answers
from slipway_server.text.answers.selection import AnswerFormats
from tests.conftest import MODELS

TOKENIZER = load_tokenizer(
    MODELS / "tiny-v1" / "tokenizer.json", 2048, checkpoint.read(MODELS / "tiny-v1").stop_token_ids
)
OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
ARRAY = {"type": "array", "items": {"type": "integer"}}

WITHOUT_A_RULE = (
    *("password", "path", "binary", "byte", "url", "uri-reference", "regex", "json-string", "int32", "double"),
    *("iri", "iri-reference", "idn-email", "idn-hostname", "json-pointer", "relative-json-pointer", "uri-template"),
    *("color", "file-path", "directory-path", "time-delta", "base64url", "unknown", "my own word"),
)
NEUTRAL: list[dict[str, Any]] = [
    *({name: "text"} for name in ("$comment", "title", "description", "$anchor", "$dynamicAnchor")),
    *(
        {name: "text"}
        for name in ("contentEncoding", "contentMediaType", "markdownDescription", "x-order", "errorMessage")
    ),
    *({name: True} for name in ("deprecated", "readOnly", "writeOnly", "nullable")),
    *({name: [{"a": 1}]} for name in ("examples", "enumNames")),
    *({name: None} for name in ("title", "description", "default", "example")),
    {"$schema": "https://json-schema.org/draft/2020-12/schema"},
    {"$id": "https://example.com/schema"},
    {"default": {"format": "password", "uniqueItems": True}},
    {"uniqueItems": False},
    {"minContains": 2},
    {"maxContains": 2},
    {"unevaluatedProperties": True},
    {"unevaluatedItems": {}},
    {"propertyNames": {}},
    {"dependentRequired": {}},
    {"dependentSchemas": {}},
    {"dependencies": {}},
    {"not": False},
    {"if": {"required": ["a"]}},
    {"then": {"required": ["b"]}},
    {"else": False},
    {"$recursiveAnchor": False},
    {"discriminator": {"propertyName": "a"}},
    {"xml": {}},
    {"externalDocs": {"url": "https://example.com"}},
    {"contentSchema": {"format": "password"}},
    {"$defs": {"unused": {"type": "string", "format": "password"}}},
]
RULES: list[dict[str, Any]] = [
    {"uniqueItems": True},
    {"contains": {"type": "integer"}},
    {"contains": {"type": "integer"}, "minContains": 2},
    {"propertyNames": {"pattern": "^a"}},
    {"not": {"required": ["a"]}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"required": ["b"]}}},
    {"dependencies": {"a": ["b"]}},
    {"unevaluatedProperties": False},
    {"unevaluatedItems": False},
    {"uniqueItems": 0},
]


def compiled(schema: Any) -> None:
    compile_grammar(TOKENIZER, "json_schema", of_schema(schema, "response_format").text)


def called(schema: dict[str, Any]) -> None:
    """As the parameters of a tool that an answer must call."""
    tool = ToolDefinition(type="function", function=FunctionDefinition(name="f", parameters=schema))
    grammar = plan_answers(ToolUse([tool], "required"), AnswerFormats("hermes"), None).grammar
    assert grammar
    compile_grammar(TOKENIZER, grammar.kind, grammar.text)


@pytest.mark.parametrize("word", WITHOUT_A_RULE)
def test_a_format_without_a_rule_is_an_annotation(word: str) -> None:
    """reports.md, 11: pydantic's SecretStr and Path were refused."""
    for schema in ({"type": "string", "format": word}, {"format": word}):
        compiled({"type": "object", "properties": {"a": schema}, "required": ["a"]})
        called({"type": "object", "properties": {"a": {"anyOf": [schema, {"type": "null"}]}}})


@pytest.mark.parametrize("word", sorted(FORMATS))
def test_a_format_with_a_rule_is_kept(word: str) -> None:
    schema = {"type": "string", "format": word}
    assert demanded(schema) == schema
    compiled(schema)


@pytest.mark.parametrize("more", NEUTRAL, ids=[f"{at} {next(iter(more))}" for at, more in enumerate(NEUTRAL)])
def test_what_demands_nothing_is_accepted_everywhere(more: dict[str, Any]) -> None:
    inner = {"type": "object", "properties": {"b": {"type": "array", "items": ARRAY | more}}}
    for schema in (
        OBJECT | more,
        ARRAY | more,
        {"anyOf": [OBJECT | more, ARRAY]},
        {"$ref": "#/$defs/c", "$defs": {"c": inner}},
    ):
        compiled(schema)
    called(OBJECT | more)


@pytest.mark.parametrize("more", RULES, ids=[f"{at} {next(iter(more))}" for at, more in enumerate(RULES)])
def test_a_rule_that_is_not_kept_is_refused_by_its_name(more: dict[str, Any]) -> None:
    for schema in ({"type": "object"} | more, {"type": "array", "items": ARRAY | more}):
        with pytest.raises(GrammarError, match=rf"keywords? .*{next(iter(more))}"):
            compiled(schema)


def test_names_and_data_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"format": {"type": "string"}, "uniqueItems": {"const": {"format": "password"}}, "then": True},
        "required": ["format"],
        "enum": [{"format": "a", "if": 1}],
        "patternProperties": {"^not$": {"type": "string", "format": "password"}},
    }
    expected = json.loads(json.dumps(schema))
    del expected["patternProperties"]["^not$"]["format"]
    assert demanded(schema) == expected and demanded(True) is True
