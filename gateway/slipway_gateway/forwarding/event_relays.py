"""Streams whose events the data plane relays, while nothing but events happens. The request stays Python's.

It has begun the response, decides whatever is not the next event, and ends it. docs/plane.md describes it.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web
from aiohttp.http_writer import StreamWriter

from slipway_plane import NATIVE

from ..judging.outcome import OutcomeRecorder, PassingTimes
from ..plane.transports import SecuredTransport
from ..quotas.meter import Meter
from ..telemetry.metrics import GatewayMetrics
from ..upstream.connection import EndpointConnection
from ..upstream.exchange import Reply
from ..wire.resume import StreamProgress
from ..wire.sse import EventAligner

if TYPE_CHECKING:
    from slipway_plane import _native

# Pauses after which the data plane goes on with the same response.
GOES_ON = frozenset({"done", "room", "silent", "kept", "events", "long"})
# Of one in so many streams all is counted again by Python, as of the requests that the fast lane ends.
RECOUNT_ONE_IN = 100

Differs = Callable[[str, Sequence[str], str], None]  # a route, in what, and the id of a request


@dataclass(frozen=True, slots=True)
class Passing:
    """What a stream is passed on with, in the form that the data plane takes (`_native.pyi`)."""

    held: tuple[bytes, int, int, bool]
    progress: tuple[bytes, bytes, bytes, bytes, bool, int] | None
    count: tuple[bool, bool, tuple[int, int, int] | None, int, int, bool] | None
    times: PassingTimes | None
    patience_s: float
    counted_bytes: int


class StreamState(NamedTuple):
    """What knows how far a stream is; each is changed by its events. None: the stream has it not."""

    aligner: EventAligner
    progress: StreamProgress | None
    meter: Meter | None
    recorder: OutcomeRecorder | None

    def passing(self, counted_bytes: int) -> Passing:
        """As it is now. `counted_bytes`: of memory for it."""
        recorder = self.recorder
        times, patience_s = recorder.passing if recorder else (None, float("inf"))
        progress = self.progress.state if self.progress else None
        count = self.meter.counted if self.meter else None
        return Passing(self.aligner.held, progress, count, times, patience_s, counted_bytes)

    def pass_events(self, events: bytes, now_s: float, keep: Callable[[bytes], None] | None = None) -> bytes:
        """Counts whole events as their server sent them; returns them as the client gets them.

        `keep` gets them without ids, where a cache keeps the stream.
        """
        if events and self.recorder:
            self.recorder.add_events(events, now_s)
        if events and self.meter:
            events = self.meter.add_events(events)
        if events and keep:
            keep(events)
        if events and self.progress:
            events = self.progress.add_ids(events)
        return events

    def relayed_by(self, relay: "_native.EventRelay | None") -> None:
        """Reports on the stream look there."""
        if self.recorder:
            self.recorder.relayed_by(relay)
        if self.meter:
            self.meter.relayed_by(relay)

    def goes_on(self, passed: "_native.Passed") -> None:
        """Takes what the data plane made of it."""
        self.aligner.holds(passed.held)
        if self.progress and passed.progress:
            (_, _, last, last_token, whole), tokens = passed.progress
            self.progress.goes_on(last, last_token, tokens, whole=whole)
        if self.meter and passed.count:
            reported, relayed_bytes, tokens_so_far, marked = passed.count
            self.meter.goes_on(reported, relayed_bytes, tokens_so_far, marked=marked)
        if self.recorder and passed.times:
            self.recorder.goes_on(passed.times)


class Recount:
    """What a stream was when the data plane began with a part of it: Python passes the same pieces on, and compares."""

    def __init__(self, state: StreamState) -> None:
        recorder = None
        if state.recorder and (times := state.recorder.passing[0]):
            recorder = OutcomeRecorder(1.0, lambda outcome: None)
            recorder.add_events(b":", 1.0)  # the first events, which are not among those that are counted
            recorder.goes_on(times)
        self._state = StreamState(copy(state.aligner), copy(state.progress), copy(state.meter), recorder)
        self._state.aligner.holds(state.aligner.held)
        if self._state.progress and state.progress:
            self._state.progress.keeps(state.progress.tokens)

    def replay(self, pieces: Sequence[bytes], why: str) -> bytes:
        """Passes pieces of the body on; returns what the client gets of them. `why`: the data plane paused."""
        sent = []
        for at, piece in enumerate(pieces):
            events = self._state.aligner.feed(piece)
            if why != "events" or at < len(pieces) - 1:  # those of the last one it has left to Python
                sent.append(self._state.pass_events(events, 1.0))
        return b"".join(sent)

    def differences(self, passed: "_native.Passed", state: StreamState, why: str) -> list[str]:
        """In what Python's own differs from `state`, which the data plane has changed. `why`: it paused."""
        own, sent_bytes = self._state, len(self.replay(passed.pieces, why))
        there, here = state.passing(0), own.passing(0)
        unsent = len(passed.data) if why == "long" else 0
        same = {
            "events": here.held == there.held and sent_bytes == passed.sent_bytes + unsent,
            "marks": here.progress == there.progress,
            "tokens": not (own.progress and state.progress) or own.progress.tokens == state.progress.tokens,
            "usage": here.count == there.count,
            "outcome": here.times is None or there.times is None or here.times[1:] == there.times[1:],
        }
        return [kind for kind, holds in same.items() if not holds]


