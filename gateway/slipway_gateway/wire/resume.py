"""Resuming a stream at another server: marks in its events, and headers of the request to the next server.

docs/contracts.md has the protocol between gateway and server.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from multidict import CIMultiDict

from slipway_contracts.headers import RESUME, RESUME_BYTES, STREAM

LAST_EVENT_ID = "Last-Event-ID"

_MARK = b": "
_STREAM = r"[0-9a-f]{1,16}-[0-9a-f]{1,16}-[0-9a-f]{32}"
_IS_STREAM = re.compile(_STREAM)
_EVENT_ID = re.compile(rf"([!-~]{{1,760}})\.({_STREAM}\.[0-9]{{1,9}}\.[0-9a-f]{{8}})(?:\.([0-9a-f]{{4}}))?")
# Some 20,000 tokens. A longer answer is resumed by generating it once more up to the break, which costs time alone.
MAX_TOKEN_BYTES = 128 << 10
_MAX_DIGITS = 10  # Python's `int` raises for thousands of them


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a client lost its stream. `revision`: whose response it is. `resume`: value of `X-Slipway-Resume`.

    `holder`: tag of the endpoint that sent the stream, empty when it is not known.
    """

    revision: str
    resume: str
    holder: str = ""

    @property
    def stream(self) -> str:
        return self.resume.partition(".")[0]


def place(last_event_id: str) -> ResumePoint | None:
    found = _EVENT_ID.fullmatch(last_event_id)
    return ResumePoint(unquote(found[1]), found[2], found[3] or "") if found else None


def position_of(resume: str) -> int:
    """The position, in tokens, in a value of `X-Slipway-Resume`; 0 without one."""
    parts = resume.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0


class StreamProgress:
    """What the client has of one stream: the last event, and the tokens of all events."""

    def __init__(self, stream: str, revision: str, holder: str, known: bytes = b"") -> None:
        """`known`: tokens that the client had before, each followed by a comma."""
        self._revision = revision
        self._name(stream)
        self._last = b""
        self._last_token = b""  # the mark of the last event with tokens: that of usage has none
        self._tokens = bytearray(known)
        self._whole = True
        self.moves_to(holder)

    @classmethod
    def begin(
        cls, headers: Mapping[str, str], revision: str, holder: str, known: bytes = b""
    ) -> "StreamProgress | None":
        """None when the server does not mark its events: then its bytes are passed on as they are."""
        stream = headers.get(STREAM, "")
        return cls(stream, revision, holder, known) if _IS_STREAM.fullmatch(stream) else None

    @property
    def tokens(self) -> bytes:
        """The tokens of all events so far, each followed by a comma; empty when they were too many to keep."""
        return bytes(self._tokens) if self._whole else b""

    @property
    def position(self) -> int:
        """Tokens of the stream so far; 0 for a mark that no server writes."""
        digits = self._last_token.partition(b".")[0]
        return int(digits) if digits.isdigit() and len(digits) < _MAX_DIGITS else 0

    @property
    def size_bytes(self) -> int:
        return len(self._tokens)

    @property
    def state(self) -> tuple[bytes, bytes, bytes, bytes, bool, int]:
        """What the data plane goes on from: both ends of an id, marks of the last event and of the last one with
        tokens, whether all tokens are kept, and their bytes."""
        return self._id, self._end, self._last, self._last_token, self._whole, len(self._tokens)

    def goes_on(self, last: bytes, last_token: bytes, tokens: bytes, *, whole: bool) -> None:
        """The data plane has passed events on. `tokens`: of these events."""
        self._last, self._last_token = last, last_token
        if whole:
            self._tokens += tokens
        else:
            self.forget()

    def keeps(self, tokens: bytes) -> None:
        """Replaces the tokens, as in a copy of this."""
        self._tokens = bytearray(tokens)

    def forget(self) -> None:
        """Drops the tokens: a server that resumes the stream generates them once more."""
        self._whole = False
        self._tokens.clear()

    def moves_to(self, holder: str) -> None:
        """Events come from the endpoint of this tag from now on."""
        self._end = f".{holder}".encode()

    def add_ids(self, events: bytes) -> bytes:
        """Whole events with their marks → with ids for the client."""
        # One event at a time is the usual case, and this runs for every token.
        if events.find(b"\n\n") == len(events) - 2:
            return self._event(events)
        parts = events.split(b"\n\n")
        return b"\n\n".join([*map(self._event, parts[:-1]), parts[-1]])

    def continues(self, headers: Mapping[str, str]) -> bool:
        """Whether a response continues the stream. While the client has no event, any stream with marks does."""
        stream = headers.get(STREAM, "")
        if not self._last and _IS_STREAM.fullmatch(stream):
            self._name(stream)
        return stream == self.stream

    def resume_request(self, headers: CIMultiDict[str], tokens: bytes) -> tuple[CIMultiDict[str], bytes]:
        """Headers of the request for the rest of the stream, and the tokens that are sent behind its body.

        While the client has no event, they are `headers` and `tokens` as they were given.
        """
        resumed = headers.copy()
        if not self._last:
            return resumed, tokens
        resumed[RESUME] = f"{self.stream}.{self._last.decode('ascii', 'replace')}"
        resumed[RESUME_BYTES] = str(len(self.tokens))
        return resumed, self.tokens

    def _name(self, stream: str) -> None:
        self.stream = stream
        self._id = f"id: {quote(self._revision, safe='')}.{stream}.".encode()

    def _event(self, event: bytes) -> bytes:
        # Other comments, such as that of a crash, are no place to go on from.
        if not event.startswith(_MARK) or not event[2:3].isdigit():
            return event
        end = event.find(b"\n")
        if end < 0:  # a mark alone
            end = len(event)
        self._last, _, tokens = event[2:end].partition(b" ")
        if tokens:
            self._last_token = self._last
            self._remember(tokens)
        return self._id + self._last + self._end + event[end:]

    def _remember(self, tokens: bytes) -> None:
        if self._whole and len(self._tokens) + len(tokens) < MAX_TOKEN_BYTES:
            self._tokens += tokens + b","
        else:
            self.forget()
