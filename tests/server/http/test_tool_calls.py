"""Calls of tools through OpenAI's own client, from a model that no tool was ever shown to."""

import json
from typing import Any

import jsonschema
import openai
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}},
    {"type": "function", "function": {"name": "climate", "parameters": PARAMETERS}},
]
NAMED: Any = {"type": "function", "function": {"name": "climate"}}
BODY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "And God made"}], "tools": TOOLS}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_call_that_must_come_is_valid(client: openai.OpenAI, choice: Any, seed: int) -> None:
    body = BODY | {"tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200, "seed": seed}
    made = client.chat.completions.create(**body).choices[0]
    assert made.finish_reason == "tool_calls" and made.message.content is None and made.message.tool_calls
    (call,) = made.message.tool_calls
    assert call.type == "function" and call.function.name in (
        {"climate"} if choice is NAMED else {"weather", "climate"}
    )
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)

    with client.chat.completions.stream(**body) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.tool_calls
    (again,) = final.message.tool_calls
    assert again.function.name == call.function.name and again.function.arguments == call.function.arguments
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(deltas) > 1 and "".join(event.arguments_delta for event in deltas) == call.function.arguments


def test_a_conversation_goes_on_after_a_call(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**BODY, tool_choice=NAMED, max_tokens=200, seed=1).choices[0].message
    assert made.tool_calls
    result = {"role": "tool", "tool_call_id": made.tool_calls[0].id, "content": "cold"}
    messages = [*BODY["messages"], made.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(model="chat", messages=messages, max_tokens=3)  # type: ignore[arg-type]
    assert answer.choices[0].message.tool_calls is None


def test_schemas_that_no_grammar_can_follow_are_refused_by_name(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(**BODY | {"tools": [tool]}, tool_choice="required")
    assert (refusal.value.param, refusal.value.code) == ("tools", "invalid_grammar")
