"""What an answer says about itself at its end: a failure, no text, text cut short, a loop, broken JSON (pure).

Shapes are OpenAI's, which vLLM and others share, and those of Slipway's own endpoints. An answer in another shape, or
compressed, says nothing: nobody is blamed for what cannot be read.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

ERRORS, EMPTY, TRUNCATED, REPETITION, NON_FINITE, INVALID_JSON, HUNG = KINDS = (
    "errors",
    "empty",
    "truncated",
    "repetition",
    "non_finite",
    "invalid_json",
    "hung",
)
WITHOUT_TEXT = ("/v1/embeddings", "/api/v1/embed")
TAIL_BYTES = 16 << 10
# A loop is text that compresses so well. Whisper takes 2.4 for a loop of speech; but 1 KiB of code or prose reaches
# 3.1, a JSON list of small objects 5.2. At 6, what repeats itself after 200 bytes is found in 1 KiB of text, and what
# does after 40 in 300 bytes.
LOOP_RATIO = 6.0
LOOP_BYTES = 1024
LOOP_MIN_BYTES = 256
# Longer texts are not looked at: others wait meanwhile.
JSON_CHARS = 64 << 10

_DONE = b"[DONE]"
_NOT_THE_SERVERS_FAULT = ("invalid_request_error", "rate_limit_error")
# The client's own `timeout` was over: how long the answer takes is seen by its latency.
DEADLINE_EXCEEDED = "deadline_exceeded"


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
_ANY = msgspec.json.Decoder(msgspec.Raw)  # reads all of a text and makes nothing of it: a tenth of a millisecond
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class _Told:
    """One choice of an answer, put together from its parts."""

    texts: list[str] = field(default_factory=list)  # all that it says: reasoning, content, a refusal
    content: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)  # of its calls of tools, by their place
    acts: bool = False  # it says something that is no text, as calls of tools
    truncated: bool = False

    def hear(self, choice: _Choice) -> None:
        said = choice.message or choice.delta or _Said()
        self.truncated |= choice.finish_reason == "length"
        self.acts |= bool(said.tool_calls or said.function_call) or isinstance(said.content, list)
        self.texts += _strings(choice.text, said.reasoning_content, said.content, said.refusal)
        self.content += _strings(choice.text, said.content)
        for place, piece in _arguments(said):
            self.arguments.setdefault(place, []).append(piece)

    def breaks_json(self, *, asked: bool) -> bool:
        """Whether arguments of a call, or the content where JSON was `asked` for, are none; of what is whole alone."""
        # Who calls a tool may say something beside it, and a refusal or an empty answer is another trouble or none.
        content = [self.content] if asked and not self.acts else []
        return not self.truncated and not all(is_json("".join(text)) for text in (*self.arguments.values(), *content))


def of_whole(body: bytes, *, wants_json: bool = False) -> tuple[str, ...]:
    """Kinds of trouble in an answer that is one JSON object; those of the error object when it is a refusal.

    `wants_json`: the request asked for an answer whose text is JSON.
    """
    if not body.strip():
        return (EMPTY,)
    try:
        return _of_parts([_WHOLE.decode(body)], complete=True, wants_json=wants_json)
    except _UNREADABLE:
        return ()


def of_stream(tail: bytes, *, complete: bool, wants_json: bool = False) -> tuple[str, ...]:
    """The same of the last bytes of server-sent events. `complete`: these are all of them.

    Without all of them no stream is called empty, and none broken JSON.
    """
    lines = tail.splitlines()
    data = [line[5:].strip() for line in (lines if complete else lines[1:]) if line.startswith(b"data:")]
    events = [event for event in data if event != _DONE]
    if not events:
        return (EMPTY,) if complete and (data or not tail.strip()) else ()
    try:
        return _of_parts(_EVENTS.decode(b"[" + b",".join(events) + b"]"), complete=complete, wants_json=wants_json)
    except _UNREADABLE:
        return ()


def _of_parts(parts: list[_Part], *, complete: bool, wants_json: bool) -> tuple[str, ...]:
    for part in parts:
        if isinstance(part.error, dict) and _is_servers_fault(part.error):
            return (ERRORS, NON_FINITE) if part.error.get("code") == NON_FINITE else (ERRORS,)
    if not any(part.known for part in parts) or any(part.error for part in parts):
        return ()
    told = _read(parts).values()
    texts = ["".join(one.texts) for one in told]
    found = (
        (EMPTY, complete and not any(texts) and not any(one.acts for one in told)),
        (TRUNCATED, any(one.truncated for one in told)),
        (REPETITION, any(map(loops, texts))),
        (INVALID_JSON, complete and any(one.breaks_json(asked=wants_json) for one in told)),
    )
    return tuple(kind for kind, holds in found if holds)


def _is_servers_fault(error: Mapping[str, Any]) -> bool:
    return error.get("type") not in _NOT_THE_SERVERS_FAULT and error.get("code") != DEADLINE_EXCEEDED


def is_deadline(body: bytes) -> bool:
    """Whether an error says that the deadline which the client set is over."""
    try:
        error = _WHOLE.decode(body).error
    except _UNREADABLE:
        return False
    return isinstance(error, dict) and error.get("code") == DEADLINE_EXCEEDED


def _read(parts: list[_Part]) -> dict[int, _Told]:
    """The choices of an answer by index."""
    told: dict[int, _Told] = {0: _Told()}
    for part in parts:
        alone = _Choice(text=part.text, finish_reason=part.finish_reason)
        token = _Choice(text=part.token)
        for choice in (alone, token, *(part.choices or ())):
            index = choice.index if isinstance(choice.index, int) else 0
            told.setdefault(index, _Told()).hear(choice)
    return told


def _strings(*said: object) -> Iterator[str]:
    return (value for value in said if isinstance(value, str))


def _arguments(said: _Said) -> Iterator[tuple[int, str]]:
    """Pieces of the arguments of calls of tools, with the place of the call; the former `function_call` comes last."""
    calls: Iterable[object] = said.tool_calls if isinstance(said.tool_calls, list) else ()
    for place, call in enumerate(calls):
        if isinstance(call, dict) and (piece := _piece(call.get("function"))) is not None:
            index = call.get("index")
            yield index if isinstance(index, int) else place, piece
    if (piece := _piece(said.function_call)) is not None:
        yield -1, piece


def _piece(function: object) -> str | None:
    found = function.get("arguments") if isinstance(function, dict) else None
    return found if isinstance(found, str) else None


def is_json(text: str) -> bool:
    """Whether a text is one JSON value. No text, and one that is too long or too deep to look at, is not blamed."""
    if not text.strip() or len(text) > JSON_CHARS:
        return True
    try:
        _ANY.decode(text)
    except RecursionError:
        return True
    except (msgspec.MsgspecError, ValueError):
        return False
    return True


def loops(text: str) -> bool:
    """Whether the end of a text says the same again and again: its last `LOOP_BYTES` compress `LOOP_RATIO` times."""
    end = text[-LOOP_BYTES:].encode("utf-8", "surrogatepass")[-LOOP_BYTES:]
    return len(end) >= LOOP_MIN_BYTES and len(end) >= LOOP_RATIO * len(zlib.compress(end, 6, wbits=-10))


class Spoken(msgspec.Struct, frozen=True):
    """Pieces of text in a part of an answer, by choice; `ended`: one of them says that it is the last."""

    texts: dict[int, list[str]]
    ended: bool


def spoken_in_whole(body: bytes) -> Spoken | None:
    """What an answer that is one JSON object says; None for an error, a call of a tool, and what cannot be read."""
    try:
        return _spoken([_WHOLE.decode(body)])
    except _UNREADABLE:
        return None


def spoken_in_events(events: bytes) -> Spoken | None:
    """The same of whole events of a stream, of which there may be none."""
    data = [line[5:].strip() for line in events.splitlines() if line.startswith(b"data:")]
    said = [event for event in data if event != _DONE]
    try:
        spoken = _spoken(_EVENTS.decode(b"[" + b",".join(said) + b"]"))
    except _UNREADABLE:
        return None
    return Spoken(spoken.texts, True) if spoken and len(said) < len(data) else spoken


def _spoken(parts: list[_Part]) -> Spoken | None:
    texts: dict[int, list[str]] = {}
    ended = False
    for part in parts:
        alone = _Choice(text=part.text if part.token is None else part.token, finish_reason=part.finish_reason)
        # A stream's last words may be about its usage alone.
        choices = [alone] if part.choices is None and part.known else part.choices or []
        for choice in choices:
            said = choice.message or choice.delta or _Said()
            if said.tool_calls or said.function_call or isinstance(said.content, list):
                return None
            pieces = (choice.text, said.reasoning_content, said.content, said.refusal)
            index = choice.index if isinstance(choice.index, int) else 0
            texts.setdefault(index, []).extend(piece for piece in pieces if isinstance(piece, str))
            ended = ended or isinstance(choice.finish_reason, str)
        if part.error or not part.known:
            return None
    return Spoken(texts, ended)
