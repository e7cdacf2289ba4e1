"""The outcome of one first attempt: observed while its response passes, reported once at its end (pure).

Retries and resumed streams hide a bad server from clients; they do not change this outcome. A server's silence that
lasts too long is a failure at once, before the response has ended. `seconds_so_far` gives lower bounds of the latencies
at any time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..wire import responses
from ..wire.predictions import Value
from ..wire.responses import BLOCKED, ERRORS, HUNG, NON_FINITE, TAIL_BYTES
from ..wire.sse import DONE, FOLLOWED

TTFT, ITL, E2E = MEASURES = ("ttft", "itl", "e2e")
PassingTimes = tuple[float, int, bytes, bool]
_SLACK_BYTES = 4 << 10  # so that the tail is not cut at every token


class RequestOutcome(msgspec.Struct, frozen=True):
    """Kinds of failure (`responses.KINDS`) and, for a complete response, seconds by measure."""

    bad: tuple[str, ...] = ()
    seconds: Mapping[str, float] = msgspec.field(default_factory=dict)

    def without(self, excused: frozenset[str]) -> "RequestOutcome":
        """This outcome without the excused kinds of failure, which the request itself provokes."""
        if not self.bad or excused.isdisjoint(self.bad):
            return self
        return RequestOutcome(tuple(kind for kind in self.bad if kind not in excused), self.seconds)

    def having(self, kind: str) -> "RequestOutcome":
        """This outcome with one more kind of failure."""
        return self if kind in self.bad else RequestOutcome((*self.bad, kind), self.seconds)


@dataclass(frozen=True, slots=True)
class AnswerOrigin:
    """The version of the route by which a request was routed; kept where feedback on it may come.

    `assigned`: the revision that the weights chose, where the judge may count the request's session; else empty.
    `compared`: an analysis or spec.accuracy counts feedback; otherwise it is for the inference log alone. `client`:
    whose share of the counts it takes; "" where that is not known.
    """

    route: str
    generation: int
    digest: str
    assigned: str = ""
    compared: bool = True
    client: str = ""


class Awaited(Protocol):
    """What relays the events of a stream in place of Python."""

    @property
    def silent_since_s(self) -> float:
        """Since when its server is awaited; infinity while it is not."""


class OutcomeRecorder:
    """Records one first attempt. An attempt whose client left has no outcome. Times are in seconds.

    Args:
        begun_s: when it began.
        on_outcome: gets the outcome, once.
        on_end: gets, at the end in any case, lower bounds in seconds of the measures without a value in the outcome.
        streams: whether the client requested a stream.
        patience_s: how long its server may be silent.
    """

    __slots__ = (
        "_awaited", "_begun_s", "_cut", "_events", "_first_s", "_last_s", "_marks", "_on_end", "_on_outcome",
        "_patience_s", "_silent_since_s", "_streams", "_tail", "on_fallback", "on_mark", "on_prediction", "origin",
        "outcome",
    )  # fmt: skip

    def __init__(
        self,
        begun_s: float,
        on_outcome: Callable[[RequestOutcome], None],
        on_end: Callable[[Mapping[str, float]], None] | None = None,
        *,
        streams: bool = False,
        patience_s: float = math.inf,
    ) -> None:
        self._begun_s = self._silent_since_s = begun_s
        self._on_outcome: Callable[[RequestOutcome], None] | None = on_outcome
        self._on_end = on_end
        self._streams = streams
        self._patience_s = patience_s
        self._first_s = self._last_s = 0.0
        self.outcome: RequestOutcome | None = None  # None until it is known, and where the client left before
        self.on_prediction: Callable[[Value | None], None] | None = None  # None: predictions are not compared
        self.on_fallback: Callable[[], None] | None = (
            None  # counts that something else was to answer; None: no one counts
        )
        self.origin: AnswerOrigin | None = None  # None: there is no feedback on its response
        self._events = 0  # after those of the first chunk
        self._tail = bytearray()
        self._cut = False
        self._awaited: Awaited | None = None
        self._marks: frozenset[str] = frozenset()
        self.on_mark: Callable[[str], None] | None = None

    # -- while it runs

    def mark(self, kind: str) -> None:
        """Something behind the relay found a failure of this kind. Where the outcome is known, `on_mark` gets it."""
        if self._on_outcome is not None:
            self._marks |= {kind}
        elif self.outcome is not None and self.on_mark is not None:
            self.on_mark(kind)

    def block(self, now_s: float) -> None:
        """A guard ended the response: that is its outcome, where it has none yet."""
        if self._on_outcome is None:
            self.mark(BLOCKED)
        else:
            self._end(RequestOutcome((BLOCKED,)), now_s)

    def add_events(self, events: bytes, now_s: float) -> None:
        """Events of a stream passed. It runs for every token, so it parses nothing."""
        tail = self._tail
        tail += events
        if len(tail) > TAIL_BYTES + _SLACK_BYTES:
            del tail[:-TAIL_BYTES]
            self._cut = True
        if events == DONE:
            # The end of the stream is no token: it would make short responses look faster than long ones.
            return
        if not self._first_s:
            self._first_s = now_s
        else:
            whole = events.count(b"\n\n") or events.count(b"\r\n\r\n") or 1
            self._events += whole - events.endswith(DONE) - events.count(FOLLOWED)
        self._last_s = now_s

    def server_sent(self, now_s: float) -> None:
        """The server sent something: its silence is not measured until `wait_for_server`."""
        if now_s - self._silent_since_s > self._patience_s:
            self.check_silence(now_s)
        self._silent_since_s = math.inf

    def wait_for_server(self, now_s: float) -> None:
        """The gateway waits for the server again."""
        self._silent_since_s = now_s

    def relayed_by(self, relay: Awaited | None) -> None:
        """The data plane relays the events from now on. None: it no longer does."""
        if self._awaited:
            self._silent_since_s = self._awaited.silent_since_s
        self._awaited = relay

    @property
    def has_begun(self) -> bool:
        """Whether the first events have passed: the data plane may relay those after them."""
        return self._first_s > 0.0

    @property
    def passing(self) -> tuple[PassingTimes | None, float]:
        """What the data plane goes on from, None where nothing more is recorded: when the last events passed, how many
        did, the end of the stream, and whether that is not all of it. And for how long its server may be silent before
        that is reported."""
        if self._on_outcome is None:
            return None, math.inf
        return (self._last_s, self._events, bytes(self._tail), self._cut), self._patience_s

    def goes_on(self, times: PassingTimes) -> None:
        """The data plane has passed events on."""
        self._last_s, self._events, tail, self._cut = times
        self._tail[:] = tail

    def check_silence(self, now_s: float) -> None:
        """Reports a silence that is too long, whether it is over or not: later events do not change the outcome."""
        if self._awaited:
            self._silent_since_s = self._awaited.silent_since_s
        if now_s - self._silent_since_s > self._patience_s:
            self._report(RequestOutcome((ERRORS, HUNG)))

    def seconds_so_far(self, now_s: float) -> dict[str, float]:
        """Lower bounds of the measures, in seconds."""
        found = {E2E: now_s - self._begun_s}
        if self._first_s or self._streams:
            found[TTFT] = (self._first_s or now_s) - self._begun_s
        return found

    # -- its end

    def fail(self, now_s: float, body: bytes = b"") -> None:
        """No response, one with status 500 or above (its `body` may have details), or one that broke off."""
        why = (NON_FINITE,) if body and NON_FINITE in responses.find_failures(body) else ()
        self._end(RequestOutcome((ERRORS, *why)), now_s)

    def refuse(self, now_s: float) -> None:
        """A response that is neither success nor failure: 429 and the like are due to the request."""
        self._end(RequestOutcome(), now_s)

    def abandon(self, now_s: float) -> None:
        """The request is over: its client left, or the outcome is known."""
        self._end(None, now_s)

    @property
    def ended(self) -> bool:
        """Whether nothing more is recorded."""
        return self._on_outcome is None and self._on_end is None

    def complete(self, body: bytes | None, now_s: float, *, wants_json: bool = False) -> None:
        """A response of status 200 that is no stream came to its end; `body` None: nothing is read from it."""
        bad = () if body is None or self._on_outcome is None else responses.find_failures(body, wants_json=wants_json)
        self._succeeded(bad, {E2E: now_s - self._begun_s}, now_s)

    def complete_stream(self, now_s: float, *, wants_json: bool = False) -> None:
        """A stream of status 200 ended, with or without a final event."""
        bad: tuple[str, ...] = ()
        if self._on_outcome:
            bad = responses.find_failures_in_stream(bytes(self._tail), complete=not self._cut, wants_json=wants_json)
        seconds = {E2E: now_s - self._begun_s}
        if self._first_s:
            seconds[TTFT] = self._first_s - self._begun_s
        if self._events > 0:
            seconds[ITL] = (self._last_s - self._first_s) / self._events
        self._succeeded(bad, seconds, now_s)

    def _succeeded(self, bad: tuple[str, ...], seconds: Mapping[str, float], now_s: float) -> None:
        # The time until a response failed is not the time that a response takes.
        bad = (*bad, *sorted(self._marks.difference(bad)))
        self._end(RequestOutcome(bad) if ERRORS in bad else RequestOutcome(bad, seconds), now_s)

    def _end(self, outcome: RequestOutcome | None, now_s: float) -> None:
        if now_s - self._silent_since_s > self._patience_s:
            self.check_silence(now_s)
        first = self._report(outcome)
        on_end, self._on_end = self._on_end, None
        if on_end:
            known = outcome.seconds if outcome and first else {}
            on_end(
                {measure: seconds for measure, seconds in self.seconds_so_far(now_s).items() if measure not in known}
            )

    def _report(self, outcome: RequestOutcome | None) -> bool:
        """Reports the first outcome and ignores later ones; returns whether it was the first. None: the client left."""
        on_outcome, self._on_outcome = self._on_outcome, None
        if on_outcome and outcome:
            self.outcome = outcome
            on_outcome(outcome)
        return on_outcome is not None
