"""The Responses API: what OpenAI's own client makes of it, and what a request must be."""

import copy
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from slipway_process.serving.errors import HttpError
from slipway_server.engine.request import FinishReason
from slipway_server.http.openapi import document
from slipway_server.http.requests.bodies import checked_body
from slipway_server.http.response_api.builder import ResponseBuilder
from slipway_server.http.response_api.items import messages_of
from slipway_server.http.response_api.schema import ResponsesRequest
from slipway_server.http.responses.delta import Delta
from slipway_server.http.responses.resume import Identity
from slipway_server.text.answers.answer import AnswerForm
from tests.server.process import ServerProcess, post

VERSE = "In the beginning God created the heaven and the earth."
LIGHT = {
    "type": "object",
    "properties": {"place": {"type": "string", "enum": ["hall", "barn"]}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "light", "parameters": LIGHT, "strict": True}
CALL = '{"name": "light", "arguments": {"place": "barn"}}'
HERMES = f"<think>It is dark.</think>Let me see.\n<tool_call>\n{CALL}\n</tool_call>"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def body(**changes: Any) -> ResponsesRequest:
    made = checked_body({"model": "chat", "input": "Hello"} | changes, ResponsesRequest)
    made.check()
    return made


# -- input


def test_items_become_the_messages_of_a_chat() -> None:
    items = [
        {"role": "user", "content": "Is it dark?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "light", "arguments": '{"place": "barn"}'},
        {"type": "function_call", "call_id": "c2", "name": "light", "arguments": '{"place": "hall"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "off"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "on"}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    ]  # fmt: skip
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "light", "arguments": f'{{"place": "{place}"}}'}}
        for n, place in ((1, "barn"), (2, "hall"))
    ]
    assert messages_of("You are a lamp.", items) == [
        {"role": "system", "content": "You are a lamp."},
        {"role": "user", "content": "Is it dark?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "off"},
        {"role": "tool", "tool_call_id": "c2", "content": "on"},
        {"role": "developer", "content": "Be brief."},
    ]


def test_reasoning_before_a_call_alone_stays_with_it() -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "light", "arguments": "{}"},
    ]
    [message] = messages_of(None, items)
    assert (message["role"], message["content"], message["reasoning_content"]) == ("assistant", None, "Hm.")


WRONG_ITEMS = [
    ({"role": "wizard", "content": "x"}, "input[1].role must be one of"),
    ({"role": "user", "content": 3}, "input[1].content must be a text"),
    ({"role": "user", "content": [{"type": "input_text", "text": 3}]}, "input[1].content[0] has no text"),
    ({"role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0] is of the type 'input_image'"),
    ({"role": "user", "content": ["x"]}, "input[1].content[0] is of the type 'None'"),
    ({"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"}, "input[1].name must be a text"),
    ({"type": "function_call", "call_id": "c", "name": "n", "arguments": {}}, "input[1].arguments must be a text"),
    ({"type": "function_call_output", "output": "x"}, "input[1].call_id must be a text"),
    ({"type": "function_call_output", "call_id": "c", "output": None}, "input[1].output must be a text"),
    ({"type": "item_reference", "id": "msg_1"}, "input[1] refers to a stored item"),
    ({"type": "computer_call"}, "input[1] is of the type 'computer_call'"),
    ({"type": ["x"]}, "input[1] is of the type"),
    ({"type": "reasoning", "summary": 4}, "input[1].summary must be a text"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "sentence"), WRONG_ITEMS, ids=[sentence for _, sentence in WRONG_ITEMS])
def test_an_item_that_is_wrong_is_named_by_its_path(item: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HttpError) as raised:
        messages_of(None, [{"role": "user", "content": "x"}, item])
    assert (raised.value.status, raised.value.param) == (400, "input")
    assert str(raised.value).startswith(sentence)


REFUSED = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": "conv_1"}}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"stream_options": {}}, "stream_options"),
    ({"input": []}, "input"),
    ({"input": [3]}, "input"),
    ({"input": 3}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"text": {"format": {"type": "grammar"}}}, "text"),
    ({"text": {"verbosity": "low"}}, "text"),
    ({"reasoning": {"effort": 3}}, "reasoning"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
    ({"max_tokens": 3}, "max_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "param"), REFUSED, ids=[f"{param}-{n}" for n, (_, param) in enumerate(REFUSED)])
def test_what_cannot_be_done_is_refused_by_its_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as raised:
        body(**changes)
    assert (raised.value.status, raised.value.param) == (400, param), raised.value


def test_fields_become_those_of_a_chat() -> None:
    chat = body(
        instructions="Be brief.", max_output_tokens=7, temperature=0.5, seed=3, reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "place", "schema": LIGHT, "strict": True}}, tools=[TOOL],
        tool_choice="none", parallel_tool_calls=False, include=["reasoning.encrypted_content"], store=False,
    ).chat()  # fmt: skip
    chat.check()
    assert (chat.limit, chat.temperature, chat.seed, chat.reasoning_effort) == (7, 0.5, 3, "low")
    assert chat.grammar and json.loads(chat.grammar.text)["required"] == ["place"]
    assert chat.tool_use.tools[0].function.parameters == LIGHT and not chat.tool_use.parallel
    for wrong in ({"type": "json_schema"}, {"type": "text", "schema": {}}):
        with pytest.raises(HttpError, match=r"text.format has a schema exactly"):
            body(text={"format": wrong}).chat()


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_those_that_a_chat_may_call(mode: str) -> None:
    other = TOOL | {"name": "other"}
    chosen = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "light"}]}
    request = body(tools=[TOOL, other], tool_choice=chosen)
    use = request.chat().tool_use
    assert [tool.function.name for tool in use.callable_tools] == ["light"]
    assert use.must_call == (mode == "required") and len(use.for_template() or ()) == 2
    response = ResponseBuilder(request, "chat", Identity(1, 100, "0" * 32), AnswerForm().parser("s"), 9).response
    assert response["tool_choice"] == chosen


