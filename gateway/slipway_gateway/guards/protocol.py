"""The protocol of webhooks: one JSON object to the guard, and one back (pure). docs/guards.md describes it.

What comes back is a stranger's: its size is bounded before it is read here, its types are strict, and its spans are
compared with the texts that the guard got.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from ..wire.json_values import UNREADABLE
from .verdict import ALLOWED, BLOCKED, DEFAULT_REPLACEMENT, REDACTED, Span, Verdict

VERSION = 1
MAX_SPANS, MAX_REPLACEMENT, MAX_REASON = 1024, 256, 200


class GuardFailed(Exception):
    """A guard decided nothing. The message says why, in words for a log and for the client of the request."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a guard learns of a request beside its texts. `revision` is empty before the model."""

    stage: str
    model: str
    revision: str = ""
    tenant: str = ""
    request_id: str = ""


class _Text(msgspec.Struct, frozen=True):
    path: str
    text: str


class _Call(msgspec.Struct, frozen=True, rename="camel"):
    version: int
    guard: str
    stage: str
    model: str
    revision: str
    tenant: str
    request_id: str
    texts: list[_Text]


class _Span(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    start: int
    end: int
    replacement: str = DEFAULT_REPLACEMENT


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    action: str
    reason: str = ""
    spans: list[_Span] = []
    version: Annotated[int, Meta(ge=0, le=9999)] = VERSION  # it is part of a message


_RESULT = msgspec.json.Decoder(_Result)


def written(guard: str, subject: Subject, texts: Mapping[str, str]) -> bytes:
    """The body of a call. `texts`: by path.

    Raises:
        GuardFailed: a text has characters that JSON in UTF-8 cannot carry.
    """
    about = (subject.stage, subject.model, subject.revision, subject.tenant, subject.request_id)
    try:
        return msgspec.json.encode(_Call(VERSION, guard, *about, [_Text(path, text) for path, text in texts.items()]))
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise GuardFailed("a text has characters that cannot be sent") from None


def verdict_of(response: bytes, texts: Mapping[str, str]) -> Verdict:
    """The decision in a response.

    Raises:
        GuardFailed: it is not as the protocol has it, or its spans do not fit the texts.
    """
    try:
        result = _RESULT.decode(response)
    except UNREADABLE:
        raise GuardFailed("its response is not as its protocol has it") from None
    if result.version != VERSION:
        raise GuardFailed(f"its response has version {result.version}, and gateways know version {VERSION}")
    if result.action not in (ALLOWED, BLOCKED, REDACTED):
        raise GuardFailed("its response has an unknown action")
    if (result.action == REDACTED) != bool(result.spans):
        raise GuardFailed("its response has spans without the action redact, or the action without spans")
    return Verdict(result.action, sanitized(result.reason), _checked(result.spans, texts))


def _checked(spans: Sequence[_Span], texts: Mapping[str, str]) -> dict[str, tuple[Span, ...]]:
    """Spans by path, in order. Raises GuardFailed."""
    if len(spans) > MAX_SPANS:
        raise GuardFailed(f"its response has more than {MAX_SPANS} spans")
    found: dict[str, list[Span]] = {}
    for span in spans:
        text = texts.get(span.path)
        if text is None or not 0 <= span.start < span.end <= len(text):
            raise GuardFailed("its response has a span outside of the texts")
        if len(span.replacement) > MAX_REPLACEMENT or not _is_sendable(span.replacement):
            raise GuardFailed("its response has a replacement that is too long or cannot be sent")
        found.setdefault(span.path, []).append(Span(span.start, span.end, span.replacement))
    return {path: _in_order(listed) for path, listed in found.items()}


def _in_order(spans: list[Span]) -> tuple[Span, ...]:
    spans.sort(key=lambda one: one.start)
    if any(after.start < before.end for before, after in pairwise(spans)):
        raise GuardFailed("its response has spans that overlap")
    return tuple(spans)


def _is_sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sanitized(reason: str) -> str:
    """A guard's reason as clients and logs may have it: printable characters on one line, and few of them."""
    line = " ".join("".join(char if char.isprintable() else " " for char in reason[: 4 * MAX_REASON]).split())
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"
