"""Reads the events of a stream of `/v1/generate`, which its server wrote: https://html.spec.whatwg.org/#sse (pure)."""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from ..wire.json_values import ABSENT, UNREADABLE, integer_of, text_of
from .marks import mark_in

# An event is one token, or a sum: the server of a longer one is broken.
MAX_EVENT_BYTES = 256 << 10
_MAX_ERROR_TEXT = 1000
_Tokens = Annotated[int, Meta(ge=0, lt=1 << 53)]  # what JavaScript has exact numbers for


class TokenUsage(Struct, frozen=True):
    """Tokens of a stream that ended."""

    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0


class StreamError(Struct, frozen=True):
    """An error as OpenAI has it."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(Struct, frozen=True):
    """The end of a request without its whole stream. `status`: of HTTP; 0: its server sent an event without one."""

    status: int
    error: StreamError
    retry_after_ms: int | None = None


class TokenEvent(Struct, frozen=True):
    """One event. `event_id`: of SSE, empty from a server that marks none. One of the others is set, or `token`."""

    event_id: str
    token: str = ""
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    error: StreamError | None = None

    @property
    def position(self) -> int:
        """Tokens of the stream up to this event; 0 where it has no id."""
        mark = mark_in(self.event_id)
        return mark.position if mark else 0

    @property
    def is_last(self) -> bool:
        return self.usage is not None or self.error is not None


class BadEvent(Exception):
    """The server sent what is no event of this API."""


class _Written(Struct):
    type: str
    token: str = ""
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    error: Raw = ABSENT


class _WrittenError(Struct):
    message: Raw = ABSENT
    type: Raw = ABSENT
    param: Raw = ABSENT
    code: Raw = ABSENT


class _ErrorBody(Struct):
    error: Raw = ABSENT


_ERROR_BODY = msgspec.json.Decoder(_ErrorBody)
_EVENT = msgspec.json.Decoder(_Written)
_ERROR = msgspec.json.Decoder(_WrittenError)


class EventReader:
    """Splits the bytes of a stream into its events. Comments, and events of types that this API has not, are left out.

    A carriage return ends no line by itself: JSON has none outside of escapes.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[TokenEvent]:
        """The events that are whole now. Raises BadEvent."""
        data = self._rest + (chunk.replace(b"\r", b"") if b"\r" in chunk else chunk)
        *whole, self._rest = data.split(b"\n\n")
        if max(map(len, (*whole, self._rest))) > MAX_EVENT_BYTES:
            raise BadEvent
        return [event for lines in whole if (event := _event_of(lines)) is not None]


def _event_of(lines: bytes) -> TokenEvent | None:
    event_id, data = "", b""
    for line in lines.split(b"\n"):
        if line.startswith(b"data:"):
            data += line[5:].removeprefix(b" ")
        elif line.startswith(b"id: "):
            event_id = line[4:].decode("ascii", "replace")
    return _decoded(event_id, data) if data else None


def _decoded(event_id: str, data: bytes) -> TokenEvent | None:
    try:
        written = _EVENT.decode(data)
    except UNREADABLE:
        raise BadEvent from None
    if written.type == "token":
        return TokenEvent(event_id, written.token)
    if written.type == "done":
        return TokenEvent(event_id, usage=written.usage or TokenUsage(), finish_reason=written.finish_reason)
    return TokenEvent(event_id, error=error_of(written.error)) if written.type == "error" else None


def error_of(written: Raw | bytes) -> StreamError:
    """An error as a server wrote it; what it has not, or not as a text, is made up for."""
    try:
        error = _ERROR.decode(written)
    except UNREADABLE:
        error = _WrittenError()
    code = text_of(error.code)
    if code is None and (number := integer_of(error.code)) is not None:
        code = str(number)
    message = text_of(error.message) or "The server of this model reported an error."
    return StreamError(message[:_MAX_ERROR_TEXT], text_of(error.type) or "server_error", text_of(error.param), code)


def error_in(body: bytes) -> StreamError:
    """The error of an error response, as `error_of`."""
    try:
        return error_of(_ERROR_BODY.decode(body).error)
    except UNREADABLE:
        return error_of(b"")
