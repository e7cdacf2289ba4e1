"""Makes the body of a chat completion of a request to `/v1/messages` (pure)."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..wire import errors
from .schema import (
    Base64Source,
    Block,
    ContentSource,
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    Message,
    MessagesRequest,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)

_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_OWN_TOOL = (None, "custom")
_NULL = b"null"

Fields = dict[str, Any]


def chat_body(request: MessagesRequest) -> bytes:
    """The body of `/v1/chat/completions`.

    Raises:
        RequestError: 400, which names the field that has no counterpart there.
    """
    fields = _prompt(request) | {"max_tokens": request.max_tokens}
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(request, name)) is not None:
            fields[name] = value
    if request.stop_sequences:
        fields["stop"] = request.stop_sequences
    if request.stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.metadata and request.metadata.user_id:
        fields["user"] = request.metadata.user_id
    if request.output_config and (output := request.output_config.format):
        schema = {"name": "output", "schema": output.schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return msgspec.json.encode(fields)


def tokenize_body(request: CountTokensRequest) -> bytes:
    """The body of `/tokenize` for the chat that the request describes. Raises RequestError as `chat_body` does."""
    fields = _prompt(request)
    fields.pop("tool_choice", None)
    fields.pop("parallel_tool_calls", None)
    return msgspec.json.encode(fields)


def _prompt(request: CountTokensRequest) -> Fields:
    """Model, messages and tools."""
    if request.mcp_servers:
        raise _unsupported("mcp_servers", "The gateway calls no MCP servers: call them in the client, as tools.")
    if request.container is not msgspec.UNSET and bytes(request.container) != _NULL:
        raise _unsupported("container", "There are no containers here.")
    if not request.messages:
        raise errors.invalid("invalid_value", "messages must have at least one message.", param="messages")
    system = _text(request.system) if request.system is not None else ""
    messages: list[Fields] = [{"role": "system", "content": system}] if system else []
    for message in request.messages:
        messages += _chat_messages(message)
    fields: Fields = {"model": request.model, "messages": messages}
    if _is_prefill(request.messages[-1]):
        # The message goes on where it ends; engines that do not know these fields begin another one.
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.tools:
        fields["tools"] = [_tool(tool, f"tools.{place}") for place, tool in enumerate(request.tools)]
    if request.tool_choice:
        fields |= _tool_choice(request.tool_choice)
    return fields


def _is_prefill(last: Message) -> bool:
    """Whether the client wrote the beginning of the answer."""
    return last.role == "assistant" and (
        isinstance(last.content, str) or all(isinstance(block, TextBlock) for block in last.content)
    )


def _chat_messages(message: Message) -> list[Fields]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_assistant_message(message.content)]
    return list(_user_messages(message.role, message.content))


def _assistant_message(blocks: Sequence[Block]) -> Fields:
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    reasoning = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = [_tool_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    for block in blocks:
        if isinstance(block, ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock):
            raise _unsupported("messages", f"A message of the assistant cannot have a {_type(block)} block.")
    message: Fields = {"role": "assistant", "content": text if text or not calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(block: ToolUseBlock) -> Fields:
    function = {"name": block.name, "arguments": bytes(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _user_messages(role: str, blocks: Sequence[Block]) -> Iterator[Fields]:
    """Results of tools, each as a message of its own, and then the rest: an answer to calls precedes a new question."""
    parts: list[Fields] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            content = [TextBlock(block.content)] if isinstance(block.content, str) else block.content or []
            result = "\n".join(_block_text(piece) for piece in content if not isinstance(piece, ImageBlock))
            # A chat completion has no field for it, and the model must know.
            failed = "Error: " if block.is_error else ""
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": failed + result}
            parts += [_image_part(piece) for piece in content if isinstance(piece, ImageBlock)]
    for block in blocks:
        if isinstance(block, ToolUseBlock | ThinkingBlock):
            raise _unsupported("messages", f"A message of the {role} cannot have a {_type(block)} block.")
        if isinstance(block, ImageBlock):
            parts.append(_image_part(block))
        elif isinstance(block, TextBlock | DocumentBlock | SearchResultBlock):
            parts.append({"type": "text", "text": _block_text(block)})
    if len(parts) == 1 and parts[0]["type"] == "text":
        yield {"role": role, "content": parts[0]["text"]}  # also for templates that know nothing but texts
    elif parts:
        yield {"role": role, "content": parts}


def _image_part(block: ImageBlock) -> Fields:
    source = block.source
    url = f"data:{source.media_type};base64,{source.data}" if isinstance(source, Base64Source) else source.url
    return {"type": "image_url", "image_url": {"url": url}}


def _block_text(block: TextBlock | DocumentBlock | SearchResultBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, SearchResultBlock):
        return "\n".join([f"{block.title} ({block.source})", *(piece.text for piece in block.content)])
    source = block.source
    text = _text(source.content) if isinstance(source, ContentSource) else source.data
    return f"{block.title}\n{text}" if block.title else text


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _tool(tool: Tool, path: str) -> Fields:
    if tool.type not in _OWN_TOOL:
        message = (
            f"{path} has the type {tool.type[:100]!r}, a tool that Anthropic runs; only tools of the client work here."
        )
        raise _unsupported("tools", message)
    function: Fields = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.input_schema is msgspec.UNSET:
        raise errors.invalid("missing_required_parameter", f"{path} must have an input_schema.", param="tools")
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Fields:
    if choice.type != "tool":
        fields: Fields = {"tool_choice": _TOOL_CHOICES[choice.type]}
    elif choice.name:
        fields = {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
    else:
        message = "tool_choice of type tool must have the name of a tool."
        raise errors.invalid("missing_required_parameter", message, param="tool_choice")
    return fields | {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else fields


def _type(block: msgspec.Struct) -> str:
    return str(block.__struct_config__.tag)


def _unsupported(param: str, message: str) -> errors.RequestError:
    return errors.invalid("unsupported_parameter", message, param=param)
