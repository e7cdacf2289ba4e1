"""What an answer says about itself at its end: a failure, no text, text cut short, a loop (pure).

Shapes are OpenAI's, which vLLM and others share, and those of Slipway's own endpoints. An answer in another shape, or
compressed, says nothing: nobody is blamed for what cannot be read.
"""

import zlib
from collections.abc import Iterable
from typing import Any

import msgspec

ERRORS, EMPTY, TRUNCATED, REPETITION, NON_FINITE = KINDS = ("errors", "empty", "truncated", "repetition", "non_finite")
WITHOUT_TEXT = ("/v1/embeddings", "/api/v1/embed")
TAIL_BYTES = 16 << 10
# A loop is text that compresses so well. Whisper takes 2.4 for a loop of speech; but 1 KiB of code or prose reaches
# 3.1, a JSON list of small objects 5.2. At 6, what repeats itself after 200 bytes is found in 1 KiB of text, and what
# does after 40 in 300 bytes.
LOOP_RATIO = 6.0
LOOP_BYTES = 1024
LOOP_MIN_BYTES = 256

_DONE = b"[DONE]"
_NOT_THE_SERVERS_FAULT = ("invalid_request_error", "rate_limit_error")


class _Said(msgspec.Struct):
    """`message` or `delta` of a chat's choice."""

    content: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    index: Any = 0
    text: Any = None
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: Any = None


class _Part(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    choices: list[_Choice] | None = None
    text: Any = None
    token: Any = None
    finish_reason: Any = None
    error: Any = None

    @property
    def known(self) -> bool:
        said = (self.text, self.token, self.finish_reason)
        return self.choices is not None or any(isinstance(value, str) for value in said)


_WHOLE = msgspec.json.Decoder(_Part)
_EVENTS = msgspec.json.Decoder(list[_Part])
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def of_whole(body: bytes) -> tuple[str, ...]:
    """Kinds of trouble in an answer that is one JSON object; those of the error object when it is a refusal."""
    if not body.strip():
        return (EMPTY,)
    try:
        return _of_parts([_WHOLE.decode(body)], complete=True)
    except _UNREADABLE:
        return ()


def of_stream(tail: bytes, *, complete: bool) -> tuple[str, ...]:
    """The same of the last bytes of server-sent events. `complete`: these are all of them.

    Without all of them no stream is called empty.
    """
    lines = tail.splitlines()
    data = [line[5:].strip() for line in (lines if complete else lines[1:]) if line.startswith(b"data:")]
    events = [event for event in data if event != _DONE]
    if not events:
        return (EMPTY,) if complete and (data or not tail.strip()) else ()
    try:
        return _of_parts(_EVENTS.decode(b"[" + b",".join(events) + b"]"), complete=complete)
    except _UNREADABLE:
        return ()


def _of_parts(parts: list[_Part], *, complete: bool) -> tuple[str, ...]:
    for part in parts:
        if isinstance(part.error, dict) and part.error.get("type") not in _NOT_THE_SERVERS_FAULT:
            return (ERRORS, NON_FINITE) if part.error.get("code") == NON_FINITE else (ERRORS,)
    if not any(part.known for part in parts) or any(part.error for part in parts):
        return ()
    texts, acts, truncated = _read(parts)
    empty = complete and not acts and not any(texts)
    found = ((EMPTY, empty), (TRUNCATED, truncated), (REPETITION, any(map(loops, texts))))
    return tuple(kind for kind, holds in found if holds)


def _read(parts: list[_Part]) -> tuple[list[str], bool, bool]:
    """Text of each choice; whether something was said that is no text, as calls of tools; whether one was cut short."""
    texts: dict[int, list[str]] = {}
    acts = truncated = False
    for part in parts:
        truncated |= part.finish_reason == "length"
        _add(texts, 0, (part.text, part.token))
        for choice in part.choices or ():
            said = choice.message or choice.delta or _Said()
            truncated |= choice.finish_reason == "length"
            acts |= bool(said.tool_calls or said.function_call) or isinstance(said.content, list)
            index = choice.index if isinstance(choice.index, int) else 0
            _add(texts, index, (choice.text, said.reasoning_content, said.content, said.refusal))
    return ["".join(text) for text in texts.values()], acts, truncated


def _add(texts: dict[int, list[str]], index: int, said: Iterable[object]) -> None:
    texts.setdefault(index, []).extend(value for value in said if isinstance(value, str))


def loops(text: str) -> bool:
    """Whether the end of a text says the same again and again: its last `LOOP_BYTES` compress `LOOP_RATIO` times."""
    end = text[-LOOP_BYTES:].encode("utf-8", "surrogatepass")[-LOOP_BYTES:]
    return len(end) >= LOOP_MIN_BYTES and len(end) >= LOOP_RATIO * len(zlib.compress(end, 6, wbits=-10))
