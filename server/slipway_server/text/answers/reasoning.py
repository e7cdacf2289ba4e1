"""Reasoning that a model writes before its answer: <think> … </think>."""

from .events import ContentDelta, ReasoningDelta
from .json_text import skip_space

OPENING, CLOSING = "<think>", "</think>"
BEFORE, THINKING, AFTER, ANSWER = "before", "thinking", "after", "answer"
MAX_SPACE = 256  # characters of white space that wait for the text that follows
PIECE_CHARACTERS = 1024


class ThinkParser:
    """Splits an answer into reasoning and the rest. White space around the tags is dropped.

    `thinking`: the prompt already has the opening tag. If neither prompt nor answer has it, there is no reasoning.
    """

    def __init__(self, *, thinking: bool) -> None:
        self._state = THINKING if thinking else BEFORE
        # The template may have written the tag into the prompt, and the model may write it again.
        self._begun, self._leading, self._held = False, True, ""
        self._parts: list[ReasoningDelta | ContentDelta] = []

    def push(self, text: str) -> list[ReasoningDelta | ContentDelta]:
        self._parts = []
        for start in range(0, len(text), PIECE_CHARACTERS):
            self._push(text[start : start + PIECE_CHARACTERS])
        return self._parts

    def finish(self) -> list[ReasoningDelta | ContentDelta]:
        held, self._held = self._held, ""
        if self._state == BEFORE:
            return [ContentDelta(held)] if held else []
        # Here the beginning of a closing tag may be held, and white space, which is dropped.
        return [ReasoningDelta(held.rstrip())] if self._state == THINKING and held.strip() else []

    def _push(self, text: str) -> None:
        text, self._held = self._held + text, ""
        if text and (self._state == BEFORE or (self._state == THINKING and not self._begun)):
            text = self._opened(text)
        if text and self._state == THINKING:
            text = self._thought(text)
        if text and self._state == AFTER:
            text = text[skip_space(text, 0) :]
            self._state = ANSWER if text else AFTER
        if text:
            self._parts.append(ContentDelta(text))

    def _opened(self, text: str) -> str:
        """Returns the text after the opening tag, or all of it without a tag. Holds text that may become the tag."""
        space = skip_space(text, 0)
        body = text[space:]
        if space <= MAX_SPACE:
            if len(body) < len(OPENING) and OPENING.startswith(body):
                self._held = text
                return ""
            if body.startswith(OPENING):
                self._state, self._begun = THINKING, True
                return body[len(OPENING) :]
        self._begun = True
        if self._state == BEFORE:
            self._state = ANSWER
        return text

    def _thought(self, text: str) -> str:
        """Emits reasoning and returns the text after the closing tag.

        Holds text that may become the tag, and the white space before it.
        """
        if self._leading:
            text = text[skip_space(text, 0) :]
            self._leading = not text
        reasoning, closing, rest = text.partition(CLOSING)
        held = "" if closing else _beginning_of(CLOSING, reasoning)
        body = reasoning[: len(reasoning) - len(held)]
        end = max(len(body.rstrip()), len(body) - MAX_SPACE)
        if closing:
            self._state = AFTER
        else:
            self._held = reasoning[end:]
        reasoning = reasoning[:end]
        if reasoning:
            self._parts.append(ReasoningDelta(reasoning))
        return rest


def _beginning_of(marker: str, text: str) -> str:
    """The longest end of the text that is a beginning of the marker; "" if there is none."""
    return next(marker[:length] for length in range(len(marker) - 1, -1, -1) if text.endswith(marker[:length]))
