"""One answer's text to the events of its message, by the formats of the model and the tools of the request."""

from collections.abc import Iterable
from dataclasses import dataclass

from .call_parser import CallParser, CallRules
from .events import AnswerEvent, ContentDelta, ReasoningDelta
from .formats import FORMATS
from .reasoning import CLOSING, OPENING, ThinkParser


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the answers of a request are read.

    `call_format`: one of `FORMATS`, or none. `reasoning`: whether answers may have reasoning. `thinking`: the prompt
    ends with the tag that begins it. `one_call`: an answer ends after its first call. `short_ids`: as in `CallRules`.
    """

    call_format: str = ""
    tools: frozenset[str] = frozenset()
    reasoning: bool = False
    thinking: bool = False
    one_call: bool = False
    short_ids: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read even if they are special tokens."""
        of_calls = FORMATS[self.call_format].markers if self.call_format else ()
        return (*of_calls, *((OPENING, CLOSING) if self.reasoning else ()))

    def parser(self, seed: str = "") -> "AnswerParser":
        """`seed`: the same for the same answer on each server; ids of calls are made of it."""
        rules = CallRules(self.tools, seed, self.one_call, self.short_ids)
        calls = FORMATS[self.call_format](rules) if self.call_format else None
        return AnswerParser(ThinkParser(thinking=self.thinking) if self.reasoning else None, calls)


PLAIN = AnswerForm()


class AnswerParser:
    """`push` returns what a piece of text adds, `finish` what was held until the end."""

    def __init__(self, thoughts: ThinkParser | None, calls: CallParser | None) -> None:
        self._thoughts, self._calls = thoughts, calls

    @property
    def ended(self) -> bool:
        """Nothing that follows is part of the answer."""
        return self._calls is not None and self._calls.ended

    def push(self, text: str) -> list[AnswerEvent]:
        return self._read(self._thoughts.push(text) if self._thoughts else [ContentDelta(text)])

    def finish(self) -> list[AnswerEvent]:
        events = self._read(self._thoughts.finish()) if self._thoughts else []
        return [*events, *(self._calls.finish() if self._calls else ())]

    def _read(self, parts: Iterable[ReasoningDelta | ContentDelta]) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        for part in parts:
            if isinstance(part, ReasoningDelta) or self._calls is None:
                events += [part] if part.text else []
            else:
                events += self._calls.push(part.text)
        return events
