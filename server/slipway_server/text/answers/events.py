"""Events: what a piece of an answer's text adds to the message that a client gets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A part of the JSON text of a call's arguments."""

    index: int
    text: str


AnswerEvent = ContentDelta | ReasoningDelta | CallStart | ArgumentsDelta
