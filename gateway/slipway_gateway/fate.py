"""What became of one first attempt: watched while its answer passes, told once at its end (pure).

Retries and resumed streams hide a bad server from clients; they change nothing of what is told here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .wire import answers
from .wire.answers import ERRORS, NON_FINITE, TAIL_BYTES

TTFT, ITL, E2E = MEASURES = ("ttft", "itl", "e2e")
_SLACK_BYTES = 4 << 10  # so that the tail is not cut at every token
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Kinds of trouble (`answers.KINDS`) and, of an answer that came whole, seconds by measure."""

    bad: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


class Fate:
    """A first attempt that began at `begun_s`; one that its client leaves is never told. Times in seconds."""

    __slots__ = ("_begun_s", "_cut", "_events", "_first_s", "_last_s", "_tail", "_tell")

    def __init__(self, begun_s: float, tell: Callable[[Outcome], None]) -> None:
        self._begun_s = begun_s
        self._tell: Callable[[Outcome], None] | None = tell
        self._first_s = self._last_s = 0.0
        self._events = 0  # after those that came first
        self._tail = bytearray()
        self._cut = False

    def saw(self, events: bytes, now_s: float) -> None:
        """Some events of a stream passed. It runs for every token: no parsing here."""
        tail = self._tail
        tail += events
        if len(tail) > TAIL_BYTES + _SLACK_BYTES:
            del tail[:-TAIL_BYTES]
            self._cut = True
        if events == _DONE:
            # The end of the stream is no token: it would make short answers look faster than long ones.
            return
        if not self._first_s:
            self._first_s = now_s
        else:
            self._events += (events.count(b"\n\n") or events.count(b"\r\n\r\n") or 1) - events.endswith(_DONE)
        self._last_s = now_s

    def failed(self, body: bytes = b"") -> None:
        """No answer, one of a status of 500 or above (then its `body` may say more), or one that broke off."""
        why = (NON_FINITE,) if body and NON_FINITE in answers.of_whole(body) else ()
        self._end(Outcome((ERRORS, *why)))

    def refused(self) -> None:
        """An answer that is neither a success nor a failure: 429 and the like say something about the request."""
        self._end(Outcome())

    def whole(self, body: bytes | None, now_s: float) -> None:
        """An answer of status 200 that is no stream came to its end; `body` None: nothing is read from it."""
        if self._tell:
            bad = () if body is None else answers.of_whole(body)
            self._succeeded(bad, {E2E: now_s - self._begun_s})

    def streamed(self, now_s: float) -> None:
        """A stream of status 200 came to its end, by its own word or without one."""
        if self._tell is None:
            return
        bad = answers.of_stream(bytes(self._tail), complete=not self._cut)
        seconds = {E2E: now_s - self._begun_s}
        if self._first_s:
            seconds[TTFT] = self._first_s - self._begun_s
        if self._events > 0:
            seconds[ITL] = (self._last_s - self._first_s) / self._events
        self._succeeded(bad, seconds)

    def _succeeded(self, bad: tuple[str, ...], seconds: Mapping[str, float]) -> None:
        # The time until an answer failed is not the time that an answer takes.
        self._end(Outcome(bad) if ERRORS in bad else Outcome(bad, seconds))

    def _end(self, outcome: Outcome) -> None:
        tell, self._tell = self._tell, None
        if tell:
            tell(outcome)
