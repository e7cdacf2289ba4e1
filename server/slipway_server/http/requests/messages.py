"""The messages of a chat as OpenAI's API writes them; `text.chat_messages` makes of them what templates read."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

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
