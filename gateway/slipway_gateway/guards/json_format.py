"""Which JSON a request wants of its response, and the request again with what was wrong (pure)."""

from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from ..wire import members
from ..wire.json_values import ABSENT, UNREADABLE, is_list, is_object, is_text, read_value, text_of

MAX_SCHEMA_BYTES = 64 << 10
MAX_SHOWN_CHARACTERS = 16 << 10  # of a response that the model gets again
_ANY = msgspec.json.Decoder(Raw)
_TYPES = ("json_object", "json_schema")


class JsonFormat(NamedTuple):
    """What a text must be: one JSON object or, by `schema` (JSON), a value that fits it. `param`: the field."""

    param: str
    schema: str = ""


class UnreadableFormat(Exception):
    """The schema of a request cannot be read. The message says why; `param` is the field."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(why)
        self.param = param


class _Inner(msgspec.Struct):
    schema: Raw = ABSENT


class _Format(msgspec.Struct):
    type: Raw = ABSENT
    json_schema: Raw = ABSENT
    schema: Raw = ABSENT


class _Text(msgspec.Struct):
    format: Raw = ABSENT


class _Request(msgspec.Struct):
    response_format: Raw = ABSENT
    text: Raw = ABSENT
    messages: Raw = ABSENT
    input: Raw = ABSENT


_REQUEST, _INNER = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Inner)
_FORMAT, _TEXT = msgspec.json.Decoder(_Format), msgspec.json.Decoder(_Text)


def format_of(body: bytes) -> JsonFormat | None:
    """The format in `response_format` of chats and completions, or in `text.format` of responses; None: it is no JSON.

    Raises:
        UnreadableFormat: it has a schema that is too long, or none.
    """
    try:
        request = _REQUEST.decode(body)
    except UNREADABLE:
        return None
    if request.response_format is not ABSENT:
        return _chat_format(request.response_format)
    text = None if request.text is ABSENT else read_value(_TEXT, request.text, len(request.text))
    return None if text is None or text.format is ABSENT else _text_format(text.format)


def _chat_format(value: Raw) -> JsonFormat | None:
    param = "response_format"
    found = _read(value, param)
    if found is None:
        return None
    if text_of(found.type) != "json_schema":
        return JsonFormat(param)
    param = "response_format.json_schema.schema"
    inner = read_value(_INNER, found.json_schema, len(found.json_schema)) if is_object(found.json_schema) else None
    return JsonFormat(param, _schema(inner.schema if inner else ABSENT, param))


def _text_format(value: Raw) -> JsonFormat | None:
    param = "text.format"
    found = _read(value, param)
    if found is None:
        return None
    if text_of(found.type) != "json_schema":
        return JsonFormat(param)
    return JsonFormat("text.format.schema", _schema(found.schema, "text.format.schema"))


def _read(value: Raw, param: str) -> _Format | None:
    """The format; None: it is none of JSON. Raises UnreadableFormat: it is too long."""
    found = read_value(_FORMAT, value, len(value)) if is_object(value) else None
    if found is None or text_of(found.type) not in _TYPES:
        return None
    if len(value) > MAX_SCHEMA_BYTES + 4096:
        raise UnreadableFormat(param, f"it has more than {MAX_SCHEMA_BYTES >> 10} KiB")
    return found


def _schema(value: Raw, param: str) -> str:
    if value is ABSENT:
        return "{}"  # any value fits, as in OpenAI's API
    if len(value) > MAX_SCHEMA_BYTES:
        raise UnreadableFormat(param, f"it has more than {MAX_SCHEMA_BYTES >> 10} KiB")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise UnreadableFormat(param, "it is no text in UTF-8") from None


def object_problem(text: str) -> str:
    """Why a text is not one JSON object; empty: it is."""
    try:
        value = _ANY.decode(text)
    except (*UNREADABLE, ValueError):
        return "it is no JSON"
    return "" if is_object(value) else "it is no JSON object"


def repaired(body: bytes, text: str, problem: str) -> bytes:
    """The request with the response that does not fit, and what is wrong with it, behind its messages.

    The beginning of the prompt keeps its bytes. A request of another shape, and a response too long to show, leave it
    as it is: the model is called again with the same request.
    """
    if not text.strip() or len(text) > MAX_SHOWN_CHARACTERS:
        return body
    try:
        request = _REQUEST.decode(body)
        wish = f"This response cannot be used: {problem}. Reply with the corrected JSON alone."
        if is_list(request.messages):
            turns = _with_turns(request.messages, text, wish)
            return members.with_member(body, b"messages", turns, request.messages)
        if is_list(request.input):
            return members.with_member(body, b"input", _with_turns(request.input, text, wish), request.input)
        if is_text(request.input):
            first = msgspec.json.encode([{"role": "user", "content": request.input}])
            return members.with_member(body, b"input", _with_turns(Raw(first), text, wish), request.input)
    except (*UNREADABLE, ValueError):
        return body
    return body


def _with_turns(before: Raw, text: str, wish: str) -> bytes:
    turns: list[dict[str, Any]] = [{"role": "assistant", "content": text}, {"role": "user", "content": wish}]
    written = msgspec.json.encode(turns)[1:-1]
    head = bytes(before).rstrip()[:-1].rstrip()
    return head + (b"" if head == b"[" else b",") + written + b"]"
