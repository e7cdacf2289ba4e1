"""Writes another model name into responses, for clients that sent one (pure)."""

import msgspec
from msgspec import Raw

from . import members
from .json_values import ABSENT, UNREADABLE, is_text

_KEY = b'"model"'
_DATA = b"data:"


class _Response(msgspec.Struct):
    """A whole response or one event. `response`: of the events of the Responses API, which have the model in it."""

    model: Raw = ABSENT
    response: Raw = ABSENT


_DECODER = msgspec.json.Decoder(_Response)


def renamed(body: bytes, name: str) -> bytes:
    """A JSON object with another model name; the same object where it has none, or is no JSON."""
    if _KEY not in body:
        return body
    try:
        found = _DECODER.decode(body)
    except UNREADABLE:
        return body
    if is_text(found.model):
        body = members.with_member(body, b"model", msgspec.json.encode(name), bytes(found.model))
    if len(found.response) > 0 and _KEY in (inner := bytes(found.response)):
        body = members.with_member(body, b"response", renamed(inner, name), inner)
    return body


def renamed_events(events: bytes, name: str) -> bytes:
    """Whole events of a stream with another model name."""
    if _KEY not in events:
        return events
    return b"\n".join(_renamed_line(line, name) for line in events.split(b"\n"))


def _renamed_line(line: bytes, name: str) -> bytes:
    if not line.startswith(_DATA) or _KEY not in line:
        return line
    content = line[len(_DATA) :]
    rest = content.lstrip()
    return b"".join((_DATA, content[: len(content) - len(rest)], renamed(rest, name)))
