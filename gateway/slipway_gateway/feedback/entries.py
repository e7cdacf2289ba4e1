"""The body of a feedback request (pure)."""

import re
from typing import Annotated

import msgspec

from slipway_process.byte_order_mark import without_mark

from ..wire.errors import RequestError, invalid
from ..wire.json_values import items_of, list_decoder
from ..wire.predictions import label_text
from .tokens import MAX_TOKEN, SignedAnswer

MAX_ENTRIES = 1000
MAX_BODY_BYTES = 2 << 20
MAX_LABEL = 1024
SCORE, CORRECT = "score", "correct"  # outcomes of entries without a name
RIGHT_FROM = 0.5  # an answer with a lower score is wrong

_IS_LIST = re.compile(rb"\s*\[")
_AT = re.compile(r" - at `\$(.*)`$")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client learned about one answer: exactly one of `correct`, `score` and `label`. `id`: its token.

    `name`: of an outcome, for experiments alone; empty: it is about the answer itself.
    """

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=4 * MAX_TOKEN)]
    correct: bool | None = None
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    label: Annotated[str, msgspec.Meta(max_length=MAX_LABEL)] | bool | int | None = None
    name: Annotated[str, msgspec.Meta(max_length=63)] = ""

    @property
    def outcome(self) -> str:
        """The outcome of an experiment for which it counts."""
        return self.name or (SCORE if self.score is not None else CORRECT)

    def value(self, wrong: bool | None) -> float | None:
        """The value of that outcome, from 0 to 1. `wrong`: as `is_wrong` says."""
        if self.score is not None:
            return self.score
        return None if wrong is None else float(not wrong)

    def is_wrong(self, answer: SignedAnswer) -> bool | None:
        """Whether the answer is wrong; None: the entry has a label, and the token has none to compare it with."""
        if self.correct is not None:
            return not self.correct
        if self.score is not None:
            return self.score < RIGHT_FROM
        predicted = answer.predicts(label_text(self.label)) if self.label is not None else None
        return None if predicted is None else not predicted


_ENTRY = msgspec.json.Decoder(Entry)
_ENTRIES = list_decoder(Entry | msgspec.UnsetType, msgspec.UNSET, MAX_ENTRIES)


def parse(body: bytes) -> tuple[list[Entry], bool]:
    """The entries of a body, and whether they came as a list. Raises RequestError 400 for an invalid body."""
    body = without_mark(body)
    try:
        listed = _IS_LIST.match(body) is not None
        entries = _entries_of(body) if listed else [_ENTRY.decode(body)]
    except msgspec.ValidationError as error:
        at = _AT.search(str(error))
        param = at[1].lstrip(".") if at else None
        raise invalid("invalid_feedback", f"The feedback is not as expected: {error}.", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("invalid_json", f"The request body is not valid JSON: {error}.") from None
    for place, entry in enumerate(entries):
        if sum(given is not None for given in (entry.correct, entry.score, entry.label)) != 1:
            raise _not_one(f"[{place}]" if listed else None)
    return entries, listed


def _entries_of(body: bytes) -> list[Entry]:
    entries = items_of(_ENTRIES.decode(body), msgspec.UNSET)
    if not entries:
        raise msgspec.ValidationError("Expected `array` of length >= 1")
    return entries


def _not_one(param: str | None) -> RequestError:
    message = f"Give exactly one of correct, score and label{f' in {param}' if param else ''}."
    return invalid("invalid_feedback", message, param=param or "correct")
