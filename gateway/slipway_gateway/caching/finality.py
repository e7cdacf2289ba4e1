"""Whether a response is whole and as its model wrote it (pure): one that is cut, vetoed or an error is never kept."""

from typing import Any

import msgspec

from ..wire.json_values import UNREADABLE
from ..wire.responses import is_text_path

# `length` is the client's own limit. A filter's veto, an abort and anything that is not known are no end of a text.
_ENDS = frozenset({"stop", "length", "tool_calls", "function_call"})
_COMPLETED = ("response.completed",)


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None


class _Status(msgspec.Struct):
    status: str | None = None
    error: Any = None


class _Part(msgspec.Struct):
    """A whole response, or an event of a stream, of any API of texts."""

    error: Any = None
    type: str | None = None
    choices: list[_Choice] | None = None
    text: str | None = None
    token: str | None = None
    finish_reason: str | None = None
    status: str | None = None
    object: str | None = None
    response: _Status | None = None


class _Error(msgspec.Struct):
    error: Any = None


_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")  # of a whole event


_PART, _EVENTS = msgspec.json.Decoder(_Part), msgspec.json.Decoder(list[_Part])
_ERROR = msgspec.json.Decoder(_Error | list)


def is_final(path: str, body: bytes, *, is_json: bool) -> bool:
    """Whether a whole response with status 200 is final. `is_json`: by its content type."""
    try:
        if not is_text_path(path):
            return bool(body) and not (is_json and _has_error(body))
        part = _PART.decode(body)
    except UNREADABLE:
        return False
    if part.error is not None:
        return False
    if part.object == "response":
        return part.status == "completed"
    if part.choices is not None:
        return bool(part.choices) and all(choice.finish_reason in _ENDS for choice in part.choices)
    # Slipway's own endpoints; /api/v1/generate has no reason.
    return part.text is not None and (part.finish_reason is None or part.finish_reason in _ENDS)


def is_final_stream(events: bytes) -> bool:
    """Whether a stream of server-sent events with status 200 is final, by all of its events."""
    lines = [line[5:].strip() for line in events.splitlines() if line.startswith(b"data:")]
    done = bool(lines) and lines[-1] == b"[DONE]"
    try:
        parts = _EVENTS.decode(b"[" + b",".join(lines[:-1] if done else lines) + b"]")
    except UNREADABLE:
        return False
    if not parts or not events.endswith(_EVENT_ENDS) or any(_is_error(part) for part in parts):
        return False
    last = parts[-1]
    if last.type in _COMPLETED:
        return last.response is not None and last.response.status == "completed"
    if last.type == "done":
        return last.finish_reason in _ENDS
    return done and _all_choices_ended(parts)


def _has_error(body: bytes) -> bool:
    """Whether a JSON body is an error object. Rerankers may answer with a list."""
    found = _ERROR.decode(body)
    return isinstance(found, _Error) and found.error is not None


def _is_error(part: _Part) -> bool:
    return part.error is not None or part.type == "error" or (part.response is not None and bool(part.response.error))


def _all_choices_ended(parts: list[_Part]) -> bool:
    begun, ended = set[int](), set[int]()
    for part in parts:
        for choice in part.choices or ():
            begun.add(choice.index)
            if choice.finish_reason is not None:
                if choice.finish_reason not in _ENDS:
                    return False
                ended.add(choice.index)
    if not begun:  # of /api/v1/generate, whose events have tokens alone
        return all(part.token is not None for part in parts)
    return begun == ended
