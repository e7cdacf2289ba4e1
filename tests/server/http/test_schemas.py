"""Every field of a request has a type, a range and a length; what is outside is refused by its name."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from slipway_predict.http import json_body
from slipway_predict.http.texts.bodies import RerankRequest
from slipway_process.serving.bodies import decoded
from slipway_process.serving.errors import HttpError
from slipway_server.engine.messages import Commands, encode
from slipway_server.engine.request import Request
from slipway_server.http.openapi import REQUESTS, document
from slipway_server.http.requests.bodies import UNSUPPORTED, checked_body, prompts_of
from slipway_server.http.requests.schemas import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    FullSampling,
    GenerateRequest,
)
from slipway_server.sampling import INT64

pytestmark = pytest.mark.attack_class(15, 18)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}
GENERATE = {"model": "m", "prompt": "x"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def parse(body: bytes, kind: type[msgspec.Struct]) -> Any:
    return checked_body(decoded(body), kind)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


HUGE = 10**25
DEEP: Any = {}
for _ in range(64):
    DEEP = {"items": DEEP}

OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("temperature", 2.1),
    ("temperature", -1e-9),
    ("temperature", HUGE),
    ("temperature", True),
    ("temperature", "0.5"),
    ("top_p", 0),
    ("top_p", 1.0001),
    ("top_k", HUGE),
    ("top_k", -2),
    ("top_k", 2**31),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("frequency_penalty", 2.5),
    ("presence_penalty", -2.5),
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", 11),
    ("min_tokens", -1),
    ("min_tokens", HUGE),
    ("max_tokens", HUGE),
    ("max_tokens", -1),
    ("n", 0),
    ("n", 65),
    ("n", HUGE),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("priority", 1001),
    ("priority", -1001),
    ("priority", HUGE),
    ("timeout", 0),
    ("timeout", 1e300),
    ("prompt_logprobs", 21),
    ("length_penalty", 11),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"-5": 1}),
    ("logit_bias", {"5" * 5000: 1}),
    ("logit_bias", {"²": 1}),
    ("logit_bias", {str(token): 1 for token in range(1025)}),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", [2**31]),
    ("allowed_token_ids", [True]),
    ("stop_token_ids", [HUGE]),
    ("stop_token_ids", list(range(257))),
    ("stop", ""),
    ("stop", [""]),
    ("stop", "x" * 1025),
    ("stop", ["x"] * 17),
    ("stop", [5]),
    ("bad_words", ["x" * 257]),
    ("bad_words", [""]),
    ("bad_words", ["x"] * 257),
    ("model", "x" * 513),
    ("stream", 1),
]


@pytest.mark.finding(2)
@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest])
def test_safety_2_values_out_of_range_are_refused_by_name(kind: type[FullSampling], name: str, value: Any) -> None:
    body = (CHAT if kind is ChatRequest else COMPLETION) | {name: value}
    with pytest.raises(HttpError) as refusal:
        parse(json.dumps(body).encode(), kind)
    assert (refusal.value.status, refusal.value.param) == (400, name)
    assert len(str(refusal.value)) <= 501


@pytest.mark.finding(2, 15)
@pytest.mark.parametrize("value", [HUGE, 1001, -1001, 2**64])
def test_safety_2_15_priorities_of_v1_generate_have_the_same_bounds(value: int) -> None:
    with pytest.raises(HttpError) as refusal:
        parse(json.dumps(GENERATE | {"priority": value}).encode(), GenerateRequest)
    assert refusal.value.param == "priority"


@pytest.mark.finding(5)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b'{"model":' + b"1" * 5000 + b"}",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"temperature": -1e999}',
        b'{"model": "\\ud800"}',
        b'{"model": "\\udc00\\ud800"}',
        b'{"model": "\xff"}',
        b'{"\\ud800": 1}',
        b"\xff\xfe{\x00}\x00",
        b"",
        b"null",
        b"1",
        b'"x"',
        b"{} {}",
        b"{'model': 'm'}",
        b'{"model": "m",}',
        b'{"model": "a\x00b"}',
        b"{" + b'"a":1,' * 100_000,
    ],
)
def test_safety_5_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    """Deep nesting and long numbers were answered 500."""
    for kind in REQUESTS.values():
        with pytest.raises(HttpError) as refusal:
            parse(body, kind)
        assert refusal.value.status == 400 and len(str(refusal.value)) <= 501
        refusal.value.encode()


@pytest.mark.finding(5)
def test_safety_5_a_long_key_of_logit_bias_is_refused() -> None:
    body = b'{"model":"m","prompt":"x","logit_bias":{"' + b"1" * 5000 + b'":1}}'
    with pytest.raises(HttpError) as refusal:
        parse(body, CompletionRequest)
    assert refusal.value.param == "logit_bias"


MARK = b"\xef\xbb\xbf"


def test_a_byte_order_mark_before_a_body_is_skipped() -> None:
    body = b'{"model":"a","prompt":"x"}'
    assert parse(MARK + body, CompletionRequest) == parse(body, CompletionRequest)
    rerank = b'{"model":"m","query":"a","documents":["b"]}'
    decoder = msgspec.json.Decoder(RerankRequest)
    assert json_body.counted(MARK + rerank, decoder) == json_body.counted(rerank, decoder)


def test_the_last_value_of_a_repeated_name_counts() -> None:
    """As in the gateway, which reads bodies with the same library, and adds a seed at the end of mirrored ones."""
    assert parse(b'{"model":"a","prompt":"x","seed":1,"seed":2}', CompletionRequest).seed == 2


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        (CHAT | {"messages": [{"role": "wizard", "content": "x"}]}, ChatRequest, "messages"),
        (CHAT | {"messages": [{"content": "x"}]}, ChatRequest, "messages"),
        (CHAT | {"messages": [{"role": "user", "content": 5}]}, ChatRequest, "messages"),
        (CHAT | {"messages": [{"role": "user", "content": "x", "name": 5}]}, ChatRequest, "messages"),
        (CHAT | {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, ChatRequest, "messages"),
        (CHAT | {"tool_choice": "always", "tools": [TOOL]}, ChatRequest, "tool_choice"),
        (CHAT | {"tool_choice": {"type": "function"}, "tools": [TOOL]}, ChatRequest, "tool_choice"),
        (CHAT | {"tool_choice": allowed("none", "f"), "tools": [TOOL]}, ChatRequest, "tool_choice"),
        (CHAT | {"tool_choice": allowed("auto"), "tools": [TOOL]}, ChatRequest, "tool_choice"),
        (CHAT | {"tools": [{}]}, ChatRequest, "tools"),
        (CHAT | {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, ChatRequest, "tools"),
        (CHAT | {"tools": [TOOL] * 129}, ChatRequest, "tools"),
        (CHAT | {"tools": [{"type": "function", "function": {"name": "f f"}}]}, ChatRequest, "tools"),
        (CHAT | {"tools": [{"type": "function", "function": {"name": "f" * 65}}]}, ChatRequest, "tools"),
        (CHAT | {"tools": [{"type": "function", "function": {"name": "f", "cache": 1}}]}, ChatRequest, "tools"),
        (CHAT | {"parallel_tool_calls": "no"}, ChatRequest, "parallel_tool_calls"),
        (CHAT | {"reasoning_effort": ""}, ChatRequest, "reasoning_effort"),
        (CHAT | {"chat_template_kwargs": [1]}, ChatRequest, "chat_template_kwargs"),
        ({"model": "m", "input": "x", "encoding_format": "hex"}, EmbeddingRequest, "encoding_format"),
        ({"model": "m", "input": []}, EmbeddingRequest, "input"),
        ({"model": "m", "input": [[-1]]}, EmbeddingRequest, "input"),
    ],
)
def test_other_fields_by_name(body: dict[str, Any], kind: type[msgspec.Struct], param: str) -> None:
    with pytest.raises(HttpError) as refusal:
        parse(json.dumps(body).encode(), kind)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]}, "tools"),
        ({"tools": [TOOL | {"function": {"name": f"f{n}", "description": "x" * 65536}} for n in range(17)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": allowed("auto", "g"), "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": allowed("required", "f", "g"), "tools": [TOOL]}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL], "ignore_eos": True}, "ignore_eos"),
        (
            {"tools": [TOOL], "parallel_tool_calls": False, "use_beam_search": True, "n": 2, "temperature": 0},
            "parallel_tool_calls",
        ),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_contradicting_fields_are_refused(more: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as refusal:
        parse(json.dumps(CHAT | more).encode(), ChatRequest).check()
    assert refusal.value.param == param


@pytest.mark.finding(11)
def test_safety_11_no_field_is_accepted_and_ignored() -> None:
    """Each of these was accepted without a word: now it is a field of its own, or refused by its name."""
    found = (
        "include_stop_str_in_output",
        "skip_special_tokens",
        "add_special_tokens",
        "documents",
        "reasoning_effort",
        "cache_salt",
        "chat_template_kwargs",
    )
    for kind in (ChatRequest, CompletionRequest, EmbeddingRequest):
        assert all(name in kind.__struct_fields__ or name in UNSUPPORTED for name in found)
    for name in ("chat_template", "return_tokens_as_token_ids", "prompt_embeds", "logits_processors"):
        with pytest.raises(HttpError) as refusal:
            parse(json.dumps(COMPLETION | {name: ["x"]}).encode(), CompletionRequest)
        assert (refusal.value.param, refusal.value.code) == (name, "unsupported_parameter")


def test_prompts_of_one_field() -> None:
    assert prompts_of("x", "prompt") == ["x"] and prompts_of([1, 2], "prompt") == [[1, 2]]
    assert prompts_of([[1], "x"], "prompt") == [[1], "x"] and prompts_of(list(range(5000)), "prompt")
    for wrong in ([1, "x"], ["x"] * 2049):
        with pytest.raises(HttpError):
            prompts_of(wrong, "prompt")  # type: ignore[arg-type]


# --- all fields, by their types ---------------------------------------------------------------------------------------


def test_every_number_is_bounded_and_every_text_and_list_of_a_parameter_too() -> None:
    """A field that is added without bounds fails here. Texts that are read as prompts are bounded by the body."""
    long_texts = {
        "prompt",
        "instructions",
        "input",
        "inputs",
        "content",
        "arguments",
        "reasoning_content",
        "reasoning",
        "thinking",
    }
    checked = 0
    for kind in REQUESTS.values():
        for path, found in _types(inspect.type_info(kind), kind.__name__):
            name = path.rpartition(".")[2]
            checked += 1
            if isinstance(found, inspect.IntType | inspect.FloatType):
                assert (found.ge is not None or found.gt is not None) and found.le is not None, path
                assert abs(found.le) <= INT64 and abs(found.ge or found.gt or 0) <= INT64 + 1, path
            elif isinstance(found, inspect.StrType) and name not in long_texts | {"id"}:
                assert found.max_length is not None or found.pattern, path
            elif isinstance(found, inspect.ListType) and name not in ("content", "tool_calls"):
                assert found.max_length is not None, path
    assert checked > 150


def _types(found: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, found
    if isinstance(found, inspect.StructType):
        for field in found.fields:
            yield from _types(field.type, f"{path}.{field.name}")
    elif isinstance(found, inspect.UnionType):
        for one in found.types:
            yield from _types(one, path)
    elif isinstance(found, inspect.ListType):
        yield from _types(found.item_type, path)
    elif isinstance(found, inspect.DictType) and not isinstance(found.value_type, inspect.AnyType):
        yield from _types(found.key_type, path)
        yield from _types(found.value_type, path)


NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([2**31, 2**63, -(2**63), 2**64, 1e-45, 5e-324, 1e308]))
VALUES = st.recursive(
    st.one_of(NUMBERS, st.booleans(), st.none(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.finding(2)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(CompletionRequest.__struct_fields__)), VALUES, max_size=4))
def test_safety_2_accepted_requests_can_be_encoded_for_the_engine(more: dict[str, Any]) -> None:
    """An integer of 80 bits was accepted, and its encoding failed after the messages of others were taken."""
    try:
        body = parse(json.dumps(COMPLETION | more).encode(), CompletionRequest)
        body.check()
    except HttpError as refusal:
        assert refusal.status == 400
        return
    params = body.params(body.limit or 1, (2,), 1 if body.seed is None else body.seed)
    encode(Commands([Request("r", (1,), params, body.priority or 0, timeout_s=body.timeout)], []))


def test_the_document_has_every_request() -> None:
    shown = json.loads(document())
    assert set(REQUESTS) <= set(shown["paths"])
    chat = shown["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["model", "messages"]
    temperature = chat["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0.0, 2.0)
    assert "logit_bias" in chat["properties"] and "audio" in chat["x-unsupported"]
    for path, item in shown["paths"].items():
        for operation in item.values():
            assert operation["responses"], path
    references = {part.split('"')[0] for part in document().decode().split('"#/components/schemas/')[1:]}
    assert references <= set(shown["components"]["schemas"])
