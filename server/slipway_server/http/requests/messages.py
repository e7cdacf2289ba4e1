"""The messages of a chat as OpenAI's API writes them, and as chat templates read them."""

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ..errors import invalid
from .fields import MAX_MESSAGES, ToolName

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Function(Struct, kw_only=True):
    name: ToolName
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Struct, kw_only=True):
    function: Function
    id: str | None = None
    type: Literal["function"] = "function"


class Message(Struct, kw_only=True):
    """The fields that every message may have. Other fields go to the template unchanged."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


def template_messages(
    messages: list[dict[str, Any]], *, developer: str = "developer", arguments_as_text: bool = False
) -> list[dict[str, Any]]:
    """Checked messages for a template: texts in place of parts, and arguments of calls as objects.

    `developer`: the template's role for a developer's messages. Raises HttpError for content that is not text.
    """
    found = [_for_template(message, at, developer) for at, message in enumerate(messages)]
    if arguments_as_text:
        for function in (call["function"] for message in found for call in message.get("tool_calls", ())):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return found


def _for_template(message: dict[str, Any], at: int, developer: str) -> dict[str, Any]:
    # Templates test whether a field is defined: one without a value must not be.
    given = {name: value for name, value in message.items() if value is not None}
    _check_role(given, at)
    given["content"] = _text_of(given.get("content"), at)
    if given["role"] == "developer":
        given["role"] = developer
    if calls := given.pop("tool_calls", None):
        given["tool_calls"] = [_call(call, at) for call in calls]
    return given


def _check_role(message: dict[str, Any], at: int) -> None:
    if message.get("tool_calls") and message["role"] != "assistant":
        raise invalid(f"messages[{at}] has tool_calls: only an assistant's messages have them.", "messages")
    if "tool_call_id" in message and message["role"] != "tool":
        raise invalid(f"messages[{at}] has a tool_call_id: only a tool's messages have one.", "messages")
    for name in ("audio", "function_call", "refusal"):
        if message.get(name):
            raise invalid(f"messages[{at}].{name} is not supported.", "messages")


def _call(call: dict[str, Any], at: int) -> dict[str, Any]:
    """A call for a template, with its arguments as an object: templates write them as JSON themselves."""
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise invalid(f"messages[{at}] has a call whose arguments are not JSON.", "messages") from None
    return {"type": "function"} | call | {"function": function | {"arguments": arguments}}


def _text_of(content: str | list[dict[str, Any]] | None, at: int) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = str(part.get("type"))[:40]
            raise invalid(
                f"messages[{at}] has content of type {kind!r}, which is not supported: text only.", "messages"
            )
        if part.get("prompt_cache_breakpoint"):
            raise invalid(f"messages[{at}].content has a prompt_cache_breakpoint, which is not supported.", "messages")
        texts.append(part["text"])
    return "\n".join(texts)
