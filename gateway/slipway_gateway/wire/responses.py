"""Finds failures in a complete response: an error, no text, truncated text, a loop, broken JSON (pure).

Shapes are those of OpenAI, which vLLM and others share, and of Slipway's own endpoints. A response in another shape,
or a compressed one, counts as good.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .inference import TEXT_PATHS

ERRORS, EMPTY, TRUNCATED, REPETITION, NON_FINITE, INVALID_JSON, HUNG = KINDS = (
    "errors",
    "empty",
    "truncated",
    "repetition",
    "non_finite",
    "invalid_json",
    "hung",
)
WITHOUT_MODEL = ("/tokenize", "/detokenize")
WITHOUT_TEXT = ("/v1/embeddings", "/api/v1/embed", *TEXT_PATHS, *WITHOUT_MODEL)
TAIL_BYTES = 16 << 10
# Text that compresses by this ratio is a loop. Whisper uses 2.4 for a loop of speech; but 1 KiB of code or prose
# reaches 3.1, a JSON list of small objects 5.2. At 6, text that repeats every 200 bytes is found within 1 KiB, and
# text that repeats every 40 bytes within 300 bytes.
LOOP_RATIO = 6.0
LOOP_BYTES = 1024
LOOP_MIN_BYTES = 256
# Longer texts are not checked: other requests wait meanwhile.
JSON_CHARS = 64 << 10

_DONE = b"[DONE]"
_NOT_THE_SERVERS_FAULT = ("invalid_request_error", "rate_limit_error")
# The client's own `timeout` was over: the latency metrics show how long the response took.
DEADLINE_EXCEEDED = "deadline_exceeded"


class _Message(msgspec.Struct):
    """`message` or `delta` of a chat's choice."""

    content: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    index: Any = 0
    text: Any = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: Any = None

    @property
    def is_text_alone(self) -> bool:
        """Whether it is a chat's message with no more than text that was not cut."""
        found = self.message
        return (
            found is not None
            and self.finish_reason != "length"
            and self.text is None
            and found.reasoning_content is None
            and found.refusal is None
            and not (found.tool_calls or found.function_call)
        )


class _Part(msgspec.Struct):
    """A whole response, or one event of a stream. From `object` on: of the Responses API."""

    choices: list[_Choice] | None = None
    text: Any = None
    token: Any = None
    finish_reason: Any = None
    error: Any = None
    code: Any = None  # of an error that is a text, in the Open Inference Protocol
    object: Any = None
    type: Any = None
    output: Any = None
    incomplete_details: Any = None
    response: Any = None

    @property
    def known(self) -> bool:
        message = (self.text, self.token, self.finish_reason)
        return self.choices is not None or any(isinstance(value, str) for value in message)


def _as_chat(part: _Part) -> _Part:
    """A response of the Responses API, or an event of its stream, as one of chat completions; any other one as it is.

    Of a stream the last event has all that the others had.
    """
    if isinstance(part.type, str) and part.type.startswith("response."):
        found = part.response if isinstance(part.response, dict) else {}
        ended = found.get("status") in _ENDED
        return _of_items(found.get("output"), found.get("incomplete_details"), found.get("error")) if ended else _PASSED
    if part.object == "response":
        return _of_items(part.output, part.incomplete_details, part.error)
    return part


def _of_items(output: object, incomplete: object, error: object) -> _Part:
    if error:
        return _Part(error=error)
    message, texts, calls = _Message(), dict[str, list[str]](), list[object]()
    for item in output if isinstance(output, list) else ():
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call":
            calls.append({"function": item})
        elif kind in ("message", "reasoning") and isinstance(item.get("content"), list):
            parts = (part for part in item["content"] if isinstance(part, dict))
            texts.setdefault(kind, []).extend(_strings(*(part.get("text", part.get("refusal")) for part in parts)))
        elif kind not in ("message", "reasoning"):
            calls.append(item)  # of a tool that the server has itself
    message.content = "".join(texts.get("message", ()))
    message.reasoning_content = "".join(texts.get("reasoning", ()))
    message.tool_calls = calls or None
    cut = isinstance(incomplete, dict) and incomplete.get("reason") == "max_output_tokens"
    return _Part(choices=[_Choice(message=message, finish_reason="length" if cut else "stop")])


