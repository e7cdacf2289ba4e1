"""A request to `/v1/messages`, as Anthropic's API reference has it. Unknown fields are ignored."""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class TextBlock(Struct, tag="text"):
    text: str


class Base64Source(Struct, tag="base64"):
    media_type: str
    data: str


class UrlSource(Struct, tag="url"):
    url: str


class TextSource(Struct, tag="text"):
    data: str


class ContentSource(Struct, tag="content"):
    content: str | list[TextBlock]


class ImageBlock(Struct, tag="image"):
    source: Base64Source | UrlSource


class DocumentBlock(Struct, tag="document"):
    """Of plain text. A PDF has the source `base64` or `url`, which no chat completion takes."""

    source: TextSource | ContentSource
    title: str | None = None


class SearchResultBlock(Struct, tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]


class ThinkingBlock(Struct, tag="thinking"):
    thinking: str


class RedactedThinkingBlock(Struct, tag="redacted_thinking"):
    """Encrypted by the server that wrote it: no other one can read it."""


class ToolUseBlock(Struct, tag="tool_use"):
    id: str
    name: str
    input: Raw = Raw(b"{}")


class ToolResultBlock(Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None
    is_error: bool | None = None


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class Message(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct):
    """A tool of the client. Anthropic's own tools have another `type` and run at Anthropic."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Raw | UnsetType = UNSET
    strict: bool | None = None


class ToolChoice(Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Struct):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct):
    format: OutputFormat | None = None


class Metadata(Struct):
    user_id: str | None = None


class CountTokensRequest(Struct, kw_only=True):
    """Also what `MessagesRequest` has of a prompt."""

    model: str
    messages: list[Message]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    mcp_servers: list[Raw] | None = None
    container: Raw | UnsetType = UNSET


class MessagesRequest(CountTokensRequest, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None


MESSAGES = msgspec.json.Decoder(MessagesRequest)
COUNT_TOKENS = msgspec.json.Decoder(CountTokensRequest)
