"""What became of one first attempt: watched while its answer passes, told once at its end (pure).

Retries and resumed streams hide a bad server from clients; they change nothing of what is told here. Nor does a server
that never ends an answer hide: a silence that lasts too long is told when it does, and `waited` says at any time how
long a measure takes at least.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..wire import answers
from ..wire.answers import ERRORS, HUNG, NON_FINITE, TAIL_BYTES
from ..wire.sse import DONE

TTFT, ITL, E2E = MEASURES = ("ttft", "itl", "e2e")
_SLACK_BYTES = 4 << 10  # so that the tail is not cut at every token


@dataclass(frozen=True, slots=True)
class Outcome:
    """Kinds of trouble (`answers.KINDS`) and, of an answer that came whole, seconds by measure."""

    bad: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def without(self, excused: frozenset[str]) -> "Outcome":
        """The same without the kinds of trouble that its request asked for."""
        if excused.isdisjoint(self.bad):
            return self
        return Outcome(tuple(kind for kind in self.bad if kind not in excused), self.seconds)


def _nobody(waited: Mapping[str, float]) -> None:
    """Of an attempt that no judge looks at."""


class Fate:
    """A first attempt that began at `begun_s`; of one that its client leaves nothing is told. Times in seconds.

    Args:
        begun_s: when it began.
        tell: gets the outcome, once.
        close: gets, at the very end and whatever came of it, the seconds that each measure is known to take at least,
            of those that the outcome has no value of.
        streams: whether the client asked for a stream.
        patience_s: how long its server may be silent.
    """

    __slots__ = (
        "_begun_s", "_close", "_cut", "_events", "_first_s", "_last_s", "_patience_s", "_silent_since_s", "_streams",
        "_tail", "_tell",
    )  # fmt: skip

    def __init__(
        self,
        begun_s: float,
        tell: Callable[[Outcome], None],
        close: Callable[[Mapping[str, float]], None] = _nobody,
        *,
        streams: bool = False,
        patience_s: float = math.inf,
    ) -> None:
        self._begun_s = self._silent_since_s = begun_s
        self._tell: Callable[[Outcome], None] | None = tell
        self._close: Callable[[Mapping[str, float]], None] | None = close
        self._streams = streams
        self._patience_s = patience_s
        self._first_s = self._last_s = 0.0
        self._events = 0  # after those that came first
        self._tail = bytearray()
        self._cut = False

    # -- while it runs

    def saw(self, events: bytes, now_s: float) -> None:
        """Some events of a stream passed. It runs for every token: no parsing here."""
        tail = self._tail
        tail += events
        if len(tail) > TAIL_BYTES + _SLACK_BYTES:
            del tail[:-TAIL_BYTES]
            self._cut = True
        if events == DONE:
            # The end of the stream is no token: it would make short answers look faster than long ones.
            return
        if not self._first_s:
            self._first_s = now_s
        else:
            self._events += (events.count(b"\n\n") or events.count(b"\r\n\r\n") or 1) - events.endswith(DONE)
        self._last_s = now_s

    def heard(self, now_s: float) -> None:
        """The server sent something: until `waits` it is not its turn, however long the client takes to read it."""
        self.look(now_s)
        self._silent_since_s = math.inf

    def waits(self, now_s: float) -> None:
        """It is the server's turn again."""
        self._silent_since_s = now_s

    def look(self, now_s: float) -> None:
        """Tells of a silence that is too long, whether it is over or not: whatever comes after it comes too late."""
        if now_s - self._silent_since_s > self._patience_s:
            self._say(Outcome((ERRORS, HUNG)))

    def waited(self, now_s: float) -> dict[str, float]:
        """Seconds that each measure takes at least, as far as is known now."""
        found = {E2E: now_s - self._begun_s}
        if self._first_s or self._streams:
            found[TTFT] = (self._first_s or now_s) - self._begun_s
        return found

    # -- its end

    def failed(self, now_s: float, body: bytes = b"") -> None:
        """No answer, one of a status of 500 or above (then its `body` may say more), or one that broke off."""
        why = (NON_FINITE,) if body and NON_FINITE in answers.of_whole(body) else ()
        self._end(Outcome((ERRORS, *why)), now_s)

    def refused(self, now_s: float) -> None:
        """An answer that is neither a success nor a failure: 429 and the like say something about the request."""
        self._end(Outcome(), now_s)

    def left(self, now_s: float) -> None:
        """The request is over: its client is gone, or all is told."""
        self._end(None, now_s)

    def whole(self, body: bytes | None, now_s: float, *, wants_json: bool = False) -> None:
        """An answer of status 200 that is no stream came to its end; `body` None: nothing is read from it."""
        bad = () if body is None or self._tell is None else answers.of_whole(body, wants_json=wants_json)
        self._succeeded(bad, {E2E: now_s - self._begun_s}, now_s)

    def streamed(self, now_s: float, *, wants_json: bool = False) -> None:
        """A stream of status 200 came to its end, by its own word or without one."""
        bad: tuple[str, ...] = ()
        if self._tell:
            bad = answers.of_stream(bytes(self._tail), complete=not self._cut, wants_json=wants_json)
        seconds = {E2E: now_s - self._begun_s}
        if self._first_s:
            seconds[TTFT] = self._first_s - self._begun_s
        if self._events > 0:
            seconds[ITL] = (self._last_s - self._first_s) / self._events
        self._succeeded(bad, seconds, now_s)

    def _succeeded(self, bad: tuple[str, ...], seconds: Mapping[str, float], now_s: float) -> None:
        # The time until an answer failed is not the time that an answer takes.
        self._end(Outcome(bad) if ERRORS in bad else Outcome(bad, seconds), now_s)

    def _end(self, outcome: Outcome | None, now_s: float) -> None:
        self.look(now_s)
        told = self._say(outcome)
        close, self._close = self._close, None
        if close:
            known = outcome.seconds if outcome and told else {}
            close({measure: seconds for measure, seconds in self.waited(now_s).items() if measure not in known})

    def _say(self, outcome: Outcome | None) -> bool:
        """Whether there was still something to say: the first word holds. None is said of one whose client left."""
        tell, self._tell = self._tell, None
        if tell and outcome:
            tell(outcome)
        return tell is not None