class LentStream:
    """One response that the data plane relays. `end` gives it back; it must be called."""

    def __init__(self, relays: "EventRelays", connection: EndpointConnection, native: "_native.EventRelay", id_: int):
        self._relays, self._connection, self.native, self._id = relays, connection, native, id_
        self._runs = self._begun = False

    async def relay(self, passing: Passing, *, keeps: bool = False) -> tuple[str, int]:
        """`keeps`: pieces of the body are kept.

        Relays events until Python has to look; returns why, and a number, as of `EventRelay.paused`."""
        paused = self._relays.wait(self._id)
        self._runs = True
        if self._begun:
            runs = self.native.go_on(passing, keeps)
        else:
            runs = self._begun = self.native.begin(self._relays.lane, passing, keeps)
        if runs:
            await paused
        self._runs = False
        return self.native.paused or ("lost", 0)

    def take(self) -> "_native.Passed":
        """What happened, once after `relay`."""
        return self.native.take()

    def end(self, why: str = "", number: int = 0) -> "tuple[_native.Passed, bool] | None":
        """Nothing is relayed any more. Where `relay` was cancelled: what happened; and whether the client has all."""
        is_done = (self.native.paused or ("", 0))[0] == "done"
        self.native.stop()
        self._relays.forget(self._id, why or "stopped")
        passed = self.native.take() if self._runs else None
        self._runs = False
        self._connection.take_back(why, number)
        return None if passed is None else (passed, is_done)


class EventRelays:
    """Lends streams of one gateway to its data plane, where there is one."""

    def __init__(
        self, metrics: GatewayMetrics, clock: Callable[[], float], *, silence_s: float, stall_s: float
    ) -> None:
        """`silence_s`: most seconds between two reads of a response; 0: any. `stall_s`: for how long a client may not
        read."""
        self._metrics, self._clock = metrics, clock
        self._silence_s, self._stall_s = silence_s, stall_s
        self._lane: _native.Lane | None = None
        self._paused: dict[int, asyncio.Future[None]] = {}
        self._last = 0
        self._differs: Differs = lambda route, kinds, id_: None
        self._is_doubted = False

    def join(self, lane: "_native.Lane", differs: Differs) -> None:
        """The data plane of this lane relays from now on. `differs`: it did not pass a stream on as Python does."""
        self._lane, self._differs = lane, differs

    def doubt(self) -> None:
        """From now on Python relays all streams."""
        self._is_doubted = True

    def samples(self, id_: str) -> bool:
        """Whether a stream is counted again. `id_`: of its request, made by this gateway."""
        return int(id_[8:16], 16) % RECOUNT_ONE_IN == 0

    def recounted(self, route: str, kinds: Sequence[str], id_: str) -> None:
        """A part of a stream was counted again, and differed in this."""
        self._differs(route, kinds, id_)

    @property
    def lane(self) -> "_native.Lane":
        """After `join`."""
        assert self._lane is not None
        return self._lane

    def paused(self, ids: Sequence[int]) -> None:
        """These relays wait for Python."""
        for id_ in ids:
            waiter = self._paused.pop(id_, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def wait(self, id_: int) -> "asyncio.Future[None]":
        """Done when the relay waits for Python."""
        self._paused[id_] = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def forget(self, id_: int, why: str) -> None:
        """The relay has ended."""
        self._paused.pop(id_, None)
        self._metrics.relayed_in_plane(why)

    def lend(self, request: web.Request, rest: Reply) -> LentStream | None:
        """The rest of a response whose events are sent as they come; None: Python relays it, here at least."""
        if self._lane is None or NATIVE is None or self._is_doubted:
            return None
        connection: EndpointConnection | None = getattr(rest, "connection", None)
        client = _socket_of(request)
        if client is None or not isinstance(connection, EndpointConnection):
            return None
        try:
            own = client.dup()
        except OSError:
            return None  # there is no descriptor
        if (lent := connection.lend()) is None:
            own.close()
            return None
        decoder, server = lent
        self._last += 1
        native = NATIVE.EventRelay(
            self._last,
            own.detach(),
            server.detach(),
            decoder,
            silence_s=self._silence_s,
            stall_s=self._stall_s,
            now_s=self._clock(),
        )
        return LentStream(self, connection, native, self._last)


def _socket_of(request: web.Request) -> socket.socket | None:
    """The socket of a client that gets chunks as they are written, and has all that was written so far."""
    transport, writer = request.transport, request._payload_writer
    if type(writer) is not StreamWriter or not writer.chunked or writer._compress is not None or transport is None:
        return None
    if transport.is_closing() or transport.get_write_buffer_size():
        return None
    if transport.get_extra_info("sslcontext") and not isinstance(transport, SecuredTransport):
        return None  # what is written to its socket is encrypted here
    found: socket.socket | None = transport.get_extra_info("socket")
    return found
