"""Tokens that a response reports, found in its bytes."""

import re
from typing import Any

import msgspec

# A key, never a text: in a JSON string the quotation marks would be escaped, and only an object follows.
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
# A usage object is short; a longer one is not read.
MAX_USAGE_BYTES = 4096
_DONE = b"data: [DONE]"
# A usage object as every server writes it: numbers, and at most objects of numbers.
_FLAT = re.compile(rb"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


class _Details(msgspec.Struct):
    cached_tokens: Any = None


class _Usage(msgspec.Struct):
    """A usage object, with the names of OpenAI's completions, of its Responses API and of Slipway's own endpoints."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    """A response of the Responses API."""

    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response: _Response | None = None


# Responses of this endpoint repeat tools and schemas of their requests, in which anything may be called usage.
RESPONSES = "/v1/responses"
# Most bytes of a body that is read as a whole.
MAX_RESPONSE_BYTES = 1 << 20
_FINAL = ("response.completed", "response.incomplete", "response.failed")
_RESPONSE = msgspec.json.Decoder(_Response)
_EVENT = msgspec.json.Decoder(_Event)
_OBJECT = msgspec.json.Decoder(_Usage)
# A larger number is read as this one. `bounds` has what a request can cause, which is less.
MAX_TOKENS = 1 << 40
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Usage(msgspec.Struct, frozen=True):
    """`cached_tokens` are part of `input_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


def last_usage(data: bytes) -> Usage | None:
    """The last usage object in these bytes: of a whole response, the end of one, or events of a stream."""
    at = len(data)
    while (at := data.rfind(b'"usage"', 0, at)) >= 0:
        if found := _USAGE.match(data, at):
            return _decode(_object_at(data, found.end()))
    return None


def usage_of_response(body: bytes) -> Usage | None:
    """The usage in a whole response of the Responses API; None for a part of one."""
    try:
        found = _RESPONSE.decode(body).usage
    except _UNREADABLE:
        return None
    return _counted(found) if found else None


def usage_of_final_event(events: bytes) -> Usage | None:
    """The usage in the event that ends a stream of the Responses API; None if it is not among these whole events."""
    if b'"usage"' not in events:
        return None
    for line in reversed(events.splitlines()):
        if not line.startswith(b"data:"):
            continue
        try:
            event = _EVENT.decode(line[5:])
        except _UNREADABLE:
            continue
        if event.type in _FINAL and event.response and event.response.usage:
            return _counted(event.response.usage)
    return None


def _object_at(data: bytes, begin: int) -> bytes:
    """The usage object that begins at `begin`, or empty if it is too long. It has no text, so braces end it."""
    end = min(len(data), begin + MAX_USAGE_BYTES)
    if flat := _FLAT.match(data, begin, end):
        return flat[0]
    depth = 0
    for at in range(begin, end):
        if data[at] == 0x7B:
            depth += 1
        elif data[at] == 0x7D:
            depth -= 1
            if depth == 0:
                return data[begin : at + 1]
    return b""


def _decode(text: bytes) -> Usage | None:
    try:
        found = _OBJECT.decode(text)
    except _UNREADABLE:
        return None
    return _counted(found)


def _counted(found: _Usage) -> Usage | None:
    """None without a number of tokens: nothing is reported then."""
    read = _count(found.prompt_tokens, found.input_tokens)
    written = _count(found.completion_tokens, found.output_tokens)
    if read is None and written is None:
        return None
    details = found.prompt_tokens_details or found.input_tokens_details
    cached = _count(details.cached_tokens) if details else 0
    return Usage(read or 0, written or 0, min(cached or 0, read or 0))


def _count(*values: Any) -> int | None:
    """The first one that is a number of tokens; None without one."""
    for value in values:
        if type(value) in (int, float) and value >= 0:  # True is no number of tokens
            return int(min(value, MAX_TOKENS))
    return None


def marked_position(events: bytes) -> int | None:
    """Tokens of a stream up to the last event that its server marked with `: <position>.<check> <tokens>`, or None."""
    begin = 0 if events.startswith(b": ") else -1
    last = events.rfind(b"\n\n: ")
    begin = last + 2 if last >= 0 else begin
    if begin < 0:
        return None
    digits, dot, _ = events[begin + 2 : begin + 12].partition(b".")
    return int(digits) if dot and digits.isdigit() else None


def count_events(events: bytes) -> int:
    """Events with data: about one for each token, where a server neither marks them nor reports its usage."""
    found = events.count(b"\ndata:") + events.startswith(b"data:")
    return found - events.count(_DONE)


def without_usage_event(events: bytes) -> bytes:
    """Whole events without those that hold only the usage, which the client did not request."""
    if b'"choices":[]' not in events and b'"choices": []' not in events:
        return events
    kept = [event for event in events.split(b"\n\n") if not _only_usage(event)]
    return b"\n\n".join(kept)


def _only_usage(event: bytes) -> bool:
    return _USAGE.search(event) is not None and (b'"choices":[]' in event or b'"choices": []' in event)