_PASSED = _Part(choices=[])
_ENDED = ("completed", "incomplete", "failed")
_WHOLE = msgspec.json.Decoder(_Part)
_EVENTS = msgspec.json.Decoder(list[_Part])
_ANY = msgspec.json.Decoder(msgspec.Raw)  # checks a whole text and makes no objects: a tenth of a millisecond
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class _ChoiceText:
    """One choice of a response, joined from its parts."""

    texts: list[str] = field(default_factory=list)  # reasoning, content and refusal
    content: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)  # of tool calls, by index
    calls_tools: bool = False  # it has tool calls or other content that is no text
    truncated: bool = False

    def add(self, choice: _Choice) -> None:
        message = choice.message or choice.delta or _Message()
        content = message.content
        if choice.finish_reason == "length":
            self.truncated = True
        for text in (choice.text, message.reasoning_content, content, message.refusal):
            if isinstance(text, str):
                self.texts.append(text)
        for text in (choice.text, content):
            if isinstance(text, str):
                self.content.append(text)
        if isinstance(content, list):
            self.calls_tools = True
        if not (message.tool_calls or message.function_call):
            return
        self.calls_tools = True
        for place, piece in _arguments(message):
            self.arguments.setdefault(place, []).append(piece)

    def breaks_json(self, *, wants_json: bool) -> bool:
        """Whether tool call arguments, or the content if JSON was requested, are no JSON. False for truncated text."""
        if self.truncated:
            return False
        # Beside a tool call any content is fine; a refusal or an empty response is another failure or none.
        if wants_json and not self.calls_tools and not is_json("".join(self.content)):
            return True
        return bool(self.arguments) and not all(is_json("".join(text)) for text in self.arguments.values())


def find_failures(body: bytes, *, wants_json: bool = False) -> tuple[str, ...]:
    """Kinds of failure in a response that is one JSON object, which may be an error object.

    `wants_json`: the request has a JSON response format.
    """
    if not body or body.isspace():
        return (EMPTY,)
    try:
        return _find_failures([_as_chat(_WHOLE.decode(body))], complete=True, wants_json=wants_json)
    except _UNREADABLE:
        return ()


def find_failures_in_stream(tail: bytes, *, complete: bool, wants_json: bool = False) -> tuple[str, ...]:
    """Kinds of failure in a stream of server-sent events, by its last bytes. `complete`: these are all of its bytes.

    Unless they are, no stream counts as empty or as broken JSON.
    """
    lines = tail.splitlines()
    data = [line[5:].strip() for line in (lines if complete else lines[1:]) if line.startswith(b"data:")]
    events = [event for event in data if event != _DONE]
    if not events:
        return (EMPTY,) if complete and (data or not tail.strip()) else ()
    try:
        parts = list(map(_as_chat, _EVENTS.decode(b"[" + b",".join(events) + b"]")))
        return _find_failures(parts, complete=complete, wants_json=wants_json)
    except _UNREADABLE:
        return ()


def _text_alone(part: _Part) -> str | None:
    """The text of a response that is one finished choice with text and nothing else; None for any other one."""
    if part.choices is None or len(part.choices) != 1 or not part.choices[0].is_text_alone or part.error:
        return None
    if part.text is not None or part.token is not None or part.finish_reason is not None:
        return None
    message = part.choices[0].message
    return message.content if message and isinstance(message.content, str) else None


def _find_failures(parts: list[_Part], *, complete: bool, wants_json: bool) -> tuple[str, ...]:
    if complete and not wants_json and len(parts) == 1 and (sound := _text_alone(parts[0])):
        return (REPETITION,) if loops(sound) else ()  # most responses
    known = failed = False
    for part in parts:
        if isinstance(part.error, dict) and _is_servers_fault(part.error):
            return (ERRORS, NON_FINITE) if part.error.get("code") == NON_FINITE else (ERRORS,)
        known, failed = known or part.known, failed or bool(part.error)
    if failed or not known:
        return ()
    empty, truncated, repeats, breaks_json = True, False, False, False
    for one in _read(parts).values():
        text = "".join(one.texts)
        empty = empty and not text and not one.calls_tools
        truncated = truncated or one.truncated
        repeats = repeats or loops(text)
        breaks_json = breaks_json or one.breaks_json(wants_json=wants_json)
    found = ((EMPTY, complete and empty), (TRUNCATED, truncated), (REPETITION, repeats))
    return tuple(kind for kind, holds in (*found, (INVALID_JSON, complete and breaks_json)) if holds)


def _is_servers_fault(error: Mapping[str, Any]) -> bool:
    return error.get("type") not in _NOT_THE_SERVERS_FAULT and error.get("code") != DEADLINE_EXCEEDED


