"""The input of a response: its items, and the messages of a chat that they mean (pure)."""

from collections.abc import Sequence
from typing import Any

from slipway_process.serving.errors import HttpError, invalid

from ..requests.bodies import unsupported
from ..requests.fields import MAX_MESSAGES

MAX_ITEMS = MAX_MESSAGES
ROLES = ("user", "assistant", "system", "developer")
# Types of a message's parts that are texts.
_TEXTS = ("input_text", "output_text", "text")
_REASONING = ("reasoning_text", "summary_text")

Item = dict[str, Any]
Message = dict[str, Any]


def messages_of(instructions: str | None, given: str | Sequence[Item]) -> list[Message]:
    """The messages of the chat that the instructions and the input mean.

    Raises:
        HttpError: with the path of the item that is wrong, or of a kind that this server does not know.
    """
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    reasoning = ""  # of the message or the calls that follow
    for at, sent in enumerate(given):
        path, item = f"input[{at}]", {name: value for name, value in sent.items() if value is not None}
        kind = item.get("type", "message")
        if kind == "message":
            reasoning = _add_message(messages, item, path, reasoning)
        elif kind == "function_call":
            reasoning = _add_call(messages, item, path, reasoning)
        elif kind == "function_call_output":
            content = _text(item.get("output"), f"{path}.output", _TEXTS)
            messages.append({"role": "tool", "tool_call_id": _named(item, "call_id", path), "content": content})
        elif kind == "reasoning":
            reasoning += _reasoning(item, path)
        elif kind == "item_reference":
            raise unsupported("input", f"{path} refers to a stored item: nothing is stored here. Send the item itself.")
        else:
            raise unsupported("input", f"{path} is of the type {str(kind)[:40]!r}, which is not supported.")
    return messages


def _add_message(messages: list[Message], item: Item, path: str, reasoning: str) -> str:
    role = item.get("role")
    if role not in ROLES:
        raise _wrong(f"{path}.role must be one of {', '.join(ROLES)}.")
    message = {"role": role, "content": _text(item.get("content"), f"{path}.content", (*_TEXTS, "refusal"))}
    if role == "assistant" and reasoning:
        message["reasoning_content"], reasoning = reasoning, ""
    messages.append(message)
    return reasoning


def _add_call(messages: list[Message], item: Item, path: str, reasoning: str) -> str:
    """Add a call: the calls of one turn, and the text before them, are one message of the assistant."""
    arguments = item.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise _wrong(f"{path}.arguments must be a text with JSON.")
    function = {"name": _named(item, "name", path), "arguments": arguments}
    call = {"id": _named(item, "call_id", path), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    if reasoning:
        messages[-1]["reasoning_content"] = messages[-1].get("reasoning_content", "") + reasoning
    messages[-1].setdefault("tool_calls", []).append(call)
    return ""


def _reasoning(item: Item, path: str) -> str:
    """The text of reasoning, as this server returned it; else its summary."""
    for name in ("content", "summary"):
        if parts := item.get(name):
            return _text(parts, f"{path}.{name}", _REASONING)
    return ""


def _text(content: Any, path: str, kinds: Sequence[str]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{path} must be a text, or a list of parts.")
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or kind not in kinds:
            raise unsupported(
                "input", f"{path}[{at}] is of the type {str(kind)[:40]!r}, which is not supported: text only."
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise _wrong(f"{path}[{at}] has no text.")
        texts.append(text)
    return "\n".join(texts)


def _named(item: Item, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise _wrong(f"{path}.{name} must be a text of 1 to 256 characters.")
    return value


def _wrong(message: str) -> HttpError:
    return invalid(message, "input")