# -- the response


def built(
    form: AnswerForm, pieces: list[str], finish: FinishReason = FinishReason.STOP
) -> tuple[dict[str, Any], list[Any]]:
    """The response to an answer that comes in these pieces, and copies of all events of its stream."""
    builder = ResponseBuilder(body(), "chat", Identity(1, 100, "0" * 32), form.parser("s"), 9)
    events = copy.deepcopy(builder.begin())
    for at, piece in enumerate(pieces, 1):
        delta = Delta(piece, at, at, finish if at == len(pieces) else None, cached_tokens=4 if at == 1 else 0)
        events += copy.deepcopy(builder.add(delta))
    return builder.response, events


def check_events(events: list[dict[str, Any]], response: dict[str, Any]) -> None:
    """They are OpenAI's, numbered, and their deltas make the items of the response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        assert EVENTS.validate_python(event).type == event["type"]
    Response.model_validate(response)
    deltas: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["output_index"]] = deltas.get(event["output_index"], "") + event["delta"]
    for index, item in enumerate(response["output"]):
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas.get(index, "") == text
        kinds = [event["type"] for event in events if event.get("output_index") == index]
        assert (kinds[0], kinds[-1]) == ("response.output_item.added", "response.output_item.done")
    assert events[-1]["response"] == response


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_reasoning_text_and_calls_are_items_in_any_pieces(size: int) -> None:
    form = AnswerForm("hermes", frozenset({"light"}), reasoning=True)
    pieces = [HERMES[at : at + size] for at in range(0, len(HERMES), size)]
    response, events = built(form, pieces)
    check_events(events, response)
    reasoning, message, call = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "It is dark."}]
    assert message["content"][0]["text"].strip() == "Let me see."
    assert (call["name"], json.loads(call["arguments"]), call["status"]) == ("light", {"place": "barn"}, "completed")
    assert response["status"] == "completed"
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (9, len(pieces), 9 + len(pieces))
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] <= len(pieces)


def test_an_answer_that_is_cut_is_incomplete() -> None:
    response, events = built(AnswerForm(), ["And ", "God"], FinishReason.LENGTH)
    check_events(events, response)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete"


def test_an_answer_without_a_text_has_an_empty_message() -> None:
    response, events = built(AnswerForm(), [""])
    check_events(events, response)
    assert [item["content"][0]["text"] for item in response["output"]] == [""]


# -- OpenAI's client


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_response_is_the_answer_of_the_chat(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "Sing."}, {"role": "user", "content": VERSE}]
    chat = client.chat.completions.create(model="chat", messages=messages, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    response = client.responses.create(
        model="chat", instructions="Sing.", input=VERSE, temperature=0, max_output_tokens=24, metadata={"a": "b"}
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage and chat.usage
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )
    assert response.metadata == {"a": "b"}
    with client.responses.stream(
        model="chat", instructions="Sing.", input=VERSE, temperature=0, max_output_tokens=24
    ) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == "".join(deltas) == response.output_text
    assert len(deltas) > 5


class Light(BaseModel):
    place: str


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_call_that_must_come_and_a_parsed_text_are_valid(client: openai.OpenAI) -> None:
    called = client.responses.create(
        model="chat",
        input=VERSE,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "light"},
        max_output_tokens=200,  # type: ignore[list-item]
    )
    [call] = called.output
    assert call.type == "function_call" and json.loads(call.arguments)["place"] in ("hall", "barn")
    answered = client.responses.create(
        model="chat",
        input=[
            {"role": "user", "content": VERSE},
            call.model_dump(exclude_none=True),  # type: ignore[list-item]
            {"type": "function_call_output", "call_id": call.call_id, "output": "on"},
        ],
        max_output_tokens=8,
    )
    assert answered.status in ("completed", "incomplete")
    parsed = client.responses.create(
        model="chat", input=VERSE, max_output_tokens=300, temperature=0,
        text={"format": {"type": "json_schema", "name": "light", "schema": LIGHT, "strict": True}},
    )  # fmt: skip
    assert Light.model_validate_json(parsed.output_text).place in ("hall", "barn")


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_errors_name_the_field_by_its_name_here(server: ServerProcess) -> None:
    for changes, param in (
        ({"input": VERSE * 400}, "input"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools"),
        ({"model": "other"}, "model"),
    ):
        status, _, answer = post(
            server.url + "/v1/responses", {"model": "chat", "input": "x", "max_output_tokens": 4} | changes
        )
        assert (status in (400, 404), answer["error"]["param"]) == (True, param), answer


def test_the_schema_of_the_document_has_the_endpoint() -> None:
    described = json.loads(document())
    schema = described["paths"]["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["$ref"].endswith("ResponsesRequest")
