"""Server-sent events: only whole events are forwarded, and a broken stream ends with an error event."""

import re

import msgspec

from .errors import ENGINE_CRASHED, error_object

CONTENT_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"  # the last event of OpenAI's streams
# Precedes an event that further events of the same token follow: no stream is resumed between them.
FOLLOWED = b": +\n"
_CRASHED = f": {ENGINE_CRASHED}".encode()
# What a client gets in a long silence: a line and no empty one behind it. Once they have seen an id, OpenAI's clients
# take an empty line for the end of an event without data, and fail.
KEEP_ALIVE = b":\n"
# Comments between events: lines of that kind, and events that are nothing but a comment, as other servers write them. A
# mark precedes an event, and the comment of a crash is for the gateway.
_NO_COMMENT = rb" (?:\+|%b)\r?\n" % re.escape(ENGINE_CRASHED.encode())
_COMMENTS = re.compile(rb"(?:(?<=\n\n)|(?<=\n\r\n)|\A)(?::(?!%b)[^\n]*\n\r?\n|:\n)+" % _NO_COMMENT)
# Where one may begin behind an event. They begin with letters, which `re` looks for without trying each byte.
_MAY_BE_COMMENTS = tuple(re.compile(end + rb":(?!%b)" % _NO_COMMENT) for end in (rb"\n\n", rb"\n\r\n"))
_KEEP_ALIVES = re.compile(rb"(?:%b\n?)+" % KEEP_ALIVE)
# Two ends of lines or more. Each alternative begins with a letter, which `re` looks for at once.
_EVENT_END = re.compile(rb"\n(?:\r?\n)+|\r\n(?:\r?\n)+|\r\r+")
_IS_FOLLOWED = re.compile(rb"[\r\n]*" + re.escape(FOLLOWED))
# Beyond these an unfinished event, or events of one token, are handed on as they are: memory is bounded, whatever an
# upstream sends.
_MAX_PARTIAL_BYTES = 256 << 10
_MAX_FOLLOWED = 64
# Of more bytes at once, only the last events are looked at one by one: a piece of small events took 24 ms.
_MANY_BYTES = 8 << 10
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")


class EventAligner:
    """Holds back an unfinished event, so that an error event never lands inside another one, and events of one token
    until all of them are there.

    Each byte is looked at a bounded number of times, in however many pieces it comes.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        # Where the first event begins that is not known to be whole. Those before it, so many, are followed by others.
        self._begin = self._followed = 0
        self._is_after_comment = False

    def feed(self, chunk: bytes) -> bytes:
        """Takes the next bytes of a stream; returns those that may be forwarded now: events, or `KEEP_ALIVE`."""
        held = self._held
        if not (held or self._is_after_comment) and chunk.endswith(b"\n\n") and FOLLOWED not in chunk:
            return _without_comments(chunk)
        # An end may have begun in the last three bytes of before.
        looked, ready = max(self._begin, len(held) - 3), 0
        held += chunk
        if is_alive := self._drop_keep_alive():
            looked = 0
        if len(held) - looked > _MANY_BYTES and (begin := self._last_events(looked)):
            looked = ready = self._begin = begin
            self._followed = 0
        for end in _EVENT_END.finditer(held, looked):
            self._followed = self._followed + 1 if _IS_FOLLOWED.match(held, self._begin) else 0
            self._begin = end.end()
            if not 0 < self._followed <= _MAX_FOLLOWED:
                ready, self._followed = self._begin, 0
        if not ready and len(held) > _MAX_PARTIAL_BYTES:
            ready = len(held)
        return _without_comments(self._cut(ready)) or (KEEP_ALIVE if is_alive else b"")

    def _last_events(self, looked: int) -> int:
        """Where more events begin than are held for others of their token; 0 where there are not so many.

        The events before them are handed on: one of the later ones ends its token, or they are too many to hold.
        """
        ends = [end for end in _ENDS if self._held.find(end, looked) >= 0]
        at = len(self._held)
        for _ in range(_MAX_FOLLOWED + 2):
            at = max((self._held.rfind(end, looked, at) for end in ends), default=-1)
            if at < 0:
                return 0
        separator = _EVENT_END.match(self._held, at)
        return separator.end() if separator else 0

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    @property
    def held(self) -> tuple[bytes, int, int, bool]:
        """All that it holds, from which another aligner goes on: bytes, where their first event begins that is not
        known to be whole, how many before it are followed by others, and whether a comment came last."""
        return bytes(self._held), self._begin, self._followed, self._is_after_comment

    def holds(self, held: tuple[bytes, int, int, bool]) -> None:
        """Goes on from what another aligner held."""
        data, self._begin, self._followed, self._is_after_comment = held
        self._held = bytearray(data)

    def reports_crash(self) -> bool:
        """Whether the unfinished event at the end reports that the engine died."""
        return self._held.strip() == _CRASHED

    def drop(self) -> None:
        self._cut(len(self._held))

    def flush(self) -> bytes:
        return self._cut(len(self._held))

    def _drop_keep_alive(self) -> bool:
        """Takes lines of `KEEP_ALIVE` from the beginning of what is held; returns whether there were some."""
        # The empty line of a comment may come in another piece than the comment.
        size_bytes = int(self._is_after_comment and self._held.startswith(b"\n"))
        if lines := _KEEP_ALIVES.match(self._held, size_bytes):
            size_bytes = lines.end()
            self._is_after_comment = True
        self._is_after_comment &= len(self._held) == size_bytes
        self._cut(size_bytes)
        return size_bytes > 0

    def _cut(self, size_bytes: int) -> bytes:
        """Takes bytes from the beginning of those that are held."""
        if not size_bytes:
            return b""
        with memoryview(self._held) as held, held[:size_bytes] as first:
            ready = bytes(first)
        del self._held[:size_bytes]
        self._begin -= size_bytes
        if self._begin <= 0:
            self._begin = self._followed = 0
        return ready


def _without_comments(events: bytes) -> bytes:
    """Whole events without the comments between them, which show that a server is alive; the events show it too.

    Nothing but comments becomes `KEEP_ALIVE`.
    """
    if not any(pattern.search(events) for pattern in _MAY_BE_COMMENTS) and not _COMMENTS.match(events):
        return events
    return _COMMENTS.sub(b"", events) or KEEP_ALIVE


def split_crash_comment(events: bytes) -> tuple[bytes, bool]:
    """Events without the comment at their end that reports an engine crash, and whether it was there."""
    if events.endswith(_CRASHED + b"\n\n") and (len(events) == len(_CRASHED) + 2 or events[-len(_CRASHED) - 3] == 10):
        return events[: -len(_CRASHED) - 2], True
    return events, False


def error_event(path: str, code: str, message: str, status: int = 502) -> bytes:
    """The end of a stream that broke; `/v1/generate` and `/v1/responses` have event shapes of their own, and no
    `[DONE]`."""
    error = error_object(status, code, message)
    if path == "/v1/responses":
        event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0, "error": error}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
    if path == "/v1/generate":
        return b"data: " + msgspec.json.encode({"type": "error", "error": error}) + b"\n\n"
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\ndata: [DONE]\n\n"
