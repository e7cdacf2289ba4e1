"""The formats in which models write tool calls."""

import re
from collections.abc import Callable

from .call_object import MAX_ARGUMENT_CHARACTERS
from .call_parser import CallParser, CallRules
from .json_text import JsonValue, skip_space

MAX_NAME_CHARACTERS = 64
_NAME = re.compile(r"[A-Za-z0-9_.-]*")


class HermesCalls(CallParser):
    """<tool_call>{"name": …, "arguments": {…}}</tool_call>, as Hermes, Qwen 2.5 and Qwen 3 write it."""

    opening, closing = "<tool_call>", "</tool_call>"
    markers = (opening, closing)

    def _text(self, text: str, at: int) -> int:
        found = text.find("<", at)
        end = found if found >= 0 else len(text)
        self._content(text[at:end])
        if found >= 0:
            self._matched, self._state = 0, self._open
        return end

    def _open(self, text: str, at: int) -> int:
        end = self._match(text, at, self.opening)
        if self._matched == len(self.opening):
            self._begin_object(self._close)
        elif end < len(text):
            self._go_on_with_text()
        return end

    def _close(self, text: str, at: int) -> int:
        end = self._hold_space(text, at)
        if end < len(text):
            self._matched, self._state = 0, self._read_closing
        return end

    def _read_closing(self, text: str, at: int) -> int:
        end = self._match(text, at, self.closing)
        if self._matched == len(self.closing):
            self._held, self._state = [], self._text
        elif end < len(text):
            self._go_on_with_text()
        return end


class LlamaCalls(CallParser):
    """{"name": …, "parameters": {…}} on a line of its own or after <|python_tag|>; several are separated by ";"."""

    marker = "<|python_tag|>"
    markers = (marker,)
    _candidate = re.compile(r"[{<]")

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        self._line_begins = True  # since the last line break or call there was only white space

    def _text(self, text: str, at: int) -> int:
        if self._line_begins and text[at] == "{":
            self._line_begins = False
            self._begin_object(self._between)
            return at
        if text[at] == "<":
            self._matched, self._state = 0, self._read_marker
            return at
        found = self._candidate.search(text, at + 1)
        end = found.start() if found else len(text)
        line = text[at:end].rpartition("\n")
        self._line_begins = (self._line_begins or bool(line[1])) and not line[2].strip()
        self._content(text[at:end])
        return end

    def _read_marker(self, text: str, at: int) -> int:
        end = self._match(text, at, self.marker)
        if self._matched == len(self.marker):
            self._state = self._after_marker
        elif end < len(text):
            self._line_begins = False
            self._go_on_with_text()
        return end

    def _after_marker(self, text: str, at: int) -> int:
        end = self._hold_space(text, at)
        if end < len(text) and text[end] == "{":
            self._begin_object(self._between)
        elif end < len(text):
            self._go_on_with_text()
        return end

    def _between(self, text: str, at: int) -> int:
        self._line_begins = True
        end = self._hold_space(text, at)
        if end == len(text):
            return end
        if text[end] == ";" and ";" not in self._held:
            self._held.append(";")
            return end + 1
        self._state = self._after_separator
        return end

    def _after_separator(self, text: str, at: int) -> int:
        if text[at] == "{":
            self._line_begins = False
            self._begin_object(self._between)
        else:
            self._go_on_with_text()
        return at


class JsonCalls(CallParser):
    """The answer is one call as a JSON object, or a list of them."""

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        self._state = self._begin

    def _begin(self, text: str, at: int) -> int:
        end = self._hold_space(text, at)
        if end < len(text) and text[end] == "{":
            self._begin_object(self._text)
        elif end < len(text) and text[end] == "[":
            self._held.append("[")
            self._state = self._list_item
            return end + 1
        elif end < len(text):
            self._go_on_with_text()
        return end

    def _text(self, text: str, at: int) -> int:
        self._content(text[at:])
        return len(text)


class MistralCalls(CallParser):
    """[TOOL_CALLS] before a list of calls; in newer models before a name, [ARGS] and the arguments."""

    marker, arguments_marker, id_marker = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
    markers = (marker, arguments_marker, id_marker)

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        self._name, self._value, self._size = "", JsonValue(), 0

    def _text(self, text: str, at: int) -> int:
        found = text.find("[", at)
        end = found if found >= 0 else len(text)
        self._content(text[at:end])
        if found >= 0:
            self._matched, self._state = 0, self._open
        return end

    def _open(self, text: str, at: int) -> int:
        return self._marker(text, at, self.marker, self._after_marker)

    def _marker(self, text: str, at: int, marker: str, after: Callable[[str, int], int]) -> int:
        end = self._match(text, at, marker)
        if self._matched == len(marker):
            self._state = after
        elif end < len(text):
            self._go_on_with_text()
        return end

    def _after_marker(self, text: str, at: int) -> int:
        end = self._hold_space(text, at)
        if end == len(text):
            return end
        if text[end] == "[":
            self._held.append("[")
            self._state = self._list_item
            return end + 1
        if text[end] == "{":
            self._begin_object(self._text)
        else:
            self._name, self._state = "", self._read_name
        return end

    def _read_name(self, text: str, at: int) -> int:
        at, piece = self._word(text, at)
        self._name += piece
        if len(self._name) > MAX_NAME_CHARACTERS or (at < len(text) and self._name not in self._rules.tools):
            self._go_on_with_text()
        elif at < len(text):
            self._matched, self._state = 0, self._after_name
        return at

    def _after_name(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at < len(text) and text[at] == "{":
            self._state = self._before_arguments
        elif at < len(text):
            self._state = self._which_marker
        return at

    def _which_marker(self, text: str, at: int) -> int:
        """Decides between [ARGS] and [CALL_ID] by their second characters."""
        if self._matched == 0 and text[at] == "[":
            self._held.append("[")
            self._matched = 1
            return at + 1
        if self._matched == 0:
            self._go_on_with_text()
        else:
            self._state = self._read_id_marker if text[at] == "C" else self._read_arguments_marker
        return at

    def _read_id_marker(self, text: str, at: int) -> int:
        return self._marker(text, at, self.id_marker, self._read_id)

    def _read_id(self, text: str, at: int) -> int:
        """Skips the model's own ID of the call, which is not used."""
        at, _ = self._word(text, at)
        if at < len(text):
            self._matched, self._state = 0, self._read_arguments_marker
        return at

    def _read_arguments_marker(self, text: str, at: int) -> int:
        return self._marker(text, at, self.arguments_marker, self._before_arguments)

    def _word(self, text: str, at: int) -> tuple[int, str]:
        found = _NAME.match(text, at)
        end = found.end() if found else at
        self._held.append(text[at:end])
        return end, text[at:end]

    def _before_arguments(self, text: str, at: int) -> int:
        end = skip_space(text, at)
        self._held.append(text[at:end])
        if end < len(text) and text[end] == "{" and self.start_call(self._name):
            self._value, self._size, self._state = JsonValue(), 0, self._read_arguments
        elif end < len(text):
            self._go_on_with_text()
        return end

    def _read_arguments(self, text: str, at: int) -> int:
        end = min(self._value.push(text, at), at + MAX_ARGUMENT_CHARACTERS - self._size)
        self.add_arguments(text[at:end])
        self._size += end - at
        if self._value.done or self._value.broken or self._size == MAX_ARGUMENT_CHARACTERS:
            self._end_call(self._text)
        return end


FORMATS: dict[str, type[CallParser]] = {
    "hermes": HermesCalls,
    "llama3": LlamaCalls,
    "mistral": MistralCalls,
    "json": JsonCalls,
}
