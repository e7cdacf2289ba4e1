"""The most tokens that a request can cause, whatever its server reports (pure)."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ..wire.inference import TEXT_PATHS
from ..wire.request_fields import RequestFields
from .estimate import output_limit, repeated_bytes
from .usage import RESPONSES, Usage

# What a server adds to the text that it gets: a system prompt of its own, descriptions of tools.
ADDED_TOKENS = 8192
# What a template adds around each text of the request.
TEMPLATE_TOKENS = 128
# Content that the body only refers to: an image, a video, a file, the earlier turns of a conversation.
REFERENCE_TOKENS = 1 << 17
# Reasoning that the response does not show, of each choice.
HIDDEN_TOKENS = 1 << 16

# Where text and references are counted: a longer body allows more tokens than any context takes, by its bytes alone.
_COUNTED_BYTES = 256 << 10
# No encoder of JSON writes a letter as an escape, so one may hide the name of a field.
_REFERENCE = re.compile(rb'"(?:input_)?(?:image|video|audio|file)[a-z_]*"\s*:|\\u00[4-7]')
_MAX_TIMES, _MAX_DIGITS = 1 << 16, 6


class _Repeats(msgspec.Struct):
    """How often a request is computed."""

    n: msgspec.Raw = msgspec.Raw()
    best_of: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


_REPEATS = msgspec.json.Decoder(_Repeats)


class UsageBound:
    """Bounds the usage of one request. No token is shorter than a byte, so the body bounds its prompt and the response
    what was generated; beyond that there is room for what servers add and hide.

    What takes longer to count is counted only when a report is above what the bytes alone allow.
    """

    __slots__ = ("_body", "_input", "_limit", "_refers", "_repeated", "_times")

    def __init__(
        self,
        body: bytes,
        output_limits: Iterable[Any] = (),
        *,
        repeated_bytes: int = 0,
        refers: bool = False,
    ) -> None:
        """`output_limits`: the request's own limits of output tokens; values that are no numbers are ignored.

        `repeated_bytes`: of a text that the model computes several times. `refers`: the server may know earlier turns.
        """
        self._body, self._repeated, self._refers = body, repeated_bytes, refers
        self._limit = max((limit for limit in output_limits if type(limit) is int and limit > 0), default=None)
        self._input = self._times = 0

    def clamp(self, usage: Usage, relayed_bytes: int) -> Usage:
        """The part of a usage that the request can have caused. `relayed_bytes`: of the response so far."""
        if usage.input_tokens <= len(self._body) and usage.output_tokens <= min(self._limit or 1 << 30, relayed_bytes):
            return usage
        input_tokens = min(usage.input_tokens, self._input_tokens())
        output_tokens = min(usage.output_tokens, self._output_tokens(relayed_bytes))
        if (input_tokens, output_tokens) == (usage.input_tokens, usage.output_tokens):
            return usage
        return Usage(input_tokens, output_tokens, min(usage.cached_tokens, input_tokens))

    def _input_tokens(self) -> int:
        if not self._input:
            begin = self._body[:_COUNTED_BYTES]
            texts, references = begin.count(b'"') // 2, len(_REFERENCE.findall(begin)) + self._refers
            added = ADDED_TOKENS + TEMPLATE_TOKENS * texts + REFERENCE_TOKENS * references
            self._input = len(self._body) + self._repeated + added
        return self._input

    def _output_tokens(self, relayed_bytes: int) -> int:
        self._times = self._times or _times(self._body)
        shown = relayed_bytes + HIDDEN_TOKENS * self._times
        return shown if self._limit is None else min(shown, self._limit * self._times)


def bound_of(path: str, body: bytes, fields: RequestFields) -> UsageBound:
    """The bound of a request. `body`: as its server gets it. `fields`: as the client sent them."""
    repeated = repeated_bytes(fields) if path in TEXT_PATHS else 0
    return UsageBound(body, (output_limit(fields, path),), repeated_bytes=repeated, refers=path == RESPONSES)


def _times(body: bytes) -> int:
    """How many texts a request generates at most: choices of each prompt."""
    try:
        found = _REPEATS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 1
    return min(_MAX_TIMES, max(_count(found.n), _count(found.best_of)) * _prompts(bytes(found.prompt)))


def _prompts(prompt: bytes) -> int:
    """Prompts in a list of texts, or of lists of tokens, at most: quotation marks in a text count too."""
    if not prompt.startswith(b"["):
        return 1
    begin = prompt[1:64].lstrip()[:1]
    count = {b'"': prompt.count(b'"') // 2, b"[": prompt.count(b"[") - 1}
    return max(1, count.get(begin, 1))


def _count(value: msgspec.Raw) -> int:
    text = bytes(value)
    return max(1, int(text)) if text.isdigit() and len(text) <= _MAX_DIGITS else 1
