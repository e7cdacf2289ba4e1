"""What all formats of tool calls share: content around calls, text that may become a call, and lists of calls."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from .call_object import CallObject
from .events import AnswerEvent, ArgumentsDelta, CallStart, ContentDelta
from .json_text import skip_space

MAX_CALLS = 128  # of an answer; what follows them is content
MAX_SPACE = 256  # characters of white space that wait for what follows
PIECE_CHARACTERS = 1024  # longer text is parsed in pieces of this size, so that the time is linear in its length


@dataclass(frozen=True, slots=True)
class CallRules:
    """Which tool calls an answer may have.

    `seed`: call IDs derive from it; it must be the same on each server of an answer. `short_ids`: IDs of nine letters
    and digits, as Mistral's templates require.
    """

    tools: frozenset[str]
    seed: str = ""
    one_call: bool = False
    short_ids: bool = False

    def id_of(self, index: int) -> str:
        digest = blake2b(f"{self.seed}.{index}".encode(), digest_size=16).hexdigest()
        return digest[:9] if self.short_ids else f"call_{digest[:24]}"


class CallParser(ABC):
    """Splits an answer into content and calls. What does not become a call is content, as the model wrote it.

    White space before a call is dropped, and so is white space after the last one.
    """

    markers: tuple[str, ...] = ()  # texts of the format that may be special tokens of the model

    def __init__(self, rules: CallRules) -> None:
        self.ended = False  # after the only call that is allowed
        self._rules, self._events = rules, list[AnswerEvent]()
        self._state: Callable[[str, int], int] = self._text
        self._object = CallObject(self)
        self._after_object: Callable[[str, int], int] = self._text
        self._held, self._space, self._matched = list[str](), "", 0
        self._calls, self._after_call = 0, False

    def push(self, text: str) -> list[AnswerEvent]:
        self._events = []
        for start in range(0, len(text), PIECE_CHARACTERS):
            piece, at = text[start : start + PIECE_CHARACTERS], 0
            while at < len(piece) and not self.ended:
                at = self._state(piece, at)
        return self._events

    def finish(self) -> list[AnswerEvent]:
        """The last events, when the answer has ended. A call that was cut off stays a call with cut arguments."""
        self._events = []
        if not self.ended:
            self._release()
            if self._space and not self._after_call:
                self._events.append(ContentDelta(self._space))
        return self._events

    @abstractmethod
    def _text(self, text: str, at: int) -> int:
        """The state outside of calls. Returns the index in `text` where reading goes on."""

    # -- calls, as `CallSink`

    def start_call(self, name: str) -> bool:
        if name not in self._rules.tools or self._calls >= MAX_CALLS:
            return False
        self._held, self._space, self._after_call = [], "", True
        self._events.append(CallStart(self._calls, self._rules.id_of(self._calls), name))
        self._calls += 1
        return True

    def add_arguments(self, text: str) -> None:
        if text:
            self._events.append(ArgumentsDelta(self._calls - 1, text))

    def _begin_object(self, after: Callable[[str, int], int]) -> None:
        """Starts to read an object that may be a call; `after` is the state that follows a call."""
        self._object, self._after_object, self._state = CallObject(self), after, self._read_object

    def _read_object(self, text: str, at: int) -> int:
        end = self._object.push(text, at)
        if not self._object.started:
            self._held.append(text[at:end])
        if self._object.broken:
            self._go_on_with_text()
        elif self._object.done:
            self._end_call(self._after_object)
        return end

    def _end_call(self, after: Callable[[str, int], int]) -> None:
        self._state, self.ended = after, self._rules.one_call

    # -- lists of calls: the opening bracket is held

    def _list_item(self, text: str, at: int) -> int:
        end = self._hold_space(text, at)
        if end < len(text) and text[end] == "{":
            self._begin_object(self._list_next)
        elif end < len(text):
            self._go_on_with_text()
        return end

    def _list_next(self, text: str, at: int) -> int:
        end = self._hold_space(text, at)
        if end == len(text):
            return end
        if text[end] not in ",]":
            self._go_on_with_text()
            return end
        if text[end] == ",":
            self._held.append(",")
            self._state = self._list_item
        else:
            self._held, self._state = [], self._text
        return end + 1

    # -- content

    def _content(self, text: str) -> None:
        text = self._space + text
        # Up to MAX_SPACE characters of white space at the end wait for the text that follows.
        end = max(len(text.rstrip()), len(text) - MAX_SPACE)
        self._space = text[end:]
        if end:
            self._events.append(ContentDelta(text[:end]))
            self._after_call = False

    def _hold_space(self, text: str, at: int) -> int:
        end = skip_space(text, at)
        self._held.append(text[at:end])
        return end

    def _release(self) -> None:
        """Emits the held text as content: it is no call after all."""
        held, self._held = "".join(self._held), []
        if held:
            self._content(held)

    def _go_on_with_text(self) -> None:
        self._release()
        self._state = self._text

    def _match(self, text: str, at: int, marker: str) -> int:
        """Compares the text with the rest of a marker, holds what is equal, and returns the index after it.

        `_matched` counts the characters of the marker that have been found so far.
        """
        rest = marker[self._matched :]
        piece = text[at : at + len(rest)]
        length = next((n for n, (a, b) in enumerate(zip(piece, rest, strict=False)) if a != b), len(piece))
        self._held.append(piece[:length])
        self._matched += length
        return at + length
