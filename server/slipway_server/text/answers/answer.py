"""Parses one answer's text into the events of its message, by the model's formats and the request's tools."""

from collections.abc import Iterable
from dataclasses import dataclass

from .call_parser import CallParser, CallRules
from .events import AnswerEvent, ContentDelta, ReasoningDelta
from .formats import FORMATS
from .reasoning import CLOSING, OPENING, ThinkParser


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the answers of a request are parsed.

    `call_format`: one of `FORMATS`; "": tool calls are not parsed. `reasoning`: whether answers may have reasoning.
    `thinking`: the prompt already ends with the tag that begins the reasoning. `one_call`: an answer ends after its
    first tool call. `short_ids`: as in `CallRules`.
    """

    call_format: str = ""
    tools: frozenset[str] = frozenset()
    reasoning: bool = False
    thinking: bool = False
    one_call: bool = False
    short_ids: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that the parser needs: the detokenizer must keep them even if they are special tokens."""
        of_calls = FORMATS[self.call_format].markers if self.call_format else ()
        return (*of_calls, *((OPENING, CLOSING) if self.reasoning else ()))

    def parser(self, seed: str = "") -> "AnswerParser":
        """A parser for one answer. Call IDs derive from `seed`, which must be the same on each server of an answer."""
        rules = CallRules(self.tools, seed, self.one_call, self.short_ids)
        calls = FORMATS[self.call_format](rules) if self.call_format else None
        return AnswerParser(ThinkParser(thinking=self.thinking) if self.reasoning else None, calls)


PLAIN = AnswerForm()


class AnswerParser:
    """`push` returns the events of a piece of text, `finish` those of text that was held back until the end."""

    def __init__(self, thoughts: ThinkParser | None, calls: CallParser | None) -> None:
        self._thoughts, self._calls = thoughts, calls

    @property
    def ended(self) -> bool:
        """Whether the answer is complete: the text that follows is not part of it."""
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
