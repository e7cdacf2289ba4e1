"""Finds the end of a JSON value in text that comes in pieces."""

import re

MAX_DEPTH = 256
_PLAIN = re.compile(r"[-+.0-9A-Za-z\s,:]*")
_IN_STRING = re.compile(r'[^"\\]*')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_CLOSING = {"{": "}", "[": "]"}


def skip_space(text: str, at: int) -> int:
    """The index of the first character from `at` on that is not white space; the text's length if there is none."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


class JsonValue:
    """Finds the end of one value by its brackets and quotes; does not check the text between them.

    `done`: the value is complete. `broken`: the next character cannot be part of it and is not consumed.
    """

    def __init__(self) -> None:
        self.done = self.broken = False
        self._closing: list[str] = []
        self._in_string = self._escaped = self._scalar = False

    def push(self, text: str, at: int) -> int:
        """Reads the text from index `at` on, and returns the index where the value ends or the text does."""
        while at < len(text) and not (self.done or self.broken):
            at = self._string(text, at) if self._in_string else self._outside(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.match(text, at)
        at = found.end() if found else at
        if at < len(text):
            self._escaped = text[at] == "\\"
            self._in_string = self._escaped
            self.done = not self._in_string and not self._closing
            at += 1
        return at

    def _outside(self, text: str, at: int) -> int:
        if not self._closing:
            return self._first(text, at)
        found = _PLAIN.match(text, at)
        at = found.end() if found else at
        return at if at == len(text) else self._structure(text, at)

    def _first(self, text: str, at: int) -> int:
        if text[at] in '"{[' and not self._scalar:
            return self._structure(text, at)
        found = _SCALAR.match(text, at)
        end = found.end() if found else at
        self.broken = end == at and not self._scalar
        self._scalar = True
        self.done = end < len(text) and not self.broken
        return end

    def _structure(self, text: str, at: int) -> int:
        character = text[at]
        if character == '"':
            self._in_string = True
        elif character in _CLOSING and len(self._closing) < MAX_DEPTH:
            self._closing.append(_CLOSING[character])
        elif self._closing and character == self._closing[-1]:
            self._closing.pop()
            self.done = not self._closing
        else:
            self.broken = True
            return at
        return at + 1
