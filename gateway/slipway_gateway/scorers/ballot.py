"""One call of a scorer: the prompt with both responses in random order, and the result (pure).

The scorer does not learn which response is canary's, so neither its habits nor its owner's wishes favour a side.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from ..wire.json_values import ABSENT, UNREADABLE, is_list, is_text

VERSION = 1
TIE = "tie"
# Limit of the prompt and of each response. A scorer gets nothing longer.
MAX_TEXT_BYTES = 64 << 10
_EQUAL = 1e-9


class _Request(msgspec.Struct):
    messages: Raw = ABSENT
    prompt: Raw = ABSENT


class _Result(msgspec.Struct):
    """What a scorer returns: exactly one of these fields."""

    scores: tuple[float, float] | None = None
    preference: int | str | None = None


_REQUEST = msgspec.json.Decoder(_Request)
_RESULT = msgspec.json.Decoder(_Result)
Prompt = Mapping[str, str | Raw]  # the path of the request, and its messages or its prompt as they were written


@dataclass(frozen=True, slots=True)
class PairScore:
    """`lower`: 1 where canary's response is the worse one by more than the margin, -1 where its twin's is, else 0.

    `scores`: of canary and of its twin, where the scorer gave them.
    """

    lower: int
    scores: tuple[float, float] | None = None


def prompt_of(path: str, body: bytes) -> Prompt | None:
    """The part of a request that a scorer gets: its prompt. None where it has none, or a long one."""
    if len(body) > MAX_TEXT_BYTES:
        return None
    try:
        fields = _REQUEST.decode(body)
        body.decode()
    except UNREADABLE:
        return None
    for name, value in (("messages", fields.messages), ("prompt", fields.prompt)):
        if is_list(value) or is_text(value):
            return {"path": path, name: value}
    return None


def write(id_: str, model: str, prompt: Prompt, answers: tuple[str, str]) -> bytes | None:
    """The body of a call; None where it cannot be written.

    Its fields are not those of an inference API, so an inference server refuses it.
    """
    fields = {"version": VERSION, "id": id_, "model": model, "request": prompt, "answers": list(answers)}
    try:
        return msgspec.json.encode(fields)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def read(response: bytes, *, swapped: bool, margin: float) -> PairScore | None:
    """The result in a scorer's `response`, or None. `swapped`: the call had the twin's response first.

    `margin`: scores (0 to 1) that differ by no more count as equal.
    """
    try:
        found = _RESULT.decode(response)
    except UNREADABLE:
        return None
    if (found.scores is None) == (found.preference is None):
        return None
    if found.scores is None:
        return _preferred(found.preference, swapped=swapped)
    if not all(math.isfinite(score) and 0 <= score <= 1 for score in found.scores):
        return None
    canary, twin = reversed(found.scores) if swapped else found.scores
    difference = twin - canary
    return PairScore(0 if abs(difference) <= margin + _EQUAL else int(math.copysign(1, difference)), (canary, twin))


def _preferred(preference: int | str | None, *, swapped: bool) -> PairScore | None:
    if preference == TIE:
        return PairScore(0)
    if preference not in (0, 1) or isinstance(preference, bool):
        return None
    # The first one is canary's unless they are swapped.
    canary_won = (preference == 0) != swapped
    return PairScore(-1 if canary_won else 1)