def is_servers_failure(status: int, body: bytes) -> bool:
    """Whether a response counts against its server: for the judge, for ejection and for the route's service.

    A status of 5xx does, except the 504 of a request whose own `timeout` is over: that is the client's doing.
    """
    return status >= 500 and not (status == 504 and is_deadline_exceeded(body))


def is_deadline_exceeded(body: bytes) -> bool:
    """Whether an error means that the deadline of the client's own `timeout` is over."""
    try:
        found = _WHOLE.decode(body)
    except _UNREADABLE:
        return False
    code = found.error.get("code") if isinstance(found.error, dict) else found.code
    return bool(code == DEADLINE_EXCEEDED)


def _read(parts: list[_Part]) -> dict[int, _ChoiceText]:
    """The choices of a response by index."""
    choices_by_index: dict[int, _ChoiceText] = {0: _ChoiceText()}
    for part in parts:
        choices = part.choices or []
        if part.text is not None or part.token is not None or part.finish_reason is not None:
            alone = _Choice(text=part.text, finish_reason=part.finish_reason)
            choices = [alone, _Choice(text=part.token), *choices]
        for choice in choices:
            index = choice.index if isinstance(choice.index, int) else 0
            found = choices_by_index.get(index)
            if found is None:
                found = choices_by_index[index] = _ChoiceText()
            found.add(choice)
    return choices_by_index


def _strings(*message: object) -> Iterator[str]:
    return (value for value in message if isinstance(value, str))


def _arguments(message: _Message) -> Iterator[tuple[int, str]]:
    """Pieces of the arguments of calls of tools, with the place of the call; the former `function_call` comes last."""
    calls: Iterable[object] = message.tool_calls if isinstance(message.tool_calls, list) else ()
    for place, call in enumerate(calls):
        if isinstance(call, dict) and (piece := _piece(call.get("function"))) is not None:
            index = call.get("index")
            yield index if isinstance(index, int) else place, piece
    if (piece := _piece(message.function_call)) is not None:
        yield -1, piece


def _piece(function: object) -> str | None:
    found = function.get("arguments") if isinstance(function, dict) else None
    return found if isinstance(found, str) else None


def is_json(text: str) -> bool:
    """Whether a text is one JSON value. An empty text, or one that is too long or deep to check, counts as JSON."""
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
    """Whether the end of a text repeats itself: its last `LOOP_BYTES` compress `LOOP_RATIO` times."""
    if 4 * len(text) < LOOP_MIN_BYTES:
        return False
    end = text[-LOOP_BYTES:].encode("utf-8", "surrogatepass")[-LOOP_BYTES:]
    return len(end) >= LOOP_MIN_BYTES and len(end) >= LOOP_RATIO * len(zlib.compress(end, 6, wbits=-10))


class TextPieces(msgspec.Struct, frozen=True):
    """Pieces of text in a part of a response, by choice. `ended`: a choice has a finish reason."""

    texts: dict[int, list[str]]
    ended: bool


def read_text(body: bytes) -> TextPieces | None:
    """The text of a response that is one JSON object; None for an error, a tool call, or an unreadable response."""
    try:
        return _collect_text([_as_chat(_WHOLE.decode(body))])
    except _UNREADABLE:
        return None


def read_text_of_events(events: bytes) -> TextPieces | None:
    """The same for whole events of a stream, possibly none."""
    data = [line[5:].strip() for line in events.splitlines() if line.startswith(b"data:")]
    message = [event for event in data if event != _DONE]
    try:
        pieces_read = _collect_text(list(map(_as_chat, _EVENTS.decode(b"[" + b",".join(message) + b"]"))))
    except _UNREADABLE:
        return None
    return TextPieces(pieces_read.texts, True) if pieces_read and len(message) < len(data) else pieces_read


def _collect_text(parts: list[_Part]) -> TextPieces | None:
    texts: dict[int, list[str]] = {}
    ended = False
    for part in parts:
        alone = _Choice(text=part.text if part.token is None else part.token, finish_reason=part.finish_reason)
        # The last event of a stream may hold only the usage.
        choices = [alone] if part.choices is None and part.known else part.choices or []
        for choice in choices:
            message = choice.message or choice.delta or _Message()
            if message.tool_calls or message.function_call or isinstance(message.content, list):
                return None
            pieces = (choice.text, message.reasoning_content, message.content, message.refusal)
            index = choice.index if isinstance(choice.index, int) else 0
            texts.setdefault(index, []).extend(piece for piece in pieces if isinstance(piece, str))
            ended = ended or isinstance(choice.finish_reason, str)
        if part.error or not part.known:
            return None
    return TextPieces(texts, ended)
