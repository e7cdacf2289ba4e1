"""Makes a message of the response of a chat completion: whole, or as the events of a stream (pure)."""

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from ..wire.errors import anthropic_error
from ..wire.json_values import ABSENT, UNREADABLE, is_null, is_object, items_of, list_decoder
from ..wire.translated_events import TranslatedEvents

_STOP_REASONS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
# A whole response is decoded on the event loop: 4 MiB is several times the longest answer of a model.
MAX_RESPONSE_BYTES = 4 << 20
MAX_CALLS = 128  # of tools, in a message or a line of a stream: each becomes objects and events
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Content(Struct):
    """Of a message or of a delta. Servers name the reasoning in one of two ways, some in both."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Raw = ABSENT

    @property
    def calls(self) -> list[_ToolCall]:
        """Raises NoCompletion: it is no list of calls, or has more than `MAX_CALLS`."""
        return [] if is_null(self.tool_calls) else items_of(_read(_CALLS, self.tool_calls), None)

    @property
    def thinking(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def text(self) -> str:
        return self.content or self.refusal or ""


class _Choice(Struct):
    message: _Content | None = None
    delta: _Content | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM's field: the stop text or token that ended the answer


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Error(Struct):
    message: str = ""
    code: str | int | None = None


class _Completion(Struct):
    """A chat completion, or a chunk of one."""

    id: str = ""
    model: str = ""
    choices: Raw = ABSENT
    usage: _Usage | None = None
    error: _Error | str | None = None

    @property
    def choice(self) -> _Choice | None:
        """The first one, which alone is read. Raises NoCompletion: it is no choice."""
        choices = [] if is_null(self.choices) else items_of(_read(_FIRST_CHOICE, self.choices), None)
        return choices[0] if choices else None


class _Refusal(Struct):
    """An error response: nothing else of it is read."""

    error: _Error | str | None = None


class _TokenCount(Struct):
    count: int


_COMPLETION = msgspec.json.Decoder(_Completion)
_REFUSAL = msgspec.json.Decoder(_Refusal)
_CALLS = list_decoder(_ToolCall | None, None, MAX_CALLS)
_FIRST_CHOICE = list_decoder(_Choice | None, None, 1, refuses_more=False)
_WRITTEN = msgspec.json.Decoder(Raw)
_Value = TypeVar("_Value")
_TOKEN_COUNT = msgspec.json.Decoder(_TokenCount)


class NoCompletion(Exception):
    """The server's response is no chat completion."""


def token_count(body: bytes) -> bytes:
    """The response to `/v1/messages/count_tokens`, of one to `/tokenize`. Raises NoCompletion."""
    return msgspec.json.encode({"input_tokens": _read(_TOKEN_COUNT, body).count})


def error_message(body: bytes, status: int) -> str:
    """The sentence of an error response in OpenAI's shape."""
    try:
        error = _read(_REFUSAL, body).error
    except NoCompletion:
        error = None
    message = error if isinstance(error, str) or error is None else error.message
    return message or f"The server of this model answered with status {status}."


def whole_message(body: bytes, stop_sequences: Collection[str]) -> bytes:
    """The message of a whole chat completion. Raises NoCompletion."""
    completion = _read(_COMPLETION, body)
    choice = completion.choice
    if choice is None or choice.message is None:
        raise NoCompletion("it has no message")
    answer, calls = choice.message, choice.message.calls
    content: list[dict[str, Any]] = []
    if answer.thinking:
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": ""})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    content += [_tool_use(call) | {"input": _arguments(call)} for call in calls]
    stop_reason, stop_sequence = _stop_reason(choice, stop_sequences, has_calls=bool(calls))
    return msgspec.json.encode(
        _message(completion)
        | {
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": _usage(completion.usage),
        }
    )


