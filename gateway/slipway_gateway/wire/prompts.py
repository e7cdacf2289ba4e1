"""What a prompt has, as far as the bytes of a request show it (pure).

Within a text of JSON quotes are escaped, so what is looked for with its quotes is a member and no text.
"""

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw

from .json_values import ABSENT, does_nothing, is_list, is_null, is_text, read_value, text_of
from .request_fields import RequestFields

_IMAGE = re.compile(rb'"type"\s*:\s*"(?:image_url|input_image|image)"')
_FENCE = re.compile(rb"```")
_MOST_BYTES = 256 << 10  # of messages that are read


class _Message(msgspec.Struct):
    content: Raw = ABSENT


class _Part(msgspec.Struct):
    text: Raw = ABSENT


_MESSAGES: "msgspec.json.Decoder[list[_Message]]" = msgspec.json.Decoder(list[_Message])
_PARTS: "msgspec.json.Decoder[list[_Part]]" = msgspec.json.Decoder(list[_Part])


def prompt_bytes(fields: RequestFields, body_bytes: int) -> int:
    """Bytes of the prompt as it is written; of a body without one, all its bytes."""
    return sum(map(len, (fields.tools, *_texts(fields)))) or body_bytes


def has_tools(fields: RequestFields) -> bool:
    return fields.tools is not ABSENT and not does_nothing(fields.tools)


def has_images(fields: RequestFields) -> bool:
    return any(_IMAGE.search(part) for part in (fields.messages, fields.input) if part is not ABSENT)


def has_code(fields: RequestFields) -> bool:
    """Whether there is code between fences."""
    return any(_FENCE.search(part) for part in _texts(fields))


def last_text(fields: RequestFields, most_bytes: int) -> str:
    """The end of the last message, or of a prompt that is one text; empty where there is none, or all is very long."""
    messages = fields.input if is_null(fields.messages) else fields.messages
    if is_text(messages):
        return _end(text_of(messages, _MOST_BYTES), most_bytes)
    if is_list(messages):
        listed = read_value(_MESSAGES, messages, _MOST_BYTES)
        return _end(_content(listed[-1]), most_bytes) if listed else ""
    return _end(text_of(fields.prompt, _MOST_BYTES), most_bytes)


def _content(message: "_Message") -> str | None:
    if not is_list(message.content):
        return text_of(message.content, _MOST_BYTES)
    parts = read_value(_PARTS, message.content, _MOST_BYTES) or []
    return next((text for part in reversed(parts) if (text := text_of(part.text, _MOST_BYTES))), None)


def _end(text: str | None, most_bytes: int) -> str:
    return (text or "").encode(errors="replace")[-most_bytes:].decode(errors="ignore")


def _texts(fields: RequestFields) -> Iterator[Raw]:
    parts = (fields.instructions, fields.messages, fields.prompt, fields.input)
    others = (fields.query, fields.documents, fields.text_1, fields.text_2)
    return (part for part in (*parts, *others) if part is not ABSENT)
