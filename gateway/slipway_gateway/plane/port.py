"""The public port where the data plane accepts: gets connections with their first bytes, and serves them in Python."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from slipway_plane import NATIVE
from slipway_process.supervisor import observe

from ..settings import GatewaySettings
from ..telemetry.access_log import AccessLog
from ..telemetry.metrics import GatewayMetrics
from ..telemetry.tracing import Traces
from .library import PlaneState, choose

if TYPE_CHECKING:
    from slipway_plane import _native

log = logging.getLogger(__name__)
_CENTURY_S = 3e9
_DRAIN_S = 0.25  # how often the counts of the fast lane are taken


class Bounds(Protocol):
    """What the port is bounded by, as `serving.listener.ConnectionLimiter` has it."""

    max_connections: int
    max_per_address: int
    percentage: int
    header_timeout_s: float

    def refusal(self, *, of_address: bool) -> bytes:
        """The whole response on a connection that is refused."""

    def refused(self, reason: str, connections: int) -> None:
        """Counts connections that were refused or, because others wait for a place, closed."""

    def make_room(self, now_s: float) -> None:
        """All places are taken: closes idle connections."""


class Pem(Protocol):
    """Files of TLS, as `serving.tls.Pem` has them."""

    @property
    def certificate(self) -> bytes: ...
    @property
    def private_key(self) -> bytes: ...
    @property
    def client_ca(self) -> bytes: ...
    @property
    def requires_client(self) -> bool: ...
    @property
    def is_newest(self) -> bool: ...
    def has_roots_alone(self) -> bool:
        """Whether the data plane verifies clients as OpenSSL does."""


class Tls(Protocol):
    """TLS of the port, as `serving.tls.ServerTls` has it."""

    @property
    def pem(self) -> Pem: ...

    on_change: Callable[[], None]

    def look(self) -> None:
        """Reads the files again if they have changed."""


class Lane(Protocol):
    """The fast lane, as `fast_lane.lane.FastLane` has it."""

    native: "_native.Lane"
    tables: int  # that were published so far
    is_open: bool  # whether it serves requests

    def drain(self) -> None:
        """Adds what it counted to Python's counters."""

    def recount(self, one: "_native.Recount") -> None:
        """Counts one of its requests again."""

    def count_together(
        self,
        calls: Sequence["_native.Call"],
        settlements: Sequence["_native.Settlement"],
        take_more: Callable[[], None],
    ) -> None:
        """Has requests counted with other gateways, and ends those that were. `take_more`: called after answers."""


class PlaneEnded(Exception):
    """The thread of the data plane ended: connections wait in the kernel until it runs again."""


