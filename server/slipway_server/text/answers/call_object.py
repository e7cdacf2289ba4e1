"""Parses one JSON object that may be a tool call: {"name": …, "arguments": {…}}."""

import json
from collections.abc import Callable
from typing import Any, Protocol

from .json_text import JsonValue, skip_space

MAX_KEY_CHARACTERS, MAX_FIELD_CHARACTERS = 64, 1024
MAX_ARGUMENT_CHARACTERS = 1 << 20
ARGUMENTS = ("arguments", "parameters")
# An object that has any other key before its arguments is no call.
KEYS = frozenset({"name", "type", "id", *ARGUMENTS})


class CallSink(Protocol):
    """Receives the tool calls that a `CallObject` finds."""

    def start_call(self, name: str) -> bool:
        """Begins a call; False if there is no such tool or the answer may have no more calls."""

    def add_arguments(self, text: str) -> None: ...


class CallObject:
    """Parses one object. Its arguments are streamed if its name comes first, else sent at the end of the object.

    `broken`: the object is no call, and nothing went to the sink. `done`: the call has ended; its arguments may be cut.
    """

    def __init__(self, sink: CallSink) -> None:
        self.done = self.broken = self.started = False
        self._sink = sink
        self._state: Callable[[str, int], int] = self._open
        self._value, self._raw, self._size = JsonValue(), list[str](), 0
        self._key, self._name, self._arguments, self._streams = "", "", "{}", False

    def push(self, text: str, at: int) -> int:
        """Reads the text from index `at` on, and returns the index where the object ends or the text does."""
        while at < len(text) and not (self.done or self.broken):
            at = self._state(text, at)
        return at

    # -- states: each consumes characters or changes to another state, and returns the index where reading goes on

    def _open(self, text: str, at: int) -> int:
        return self._expect(text, at, {"{": self._before_key})

    def _before_key(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at < len(text) and text[at] == "}":
            return self._end(at)
        if at < len(text) and text[at] == '"':
            self._begin_value(self._read_key)
        elif at < len(text):
            self._fail()
        return at

    def _read_key(self, text: str, at: int) -> int:
        at = self._collect(text, at, MAX_KEY_CHARACTERS)
        if self._value.done:
            self._key = self._decoded()
            self._state = self._colon
            if not self.started and self._key not in KEYS:
                self._fail()
        return at

    def _colon(self, text: str, at: int) -> int:
        return self._expect(text, at, {":": self._before_value})

    def _before_value(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        self._begin_value(self._read_value)
        self._streams = self._key in ARGUMENTS and text[at] == "{" and bool(self._name) and not self.started
        if self._streams and not self._start():
            self._fail()
        return at

    def _read_value(self, text: str, at: int) -> int:
        if self._streams:
            end = min(self._value.push(text, at), at + MAX_ARGUMENT_CHARACTERS - self._size)
            self._sink.add_arguments(text[at:end])
            self._size += end - at
            if self._value.broken or self._size == MAX_ARGUMENT_CHARACTERS:
                self._fail()
        else:
            limit = MAX_ARGUMENT_CHARACTERS if self._key in ARGUMENTS else MAX_FIELD_CHARACTERS
            end = self._collect(text, at, limit)
        if self._value.done and not (self.done or self.broken):
            self._state = self._after_value
            if not (self._streams or self.started):
                self._store()
        return end

    def _after_value(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at < len(text) and text[at] == "}":
            return self._end(at)
        return self._expect(text, at, {",": self._before_key})

    # -- what they have in common

    def _expect(self, text: str, at: int, following: dict[str, Callable[[str, int], int]]) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] not in following:
            self._fail()
            return at
        self._state = following[text[at]]
        return at + 1

    def _begin_value(self, state: Callable[[str, int], int]) -> None:
        self._value, self._raw, self._size, self._state = JsonValue(), [], 0, state

    def _collect(self, text: str, at: int, limit: int) -> int:
        end = self._value.push(text, at)
        self._raw.append(text[at:end])
        self._size += end - at
        if self._value.broken or self._size > limit:
            self._fail()
        return end

    def _decoded(self) -> Any:
        try:
            return json.loads("".join(self._raw), strict=False)
        except (ValueError, RecursionError):
            self._fail()
            return ""

    def _store(self) -> None:
        value = self._decoded()
        if self._key == "name":
            self._name = value if isinstance(value, str) else ""
        elif self._key in ARGUMENTS:
            # Some models write the arguments as a string that contains JSON.
            raw = value if isinstance(value, str) else "".join(self._raw)
            self._arguments = "{}" if value is None else raw
            if not self._arguments.lstrip().startswith("{") or not _is_unicode(self._arguments):
                self._fail()

    def _start(self) -> bool:
        self.started = self._sink.start_call(self._name)
        return self.started

    def _end(self, at: int) -> int:
        if not self.started:
            if not self._start():
                self._fail()
                return at
            self._sink.add_arguments(self._arguments)
        self.done = True
        return at + 1

    def _fail(self) -> None:
        """The next character cannot be part of a call: ends a call that has begun, else the object is no call."""
        self.done, self.broken = self.started, not self.started


def _is_unicode(text: str) -> bool:
    """Whether the text can be encoded as UTF-8: half of a surrogate pair cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
