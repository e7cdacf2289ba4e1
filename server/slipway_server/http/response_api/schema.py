"""The body of POST /v1/responses, and the chat completion that it means."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from slipway_process.serving.bodies import CallerName, ModelName
from slipway_process.serving.errors import HttpError, invalid

from ...sampling import Positive
from ..requests.bodies import unsupported
from ..requests.fields import Metadata, Priority, Short, Stop, TemplateVariables, Timeout
from ..requests.messages import Messages
from ..requests.sampling import ResponsesFields
from ..requests.schemas import ChatRequest
from ..requests.structured import JsonSchema, ResponseFormat, Schema
from ..requests.tools import (
    MAX_DESCRIPTION_CHARACTERS,
    MAX_TOOLS,
    AllowedToolChoice,
    AllowedTools,
    FunctionDefinition,
    FunctionName,
    NamedFunction,
    NamedTool,
    ToolChoice,
    ToolDefinition,
)
from .items import MAX_ITEMS

# A field of a chat completion → its name in the Responses API.
NAMES = {
    "messages": "input",
    "response_format": "text",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning",
}

Item = dict[str, Any]


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """`strict` is always true: an answer that is complete is valid."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    description: Annotated[str, Meta(max_length=8192)] | None = None
    schema: Schema | None = None
    strict: bool | None = None


class TextOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """`summary` is accepted: the reasoning itself is returned, and no summary of it."""

    effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class FunctionTool(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    name: FunctionName
    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARACTERS)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenTool(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    name: FunctionName

    def of_chat(self) -> NamedTool:
        return NamedTool(function=NamedFunction(name=self.name))


class AllowedChoice(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Meta(min_length=1, max_length=MAX_TOOLS)]

    def of_chat(self) -> AllowedToolChoice:
        return AllowedToolChoice(
            allowed_tools=AllowedTools(mode=self.mode, tools=[one.of_chat() for one in self.tools])
        )


class ResponseStreamOptions(Struct, forbid_unknown_fields=True):
    include_obfuscation: bool = False


class ResponsesRequest(ResponsesFields, kw_only=True):
    """POST /v1/responses. The fields after `user` are vLLM's."""

    model: ModelName
    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Short], Meta(max_length=32)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Short | None = None
    conversation: Short | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt_cache_key: CallerName | None = None
    safety_identifier: CallerName | None = None
    user: CallerName | None = None
    stop: Stop = None
    ignore_eos: bool | UnsetType = UNSET
    priority: Priority | None = None
    timeout: Timeout | None = None
    chat_template_kwargs: TemplateVariables | None = None

    def check(self) -> None:
        """Raises HttpError for what this server does not do: it stores nothing, and runs no tools itself."""
        for name in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, name) is not None:
                raise unsupported(name, f"{name} is not supported: nothing is stored here. Send all items in input.")
        if self.store:
            raise unsupported("store", "Responses are not stored: leave store out, or set it to false.")
        if self.background:
            raise unsupported("background", "background is not supported: send the request to /v1/jobs instead.")
        if self.truncation == "auto":
            raise unsupported("truncation", "truncation auto is not supported: shorten the input.")
        for name in self.include or ():
            # Reasoning is returned as it is, so that there is nothing that would have to be encrypted.
            if name != "reasoning.encrypted_content":
                raise unsupported("include", f"include {name!r} is not supported by this server.")
        if self.stream_options and self.stream_options.include_obfuscation:
            raise unsupported("stream_options", "include_obfuscation is not supported by this server.")
        if self.stream_options and not self.stream:
            raise invalid("stream_options are for streams: set stream.", "stream_options")

    def chat(self) -> ChatRequest:
        """The chat completion that the request means, without its messages: `items.messages_of` makes them.

        Raises:
            HttpError: the text's format is not what it must be.
        """
        fields = {name: value for name in _SAME if (value := getattr(self, name)) is not None and value is not UNSET}
        return ChatRequest(
            model=self.model,
            messages=[],
            max_completion_tokens=self.max_output_tokens,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            response_format=self._response_format(),
            tools=[_definition(tool) for tool in self.tools] if self.tools else None,
            tool_choice=self._tool_choice(),
            **fields,
        )

    def _response_format(self) -> ResponseFormat | None:
        wanted = self.text.format if self.text else None
        if wanted is None:
            return None
        if (wanted.type == "json_schema") != (wanted.schema is not None):
            raise invalid("text.format has a schema exactly where its type is json_schema.", "text")
        if wanted.schema is None:
            return ResponseFormat(type=wanted.type)
        schema = JsonSchema(name=wanted.name or "schema", description=wanted.description, schema=wanted.schema)
        return ResponseFormat(type="json_schema", json_schema=schema)

    def _tool_choice(self) -> ToolChoice | None:
        choice = self.tool_choice
        return choice.of_chat() if isinstance(choice, ChosenTool | AllowedChoice) else choice


# Fields that mean what they mean in a chat completion; of the others `chat` makes what they are there.
_SAME = (set(ResponsesRequest.__struct_fields__) & set(ChatRequest.__struct_fields__)) - {
    *("model", "tools", "tool_choice", "stream_options", "metadata", "safety_identifier"),
}


def renamed(error: HttpError) -> HttpError:
    """An error of the chat completion, with the name that its field has here."""
    if error.param in NAMES:
        error.param = NAMES[error.param]
    return error


def _definition(tool: FunctionTool) -> ToolDefinition:
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return ToolDefinition(type="function", function=function)


def checked_messages(messages: list[dict[str, Any]]) -> Messages:
    """Raises HttpError for messages that a chat completion would not take."""
    try:
        return msgspec.convert(messages, Messages)
    except msgspec.ValidationError as error:
        raise invalid(f"input is no conversation: {error}.", "input") from None