class PlanePort:
    """One port. `open` begins to accept, `drain` closes the port, `close` ends the thread."""

    def __init__(self, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        # A client that connects and sends nothing has as long as one that has been served.
        self._longest_silence_s = settings.keepalive_timeout_s or settings.header_timeout_s
        self._listener: _native.Listener | None = None
        self._bounds: Bounds | None = None
        self._serve: Callable[[_native.Handed], asyncio.Protocol] | None = None
        self._ended: asyncio.Future[str] | None = None
        self._lane: Lane | None = None
        self._log: AccessLog | None = None
        self._traces: Traces | None = None
        self.relays_paused: Callable[[Sequence[int]], None] = lambda ids: None  # streams wait for Python
        self._work: tuple[Callable[[], None], ...] = ()
        self._connecting: set[asyncio.Task[None]] = set()

    def join(self, lane: Lane, access_log: AccessLog, traces: Traces, *work: Callable[[], None]) -> None:
        """The fast lane serves plain requests. `access_log`, `traces`: have their lines and their spans.

        `work`: is done from time to time.
        """
        self._lane, self._log, self._traces = lane, access_log, traces
        self._work = (self._take_quiet_news, lane.drain, *work)

    def open(
        self,
        sockets: Iterable[socket.socket],
        bounds: Bounds,
        serve: Callable[["_native.Handed"], asyncio.Protocol],
        tls: Tls | None = None,
    ) -> None:
        """Accepts on copies of bound `sockets`. `serve`: the protocol of a connection, which feeds it the first bytes.
        `tls`: whose handshakes are done here, or by that protocol.

        Raises:
            OSError: a socket cannot listen.
        """
        assert NATIVE is not None
        self._bounds, self._serve = bounds, serve
        self._listener = listener = NATIVE.Listener(
            [one.dup().detach() for one in sockets],
            max_connections=bounds.max_connections,
            percentage=bounds.percentage,
            max_per_address=bounds.max_per_address,
            longest_silence_s=min(self._longest_silence_s, _CENTURY_S),
            refusal_total=bounds.refusal(of_address=False),
            refusal_share=bounds.refusal(of_address=True),
            lane=self._lane.native if self._lane else None,
            longest_handshake_s=bounds.header_timeout_s if tls else None,
        )
        if tls and self._lane:
            tls.on_change = partial(self._secure, listener, tls)
            tls.on_change()
            self._work += (tls.look,)
        self._metrics.connections_of_plane(lambda: listener.connections)
        listener.start()
        asyncio.get_running_loop().add_reader(listener.fileno(), self._take_news)

    def _secure(self, listener: "_native.Listener", tls: Tls) -> None:
        """Handshakes are done by the files that are there now. Those that the library cannot use are Python's alone."""
        certificate, private_key, client_ca = tls.pem.certificate, tls.pem.private_key, tls.pem.client_ca
        requires_client, is_newest = tls.pem.requires_client, tls.pem.is_newest
        try:
            if not tls.pem.has_roots_alone():
                raise ValueError("client CA: a certificate is no root")
            listener.secure(certificate, private_key, client_ca, requires_client=requires_client, is_newest=is_newest)
        except ValueError as error:
            listener.leave_handshakes()
            log.warning("Python does the TLS handshakes", extra={"reason": str(error)})

    @property
    def lane(self) -> Lane | None:
        """Serves plain requests, where it does."""
        return self._lane

    @property
    def connections(self) -> int:
        """Connections that have a place, whether Python has them already or not."""
        return self._listener.connections if self._listener else 0

    def close_silent(self, idle_s: float) -> None:
        """Closes connections of which no byte came for `idle_s`."""
        if self._listener:
            self._listener.close_silent(idle_s)

    def drain(self, longest_silence_s: float) -> None:
        """Closes the port. A connection without a first byte is closed when it is that old."""
        if self._listener:
            self._listener.drain(longest_silence_s)

    async def run(self) -> None:
        """Watches the thread, and starts it again where it had ended.

        Raises:
            PlaneEnded: it ended.
            OSError: it cannot start.
        """
        assert self._listener is not None
        self._ended = asyncio.get_running_loop().create_future()
        self._listener.start()
        while not self._ended.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S if self._work else None):
                    await asyncio.shield(self._ended)
            for work in self._work:
                work()
        raise PlaneEnded(self._ended.result())

    async def close(self) -> None:
        """Ends the thread. Connections that Python does not have yet are closed."""
        if (listener := self._listener) is None:
            return
        self._listener = None
        asyncio.get_running_loop().remove_reader(listener.fileno())
        await asyncio.to_thread(listener.stop)
        self._take_counted(listener.take())
        if self._lane is not None:
            self._lane.drain()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _take_quiet_news(self) -> None:
        """News for which the thread wakes no one."""
        if self._listener is not None:
            self._take_news()

    def _take_counted(self, news: "_native.News") -> None:
        """Requests of the fast lane that have lines in the access log or spans, and those to count again."""
        if self._lane is None or self._log is None or self._traces is None:
            return
        for entry in news.logged:
            if entry.is_logged:
                self._log.ended_in_lane(entry)
            if entry.is_traced:
                self._traces.ended_in_lane(entry)
                self._metrics.recorded_in_lane(entry)
        if news.unlogged:
            self._metrics.access_log_dropped("total", news.unlogged)
        for one in news.recounts:
            self._lane.recount(one)
        if news.paused_relays:
            self.relays_paused(news.paused_relays)
        if news.calls or news.settlements:
            self._lane.count_together(news.calls, news.settlements, self._take_quiet_news)

    def _take_news(self) -> None:
        assert self._listener is not None
        assert self._bounds is not None
        news = self._listener.take()
        self._take_counted(news)
        for handed in news.handed:
            task = observe(asyncio.create_task(self._connect(handed), name="handed connection"))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        counts = {"total": news.refused_total, "address": news.refused_share, "idle": news.closed_idle}
        counts["handshake"] = news.failed_handshakes
        for reason, connections in counts.items():
            if connections:
                self._bounds.refused(reason, connections)
        if news.refused_total:
            self._bounds.make_room(asyncio.get_running_loop().time())
        for kind, times in (("panic", news.panics), ("accept", news.accept_failures)):
            if times:
                log.error("the data plane failed", extra={"kind": kind, "times": times})
                self._metrics.plane_failed(kind, times)
        if news.ended is not None and self._ended and not self._ended.done():
            self._ended.set_result(news.ended)

    async def _connect(self, handed: "_native.Handed") -> None:
        assert self._serve is not None
        opened = socket.socket(fileno=handed.detach())
        try:
            await asyncio.get_running_loop().connect_accepted_socket(partial(self._serve, handed), opened)
        except OSError:
            _abandon(handed, opened)  # the client is gone
        except BaseException:
            _abandon(handed, opened)
            raise


def _abandon(handed: "_native.Handed", opened: socket.socket) -> None:
    opened.close()
    handed.leave()


def plane_port(settings: GatewaySettings, metrics: GatewayMetrics) -> PlanePort | None:
    """The port of the data plane, or None where Python accepts by itself; the metric and a line of the log say why.

    Raises:
        ValueError: it is required, and the library is missing.
    """
    choice = choose(settings)
    metrics.plane_is(choice.state, PlaneState)
    log.info("data plane", extra={"state": choice.state.value, "reason": choice.why})
    return PlanePort(settings, metrics) if choice.state is PlaneState.ON else None
