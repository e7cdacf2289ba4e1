"""Which events of a stream a client may have (pure): none whose text guards have not seen with what follows it.

An event waits until half of the window has followed it in its text, in tokens or in time, and guards have seen all of
that. So nothing that is no longer than half of the window is ever shown in part. Guards see the text that waits, and
before it some that was shown; positions count in the whole text of a channel, so what one look marks stays marked.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .events import StreamEvent
from .texts import TextPart
from .verdict import Span, Spans, merged

MAX_CONTEXT_CHARACTERS = 1024
MAX_REPEATED_CHARACTERS = 1 << 20  # of texts that later events may repeat
MAX_CHANNELS = 1024  # each event looks at all of them
_CHARACTERS_PER_TOKEN = 4


class _Piece(NamedTuple):
    """A text of an event: where it is in the text of its channel."""

    part: TextPart
    channel: "_Channel"
    start: int
    end: int
    tokens: int


@dataclass(slots=True)
class _Channel:
    """One text of the response, such as the content of a choice.

    `shown`: characters that clients have. `raw`: the text from `raw_start` on. `held_tokens`: that wait. `marks`: what
    guards want replaced. `emitted`: the end of the last replacement that was sent.
    """

    name: str
    raw: str = ""
    raw_start: int = 0
    shown: int = 0
    size: int = 0
    held_tokens: int = 0
    marks: tuple[Span, ...] = ()
    sent_marks: set[int] = field(default_factory=set)  # starts of spans whose replacement was sent
    whole: list[str] | None = None  # all of the text, where later events may repeat it
    sent: list[str] = field(default_factory=list)  # the same as the client has it

    def add(self, text: str) -> tuple[int, int]:
        start = self.size
        self.raw += text
        self.size += len(text)
        if self.whole is not None:
            self.whole.append(text)
        return start, self.size

    def mark(self, spans: Iterable[Span]) -> None:
        """Spans of the window, as positions in it."""
        moved = (Span(s.start + self.raw_start, s.end + self.raw_start, s.replacement) for s in spans)
        before = self.marks
        self.marks = merged((*before, *moved))
        # A mark that has grown keeps whether its replacement was sent.
        starts = [span.start for span in self.marks]
        # Each mark of before is in one of the present ones.
        self.sent_marks = {
            starts[bisect_right(starts, span.start) - 1] for span in before if span.start in self.sent_marks
        }

    def cut(self, start: int, end: int) -> str:
        """The text from `start` to `end` as clients get it, which they get now."""
        parts, at = [], start
        # A response may come in many small texts, and each look may add a thousand marks.
        first = bisect_right(self.marks, start, key=lambda span: span.end)
        for place in range(first, len(self.marks)):
            span = self.marks[place]
            if span.start >= end:
                break
            parts.append(self.raw[at - self.raw_start : max(at, span.start) - self.raw_start])
            if span.start not in self.sent_marks:
                parts.append(span.replacement)
                self.sent_marks.add(span.start)
            at = max(at, min(span.end, end))
        parts.append(self.raw[at - self.raw_start : end - self.raw_start])
        self.shown = end
        return "".join(parts)

    def forget(self) -> None:
        """Drops what no guard gets any more."""
        keep = max(self.raw_start, self.shown - MAX_CONTEXT_CHARACTERS)
        self.raw, self.raw_start = self.raw[keep - self.raw_start :], keep
        gone = [span.start for span in self.marks if span.end <= keep]
        self.marks = tuple(span for span in self.marks if span.end > keep)
        self.sent_marks.difference_update(gone)


@dataclass(slots=True)
class _Held:
    event: StreamEvent
    since_s: float
    pieces: list[_Piece]
    repeated: list[tuple[TextPart, _Channel]]


class HoldBack:
    """The events of one stream. Times are of any clock that only grows, in seconds."""

    def __init__(self, tokens: int, seconds: float) -> None:
        """`tokens`, `seconds`: the window."""
        self._tokens, self._seconds = tokens, seconds
        self._held: deque[_Held] = deque()
        self._channels: dict[tuple[Any, ...], _Channel] = {}
        self._repeatable = 0
        self._ended = False
        self.is_redacted = False

    @property
    def is_empty(self) -> bool:
        return not self._held

    @property
    def held_characters(self) -> int:
        return sum(len(channel.raw) for channel in self._channels.values()) + self._repeatable

    def add(self, event: StreamEvent, now_s: float) -> None:
        """The next event of the stream."""
        pieces, repeated = [], []
        for part in event.parts:
            if event.repeats and (found := self._repeated(part.text)) is not None:
                repeated.append((part, found))
                continue
            channel = self._channel(part, is_alone=event.repeats)
            start, end = channel.add(part.text)
            if channel.whole is not None:
                self._repeatable += len(part.text)
            tokens = max(1, -(-len(part.text) // _CHARACTERS_PER_TOKEN))
            channel.held_tokens += tokens
            pieces.append(_Piece(part, channel, start, end, tokens))
        self._held.append(_Held(event, now_s, pieces, repeated))
        self._ended |= event.is_last

    def end(self) -> None:
        """The stream has ended: nothing follows what is held."""
        self._ended = True

    @property
    def is_beyond_bounds(self) -> bool:
        """Whether the stream has so many texts, or so much is kept for events that repeat them, that no more may be."""
        return self._repeatable > MAX_REPEATED_CHARACTERS or len(self._channels) > MAX_CHANNELS

    def due_s(self) -> float | None:
        """When guards have to look at what is held, unless more comes; None: it is not text, or nothing."""
        first = next((held.since_s for held in self._held if held.pieces), None)
        return None if first is None else first + self._seconds

    def is_due(self, now_s: float) -> bool:
        """Whether guards have to look now."""
        due_s = self.due_s()
        if due_s is None:
            return False
        full = any(channel.held_tokens >= self._tokens for channel in self._channels.values())
        return self._ended or full or now_s >= due_s

    def texts(self) -> dict[str, str]:
        """What guards have to look at, by the name of the channel: what waits, and some of the text before it."""
        waiting = (channel for channel in self._channels.values() if channel.size > channel.shown)
        return {channel.name: channel.raw for channel in waiting}

    def seen(self, spans: Spans, now_s: float) -> bytes:
        """Guards have seen `texts` and marked spans. Returns the events that the client may have now."""
        for channel in self._channels.values():
            if found := spans.get(channel.name):
                channel.mark(found)
                self.is_redacted = True
        ready = []
        while self._held and self._may_pass(self._held[0], now_s):
            ready.append(self._pass(self._held.popleft()))
        for channel in self._channels.values():
            channel.forget()
        return b"".join((*ready, self.passing()))

    def passing(self) -> bytes:
        """Events without text that wait for none, which need no look."""
        ready = []
        while self._held and not self._held[0].pieces:
            ready.append(self._pass(self._held.popleft()))
        return b"".join(ready)

    def _may_pass(self, held: _Held, now_s: float) -> bool:
        if self._ended or now_s - held.since_s >= self._seconds / 2:
            return True
        # Its own tokens are not those that follow it, of other texts for the same channel too.
        own = Counter[str]()
        for piece in held.pieces:
            own[piece.channel.name] += piece.tokens
        return all(piece.channel.held_tokens - own[piece.channel.name] >= self._tokens / 2 for piece in held.pieces)

    def _pass(self, held: _Held) -> bytes:
        for piece in held.pieces:
            channel, before = piece.channel, piece.part.text
            text = channel.cut(piece.start, piece.end)
            channel.held_tokens -= piece.tokens
            if channel.whole is not None:
                channel.sent.append(text)
            if text != before:
                held.event.replace(piece.part, text)
        for part, channel in held.repeated:
            if (text := "".join(channel.sent)) != part.text:
                held.event.replace(part, text)
        return held.event.written()

    def _channel(self, part: TextPart, *, is_alone: bool) -> _Channel:
        """The channel of a text. `is_alone`: no other event continues it."""
        key = (*part.channel, len(self._channels)) if is_alone else part.channel
        found = self._channels.get(key)
        if found is None:
            name = f"stream.{len(self._channels)}.{part.path}"
            found = self._channels[key] = _Channel(name)
            if isinstance(part.channel[0], str) and part.channel[0].startswith("response."):
                found.whole = []
        return found

    def _repeated(self, text: str) -> _Channel | None:
        """The channel whose whole text this is."""
        return next((one for one in self._repeatable_channels() if one.size == len(text) and _is(one, text)), None)

    def _repeatable_channels(self) -> Iterator[_Channel]:
        return (channel for channel in self._channels.values() if channel.whole is not None)


def _is(channel: _Channel, text: str) -> bool:
    if channel.whole is None:
        return False
    channel.whole = ["".join(channel.whole)]
    return channel.whole[0] == text
