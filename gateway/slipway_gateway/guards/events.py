"""Events of a stream as guards see them: cut from bytes, with their texts, and written again (pure)."""

from collections.abc import Iterator

from . import texts
from .protocol import GuardFailed
from .texts import TextPart

MAX_EVENT_BYTES = 1 << 20
_DATA = b"data:"
_DONE = b"[DONE]"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Fields of an event beside its data; a line that begins with a colon is a comment.
_OTHER_FIELDS = frozenset({b"event", b"id", b"retry", b""})


class EventCutter:
    """Cuts whole events from the bytes of a stream, in however many pieces they come."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Whole events. Raises GuardFailed: what is no event yet has more than MAX_EVENT_BYTES; nothing is cut then."""
        begin = max(0, len(self._held) - 3)
        self._held += chunk
        found, at = [], 0
        while (end := self._end(begin)) >= 0:
            found.append(bytes(self._held[at:end]))
            at = begin = end
        if len(self._held) - at > MAX_EVENT_BYTES:
            raise GuardFailed(f"an event has more than {MAX_EVENT_BYTES >> 20} MiB")
        del self._held[:at]
        return found

    @property
    def is_empty(self) -> bool:
        return not self._held

    def rest(self) -> bytes:
        """What is no whole event yet; it is forgotten."""
        rest = bytes(self._held)
        self._held.clear()
        return rest

    def _end(self, begin: int) -> int:
        """Where the event ends in which `begin` is; -1: not in these bytes."""
        ends = ((self._held.find(mark, begin), len(mark)) for mark in (b"\n\n", b"\n\r\n", b"\r\r"))
        return min((at + size for at, size in ends if at >= 0), default=-1)


class StreamEvent:
    """One event. `parts`: its texts, which may be replaced before it is written."""

    __slots__ = ("_raw", "_value", "is_changed", "is_last", "parts")

    def __init__(self, raw: bytes) -> None:
        """Raises GuardFailed: its data is neither JSON nor the end of a stream, or it has lines that are no fields."""
        self._raw, self._value = raw, None  # `_value`: the data, decoded
        self.parts: list[TextPart] = []
        self.is_changed = self.is_last = False
        data = b"\n".join(_data_lines(raw))
        if not data:
            return
        if data == _DONE:
            self.is_last = True
            return
        self._value = texts.event(data)
        self.parts = [part for part in texts.of_event(self._value) if part.text]
        self.is_changed = texts.has_other_tokens(self._value)  # guards have not seen their text

    @property
    def repeats(self) -> bool:
        """Whether its texts may be those of events before it, as a whole: of the Responses API all but its deltas."""
        kind = self._value.get("type") if isinstance(self._value, dict) else None
        return isinstance(kind, str) and kind.startswith("response.") and not kind.endswith(".delta")

    def written(self) -> bytes:
        """Its bytes; where texts were replaced, with these."""
        if not self.is_changed:
            return self._raw
        texts.forget_tokens(self._value)
        lines = [line for line in _lines(self._raw) if line and not line.startswith(_DATA)]
        return b"\n".join((*lines, b"data: " + texts.encoded(self._value), b"", b""))

    def replace(self, part: TextPart, text: str) -> None:
        part.replace(text)
        self.is_changed = True


def _lines(raw: bytes) -> list[bytes]:
    # A stream may begin with a byte order mark, which is no part of its first line.
    return raw.removeprefix(_BYTE_ORDER_MARK).splitlines()


def _data_lines(raw: bytes) -> Iterator[bytes]:
    """The data of an event, line by line. Raises GuardFailed: a line is no field, so it may be text all the same."""
    for line in _lines(raw):
        name, _, value = line.partition(b":")
        if name == b"data":
            yield value.strip()
        elif name not in _OTHER_FIELDS:
            raise GuardFailed("the stream has lines that are no server-sent events")
