"""A chat as a client means it, and its messages as templates read them: texts or parts, objects for arguments."""

import json
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Json = dict[str, Any]


class ChatRefused(Exception):
    """Why a chat cannot be rendered: a sentence for a client, the field that it is about, and the code of the error."""

    def __init__(self, message: str, param: str = "messages", code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """`messages` as the client sent them, checked. `variables`: those that it sets itself.

    `tools_optional`: the template need not show the tools to the model, because calls of them follow a grammar.
    """

    messages: list[Json]
    tools: list[Json] | None = None
    tools_optional: bool = False
    documents: list[Json] | None = None
    reasoning_effort: str | None = None
    variables: dict[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How a template reads messages.

    `developer`: its role for a developer's messages. `parts`: contents are lists of parts. `arguments`: of calls are
    objects, texts, or objects that hold the text of what is no JSON, as of a call that max_tokens cut.
    """

    developer: str = "developer"
    parts: bool = False
    arguments: Literal["objects", "texts", "held"] = "objects"


def template_messages(messages: list[Json], form: MessageForm) -> list[Json]:
    """Checked messages for a template. Raises ChatRefused for content that is not text."""
    return [_for_template(message, at, form) for at, message in enumerate(messages)]


def _for_template(message: Json, at: int, form: MessageForm) -> Json:
    # Templates test whether a field is defined: one without a value must not be. Others keep the client's order.
    fields = {name: value for name, value in message.items() if value is not None}
    _check_role(fields, at)
    refusal = fields.pop("refusal", None)
    if refusal:
        fields["content"] = [{"type": "refusal", "refusal": refusal}]
    text = _text_of(fields.get("content"), at)
    fields["content"] = _parts_of(fields.get("content")) if form.parts else text
    if fields["role"] == "developer":
        fields["role"] = form.developer
    if calls := fields.get("tool_calls"):
        fields["tool_calls"] = [_call(call, form) for call in calls]
    else:
        fields.pop("tool_calls", None)
    return fields


def _parts_of(content: str | list[Json] | None) -> list[Json]:
    """Checked content as parts; a template may read the first one without looking whether there is one."""
    texts = [part[part["type"]] for part in content or ()] if not isinstance(content, str) else [content]
    return [{"type": "text", "text": text} for text in texts or [""]]


def _check_role(message: Json, at: int) -> None:
    if message.get("tool_calls") and message["role"] != "assistant":
        raise ChatRefused(f"messages[{at}] has tool_calls: only an assistant's messages have them.")
    if "tool_call_id" in message and message["role"] != "tool":
        raise ChatRefused(f"messages[{at}] has a tool_call_id: only a tool's messages have one.")
    if message.get("refusal") and (message["role"] != "assistant" or message.get("content")):
        raise ChatRefused(f"messages[{at}] has a refusal: only an assistant's messages have one, in place of content.")
    for name in ("audio", "function_call"):
        if message.get(name):
            raise ChatRefused(f"messages[{at}].{name} is not supported.")


def _call(call: Json, form: MessageForm) -> Json:
    """A call with its arguments as an object: templates write them as JSON themselves. Others join them to texts."""
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            arguments = {"arguments": arguments} if form.arguments == "held" else arguments
    if form.arguments == "texts" and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call | {"type": "function", "function": function | {"arguments": arguments}}


def _text_of(content: str | list[Json] | None, at: int) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type")
        if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
            kind = str(kind)[:40]
            raise ChatRefused(f"messages[{at}] has content of type {kind!r}, which is not supported: text only.")
        if part.get("prompt_cache_breakpoint"):
            raise ChatRefused(f"messages[{at}].content has a prompt_cache_breakpoint, which is not supported.")
        texts.append(part[kind])
    return "\n".join(texts)
