"""Where the stream of one request can be resumed: the ids of the events that its client got (pure)."""

import re
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ..wire import resume

# Events whose ids are known. A client that lost more of them sends the id of its last one.
MAX_MARKS = 1 << 14
# Servers write what is between the stream and the holder, and may write anything there.
_MARK = re.compile(r"(.*)\.([0-9]{1,9})\.([0-9a-f]{8})\.([^.]*)", re.DOTALL)


class EventMark(NamedTuple):
    """The parts of an event's id. `position`: tokens of the stream up to the event."""

    stream: str
    position: int
    checksum: int
    holder: str


def mark_in(event_id: str) -> EventMark | None:
    """The parts of an id; None of one that has another form."""
    found = _MARK.fullmatch(event_id)
    return EventMark(found[1], int(found[2]), int(found[3], 16), found[4]) if found else None


class EventMarks:
    """Ids of the last events of a stream, as positions and checksums: the rest of all ids is the same."""

    def __init__(self, event_ids: Iterable[str] = ()) -> None:
        self._stream = self._holder = ""
        self._marks = array("Q")  # a position and, in the lower half, its checksum
        for event_id in event_ids:
            self.add(event_id)

    def add(self, event_id: str) -> None:
        """The client got the event with this id, behind all others. An id of another form is left out."""
        mark = mark_in(event_id)
        if mark is None:
            return
        self._stream, self._holder = mark.stream, mark.holder
        self._marks.append(mark.position << 32 | mark.checksum)
        if len(self._marks) > MAX_MARKS + MAX_MARKS // 4:
            del self._marks[:-MAX_MARKS]

    def event_id(self, position: int) -> str:
        """The id of the event at a position, with 0 for the beginning of the stream; empty where it is not known."""
        if not self._stream:
            return ""
        if position == 0:
            return f"{self._stream}.0.00000000.{self._holder}"
        for mark in reversed(self._marks):
            if mark >> 32 == position:
                return f"{self._stream}.{position}.{mark & 0xFFFFFFFF:08x}.{self._holder}"
        return ""

    def up_to(self, position: int) -> "EventMarks":
        """Those of the events up to a position."""
        former = EventMarks()
        former._stream, former._holder = self._stream, self._holder
        former._marks = array("Q", (mark for mark in self._marks if mark >> 32 <= position))
        return former

    def __bool__(self) -> bool:
        return bool(self._stream)


class RememberedStream(msgspec.Struct, frozen=True, array_like=True):
    """A request and where its stream was, in the form in which it is kept. `marks`: of `EventMarks`, as bytes."""

    body: bytes
    stream: str
    holder: str
    marks: bytes

    @classmethod
    def of(cls, body: bytes, marks: EventMarks) -> "RememberedStream":
        return cls(body, marks._stream, marks._holder, marks._marks.tobytes())

    def to_marks(self) -> EventMarks:
        marks = EventMarks()
        marks._stream, marks._holder = self.stream, self.holder
        marks._marks.frombytes(self.marks)
        return marks


ENCODE = msgspec.msgpack.Encoder().encode
DECODE = msgspec.msgpack.Decoder(RememberedStream).decode


def is_event_id(text: str) -> bool:
    """Whether a gateway sent an event with this id."""
    return resume.place(text) is not None