class MessageEvents(TranslatedEvents):
    """Makes the events of a message of those of a chat completion."""

    def __init__(self, stop_sequences: Collection[str]) -> None:
        super().__init__()
        self._stop_sequences = stop_sequences
        self._has_begun = False
        self._block: tuple[str, int] | None = None  # kind of the open block, and index of its call
        self._blocks = 0
        self._has_calls = False
        self._last = _Choice()
        self._usage: _Usage | None = None

    def _is_complete(self) -> bool:
        return self._last.finish_reason is not None

    def _alive(self) -> bytes:
        return _PING  # Anthropic's clients expect events

    def _of_data(self, data: bytes) -> Iterator[bytes]:
        try:
            chunk = _read(_COMPLETION, data)
            choice = chunk.choice
            calls = choice.delta.calls if choice and choice.delta else []
        except NoCompletion:
            yield self._unusable("The server of this answer sent an event that is no chat completion.")
            return
        if chunk.error is not None:
            yield self._broken(chunk.error if isinstance(chunk.error, str) else chunk.error.message)
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not self._has_begun:
            self._has_begun = True
            yield self._start(chunk)
        if choice is None:
            return
        if choice.delta is not None:
            yield from self._of_delta(choice.delta, calls)
        if choice.finish_reason is not None:
            self._last = choice

    def _start(self, chunk: _Completion) -> bytes:
        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(chunk.usage, begins=True),
        }
        return _event("message_start", {"message": _message(chunk) | empty})

    def _of_delta(self, delta: _Content, calls: list[_ToolCall]) -> Iterator[bytes]:
        if delta.thinking:
            yield from self._open("thinking", 0, {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": delta.thinking})
        if delta.text:
            yield from self._open("text", 0, {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": delta.text})
        for call in calls:
            self._has_calls = True
            yield from self._open("tool_use", call.index, _tool_use(call) | {"input": {}})
            if call.function and call.function.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": call.function.arguments})

    def _open(self, kind: str, index: int, block: dict[str, Any]) -> Iterator[bytes]:
        """Begins a block, unless it is the open one."""
        if self._block == (kind, index):
            return
        yield from self._close()
        self._block = (kind, index)
        yield _event("content_block_start", {"index": self._blocks, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._block is not None:
            yield _event("content_block_stop", {"index": self._blocks})
            self._block = None
            self._blocks += 1

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks, "delta": delta})

    def _finish(self) -> Iterator[bytes]:
        if not self._has_begun:
            yield self._broken("The server of this answer sent nothing.")
            return
        yield from self._close()
        stop_reason, stop_sequence = _stop_reason(self._last, self._stop_sequences, has_calls=self._has_calls)
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        yield _event("message_delta", {"delta": delta, "usage": _usage(self._usage)})
        yield _event("message_stop", {})
        self._has_ended = True

    def _error(self, message: str) -> bytes:
        return b"event: error\ndata: " + anthropic_error(502, message) + b"\n\n"


def _read(decoder: "msgspec.json.Decoder[_Value]", data: bytes | Raw) -> _Value:
    """Raises NoCompletion: it is no JSON, or of another type."""
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise NoCompletion(str(error)) from None


def _message(completion: _Completion) -> dict[str, Any]:
    id = "msg_" + completion.id.removeprefix("chatcmpl-")
    return {"id": id, "type": "message", "role": "assistant", "model": completion.model}


def _tool_use(call: _ToolCall) -> dict[str, Any]:
    name = call.function.name if call.function else None
    return {"type": "tool_use", "id": call.id or f"toolu_{call.index}", "name": name or ""}


def _arguments(call: _ToolCall) -> Any:
    """The arguments of a call as they were written; an object that holds them if they are no JSON, as a cut call's."""
    written = (call.function.arguments if call.function else None) or "{}"
    try:
        value = _WRITTEN.decode(written)  # checked only: no object is made of a member
    except UNREADABLE:
        return {"arguments": written}
    return value if is_object(value) else {"arguments": written}


def _stop_reason(choice: _Choice, stop_sequences: Collection[str], *, has_calls: bool) -> tuple[str, str | None]:
    """Anthropic's reason, and the stop sequence that ended the answer."""
    if choice.finish_reason in _STOP_REASONS:
        return _STOP_REASONS[choice.finish_reason], None
    if has_calls:
        return "tool_use", None
    if isinstance(choice.stop_reason, str) and choice.stop_reason in stop_sequences:
        return "stop_sequence", choice.stop_reason
    return "end_turn", None


def _usage(usage: _Usage | None, *, begins: bool = False) -> dict[str, int]:
    """Tokens; those that were read from the prefix cache are counted apart, as Anthropic does. All 0 while unknown.

    `begins`: of the first event of a stream, before the answer.
    """
    if usage is None:
        usage = _Usage()
    details = usage.prompt_tokens_details
    cached = min((details.cached_tokens if details else None) or 0, usage.prompt_tokens)
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 0 if begins else usage.completion_tokens or 0,
    }


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind} | fields) + b"\n\n"
