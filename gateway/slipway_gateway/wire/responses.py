"""Finds failures in a complete response: an error, no text, truncated text, a loop, broken JSON (pure).

Shapes are those of OpenAI, which vLLM and others share, and of Slipway's own endpoints. A response in another shape,
or a compressed one, counts as good.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from .inference import TEXT_PATHS, is_predict
from .json_values import (
    ABSENT,
    MAX_ITEMS,
    UNREADABLE,
    count_items,
    does_nothing,
    first_items,
    integer_of,
    is_list,
    is_null,
    is_object,
    is_text,
)

ERRORS, EMPTY, TRUNCATED, REPETITION, NON_FINITE, INVALID_JSON, HUNG, BLOCKED, REDACTED = KINDS = (
    "errors",
    "empty",
    "truncated",
    "repetition",
    "non_finite",
    "invalid_json",
    "hung",
    "blocked",  # by a guard, as the next one
    "redacted",
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

    content: Raw = ABSENT  # a text, or a list of parts
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT

    @property
    def calls(self) -> bool:
        """Whether it has calls of tools."""
        if self.tool_calls is ABSENT and self.function_call is ABSENT:
            return False  # most messages
        return not (does_nothing(self.tool_calls) and does_nothing(self.function_call))


_NO_MESSAGE = _Message()
_RESPONSE = b'"response"'


class _Choice(msgspec.Struct):
    index: int | None = None
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None

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
            and not found.calls
        )


class _Part(msgspec.Struct):
    """A whole response, or one event of a stream. From `object` on: of the Responses API."""

    choices: list[_Choice] | None = None
    text: Raw = ABSENT
    token: Raw = ABSENT
    finish_reason: Raw = ABSENT
    error: Raw = ABSENT
    code: Raw = ABSENT  # of an error that is a text, in the Open Inference Protocol
    object: Raw = ABSENT
    type: Raw = ABSENT
    output: Raw = ABSENT
    incomplete_details: Raw = ABSENT
    response: Raw = ABSENT

    @property
    def is_response(self) -> bool:
        """Whether it is a whole response of the Responses API."""
        return len(self.object) == len(_RESPONSE) and bytes(self.object) == _RESPONSE

    @property
    def known(self) -> bool:
        return self.choices is not None or any(map(is_text, (self.text, self.token, self.finish_reason)))


class _Shape(msgspec.Struct):
    choices: Raw = ABSENT


class _Error(msgspec.Struct):
    type: Raw = ABSENT
    code: Raw = ABSENT


class _Refused(msgspec.Struct):
    error: Raw = ABSENT
    code: Raw = ABSENT


class _Responded(msgspec.Struct):
    """A response of the Responses API within an event."""

    status: Raw = ABSENT
    output: Raw = ABSENT
    incomplete_details: Raw = ABSENT
    error: Raw = ABSENT


class _Incomplete(msgspec.Struct):
    reason: Raw = ABSENT


class _Content(msgspec.Struct):
    text: Raw = ABSENT
    refusal: Raw = ABSENT


class _Item(msgspec.Struct):
    """An item of the output of the Responses API."""

    type: Raw = ABSENT
    content: Raw = ABSENT
    arguments: Raw = ABSENT


class _Function(msgspec.Struct):
    arguments: Raw = ABSENT


class _Call(msgspec.Struct):
    index: Raw = ABSENT
    function: Raw = ABSENT


_ENDED = ("completed", "incomplete", "failed")
_WHOLE = msgspec.json.Decoder(_Part)
_EVENTS = msgspec.json.Decoder(list[_Part])
_SHAPE, _ERROR = msgspec.json.Decoder(_Shape), msgspec.json.Decoder(_Error)
_REFUSED = msgspec.json.Decoder(_Refused)
_RESPONDED, _INCOMPLETE = msgspec.json.Decoder(_Responded), msgspec.json.Decoder(_Incomplete)
_ITEM, _CONTENT = msgspec.json.Decoder(_Item), msgspec.json.Decoder(_Content)
_CALL, _FUNCTION = msgspec.json.Decoder(_Call), msgspec.json.Decoder(_Function)
_STRING = msgspec.json.Decoder(str)
_ANY = msgspec.json.Decoder(Raw)  # checks a whole text and makes no objects: a tenth of a millisecond
# The choices of a longer response are counted before they become objects; those of a shorter one are few.
_SHORT_BYTES = 64 << 10
_BATCH_BYTES = 32 << 10  # of events that are read at once


def _decode_whole(body: bytes) -> _Part:
    """A whole response. Raises one of UNREADABLE, or ValueError where it has too many choices."""
    if len(body) > _SHORT_BYTES and count_items(_SHAPE.decode(body).choices) > MAX_ITEMS:
        raise msgspec.ValidationError(f"more than {MAX_ITEMS} choices")
    return _WHOLE.decode(body)


def _decode_events(events: list[bytes]) -> list[_Part]:
    return _EVENTS.decode(b"[" + b",".join(events) + b"]")


def _string(value: Raw) -> str | None:
    """A text of any length; None for a value of another type. Raises one of UNREADABLE: it is no text."""
    return _STRING.decode(value) if is_text(value) else None


@dataclass(slots=True)
class _ChoiceText:
    """One choice of a response, joined from its parts."""

    texts: list[str] = field(default_factory=list)  # reasoning, content and refusal
    content: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)  # of tool calls, by index
    calls_tools: bool = False  # it has tool calls or other content that is no text
    truncated: bool = False
    refused: bool = False  # the model refuses to answer, in words
    ended: bool = False  # it has a finish reason

    def add(self, choice: _Choice) -> None:
        """Adds a part. It runs for every event of a tail, so it reads only what is there."""
        message = choice.message or choice.delta or _NO_MESSAGE
        if choice.finish_reason is not None:
            self.ended = True
            self.truncated |= choice.finish_reason == "length"
        self.refused |= bool(message.refusal)
        content = _string(message.content)
        if content is None and is_list(message.content):
            self.calls_tools = True
        for text in (choice.text, message.reasoning_content, content, message.refusal):
            if text is not None:
                self.texts.append(text)
        for text in (choice.text, content):
            if text is not None:
                self.content.append(text)
        if message.calls:
            self.calls_tools = True
            for place, piece in _arguments(message):
                self.arguments.setdefault(place, []).append(piece)

    def add_items(self, output: Raw, incomplete: Raw) -> None:
        """Adds the output of the Responses API. Of a stream the last event has all that the others had."""
        reasoning, content = list[str](), list[str]()
        for place, value in enumerate(first_items(output)):
            item = _ITEM.decode(value) if is_object(value) else _Item()
            kind = _string(item.type)
            if kind in ("message", "reasoning"):
                for text, refuses in _content_of(item):
                    self.refused |= refuses
                    (content if kind == "message" else reasoning).append(text)
                continue
            self.calls_tools = True  # also a tool that the server has itself
            if kind == "function_call" and (arguments := _string(item.arguments)) is not None:
                self.arguments[place] = [arguments]
        self.texts += reasoning + content
        self.content += content
        self.ended = True
        details = _INCOMPLETE.decode(incomplete) if is_object(incomplete) else _Incomplete()
        self.truncated = _string(details.reason) == "max_output_tokens"

    def breaks_json(self, *, wants_json: bool) -> bool:
        """Whether tool call arguments, or the content if JSON was requested, are no JSON. False for truncated text."""
        if self.truncated:
            return False
        # Beside a tool call any content is fine; a refusal or an empty response is another failure or none.
        if wants_json and not (self.calls_tools or self.refused) and not is_json("".join(self.content)):
            return True
        return bool(self.arguments) and not all(is_json("".join(text)) for text in self.arguments.values())


def _content_of(item: _Item) -> Iterator[tuple[str, bool]]:
    """Texts of an item, and whether each is a refusal."""
    for value in first_items(item.content):
        part = _CONTENT.decode(value) if is_object(value) else _Content()
        if (found := _string(part.refusal if part.text is ABSENT else part.text)) is not None:
            yield found, part.text is ABSENT


def _arguments(message: _Message) -> Iterator[tuple[int, str]]:
    """Pieces of the arguments of calls of tools, with the place of the call; the former `function_call` comes last."""
    for place, value in enumerate(first_items(message.tool_calls)):
        call = _CALL.decode(value) if is_object(value) else _Call()
        if (piece := _piece(call.function)) is not None:
            index = integer_of(call.index)
            yield place if index is None else index, piece
    if (piece := _piece(message.function_call)) is not None:
        yield -1, piece


def _piece(function: Raw) -> str | None:
    return _string(_FUNCTION.decode(function).arguments) if is_object(function) else None


@dataclass(slots=True)
class _Read:
    """What the parts of a response have. `known`: parts in a shape that is known. `errors`: of parts with one."""

    choices: dict[int, _ChoiceText] = field(default_factory=dict)
    errors: list[Raw] = field(default_factory=list)
    known: int = 0

    def add(self, part: _Part) -> None:
        error = part.error
        if part.type is not ABSENT and (_string(part.type) or "").startswith("response."):
            found = _RESPONDED.decode(part.response) if is_object(part.response) else _Responded()
            self._add_output(found, has_ended=_string(found.status) in _ENDED)
            return
        if part.is_response:
            self._add_output(_Responded(ABSENT, part.output, part.incomplete_details, error), has_ended=True)
            return
        if error is not ABSENT and not (is_null(error) or (does_nothing(error) and not is_object(error))):
            self.errors.append(error)
        self.known += part.known
        if part.text is not ABSENT or part.token is not ABSENT or part.finish_reason is not ABSENT:
            self._choice(0).add(_Choice(text=_string(part.text), finish_reason=_string(part.finish_reason)))
            self._choice(0).add(_Choice(text=_string(part.token)))
        for choice in part.choices or ():
            self._choice(choice.index or 0).add(choice)

    def _add_output(self, found: _Responded, *, has_ended: bool) -> None:
        """Adds a response of the Responses API. An event of a stream that has not ended it has nothing of its own."""
        if has_ended and not does_nothing(found.error):
            self.errors.append(found.error)
            return
        self.known += 1
        if has_ended:
            self._choice(0).add_items(found.output, found.incomplete_details)

    def _choice(self, place: int) -> _ChoiceText:
        found = self.choices.get(place)
        if found is None:
            found = self.choices[place] = _ChoiceText()
        return found


def _read(parts: list[_Part]) -> _Read:
    found = _Read()
    for part in parts:
        found.add(part)
    return found


def find_failures(body: bytes, *, wants_json: bool = False) -> tuple[str, ...]:
    """Kinds of failure in a response that is one JSON object, which may be an error object.

    `wants_json`: the request has a JSON response format.
    """
    if not body or body.isspace():
        return (EMPTY,)
    try:
        return _find_failures([_decode_whole(body)], complete=True, wants_json=wants_json)
    except UNREADABLE:
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
        return _find_failures(_decode_events(events), complete=complete, wants_json=wants_json)
    except UNREADABLE:
        return ()


class WantedJson:
    """Texts that must be JSON where a request wants that: of each choice that was not cut, calls no tool and refuses
    nothing. A stream is read in parts, so that others run between them.
    """

    def __init__(self, body: bytes, *, streamed: bool) -> None:
        """`streamed`: it is whole events of a stream."""
        self._parts = _batches(body) if streamed else iter(([body],))
        self._streamed = streamed
        self._found, self._is_readable = _Read(), True

    def steps(self) -> Iterator[None]:
        """Reads the response, one part at each step."""
        for part in self._parts:
            try:
                for one in _decode_events(part) if self._streamed else (_decode_whole(part[0]),):
                    self._found.add(one)
            except UNREADABLE:
                self._is_readable = False
                return
            yield

    @property
    def texts(self) -> list[str] | None:
        """The texts, once all is read. None: an error, or a response that cannot be read."""
        read = self._found
        if not self._is_readable or read.errors or not read.known:
            return None
        choices = read.choices.values() or [_ChoiceText()]
        return ["".join(one.content) for one in choices if not (one.truncated or one.calls_tools or one.refused)]


def _batches(body: bytes) -> Iterator[list[bytes]]:
    """The data of events, in parts of some KiB and whole events."""
    batch, size = list[bytes](), 0
    for line in body.splitlines():
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data or data == _DONE:
            continue
        batch.append(data)
        size += len(data)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _text_alone(part: _Part) -> str | None:
    """The text of a response that is one finished choice with text and nothing else; None for any other one."""
    if part.choices is None or len(part.choices) != 1 or not part.choices[0].is_text_alone:
        return None
    if part.type is not ABSENT or part.is_response or not does_nothing(part.error):
        return None
    if not (is_null(part.text) and is_null(part.token) and is_null(part.finish_reason)):
        return None
    message = part.choices[0].message
    return _string(message.content) if message else None


def _find_failures(parts: list[_Part], *, complete: bool, wants_json: bool) -> tuple[str, ...]:
    if complete and not wants_json and len(parts) == 1 and (sound := _text_alone(parts[0])):
        return (REPETITION,) if loops(sound) else ()  # most responses
    read = _read(parts)
    for error in read.errors:
        if is_object(error) and _is_servers_fault(fault := _ERROR.decode(error)):
            return (ERRORS, NON_FINITE) if _string(fault.code) == NON_FINITE else (ERRORS,)
    if read.errors or not read.known:
        return ()
    return _kinds(read.choices.values() or [_ChoiceText()], complete=complete, wants_json=wants_json)


def _kinds(choices: Iterable[_ChoiceText], *, complete: bool, wants_json: bool) -> tuple[str, ...]:
    empty, truncated, repeats, breaks_json = True, False, False, False
    for one in choices:
        text = "".join(one.texts)
        empty = empty and not text and not one.calls_tools
        truncated = truncated or one.truncated
        repeats = repeats or loops(text)
        breaks_json = breaks_json or one.breaks_json(wants_json=wants_json)
    found = ((EMPTY, complete and empty), (TRUNCATED, truncated), (REPETITION, repeats))
    return tuple(kind for kind, holds in (*found, (INVALID_JSON, complete and breaks_json)) if holds)


def _is_servers_fault(error: _Error) -> bool:
    return _string(error.type) not in _NOT_THE_SERVERS_FAULT and _string(error.code) != DEADLINE_EXCEEDED


def is_text_path(path: str) -> bool:
    """Whether responses of a path are text, in which failures are looked for."""
    return path not in WITHOUT_TEXT and not is_predict(path)


def is_servers_failure(status: int, body: bytes) -> bool:
    """Whether a response counts against its server: for the judge, for ejection and for the route's service.

    A status of 5xx does, except the 504 of a request whose own `timeout` is over: that is the client's doing.
    """
    return status >= 500 and not (status == 504 and is_deadline_exceeded(body))


def is_deadline_exceeded(body: bytes) -> bool:
    """Whether an error means that the deadline of the client's own `timeout` is over."""
    try:
        found = _REFUSED.decode(body)
        code = _ERROR.decode(found.error).code if is_object(found.error) else found.code
    except UNREADABLE:
        return False
    return _string(code) == DEADLINE_EXCEEDED


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
        return _collect_text([_decode_whole(body)])
    except UNREADABLE:
        return None


def read_text_of_events(events: bytes) -> TextPieces | None:
    """The same for whole events of a stream, possibly none."""
    data = [line[5:].strip() for line in events.splitlines() if line.startswith(b"data:")]
    message = [event for event in data if event != _DONE]
    try:
        pieces_read = _collect_text(_decode_events(message))
    except UNREADABLE:
        return None
    return TextPieces(pieces_read.texts, True) if pieces_read and len(message) < len(data) else pieces_read


def _collect_text(parts: list[_Part]) -> TextPieces | None:
    read = _read(parts)
    if read.errors or read.known < len(parts) or any(choice.calls_tools for choice in read.choices.values()):
        return None
    texts = {place: choice.texts for place, choice in read.choices.items()}
    return TextPieces(texts, any(choice.ended for choice in read.choices.values()))
