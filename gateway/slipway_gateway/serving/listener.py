"""HTTP ports: bounded connections and heads, refusals in the shape of the API, timeouts for idle connections."""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import http_exceptions, web

from slipway_process.network.http_server import HttpRunner, ServerConnection
from slipway_process.network.request_heads import MAX_HEAD_BYTES
from slipway_process.places import SHARE, Places

from ..limits.budget import Account, MemoryBudget, unlimited
from ..limits.connections import address_owner
from ..limits.transports import bound_buffers
from ..plane.port import PlanePort
from ..plane.transports import SecuredTransport
from ..settings import GatewaySettings
from ..wire import errors
from .tls import Handshake, ServerTls

if TYPE_CHECKING:
    from slipway_plane import _native

Refuse = Callable[[errors.RequestError, web.BaseRequest], web.Response]
ConnectionHook = Callable[[int], None]

_ADDRESS = "address"  # why a connection is refused, in metrics
# At the limit, connections that were idle for this long are closed; the second value is the interval of that check.
_IDLE_S = 5.0
_SWEPT_S = 1.0
# In a drain, how long a client has for the next request on its connection, and the interval of that check.
_DRAIN_IDLE_S = 1.0
_DRAIN_CHECK_S = 0.05
# Requests that may wait behind the one that runs. Behind more of them the connection would not be read: a client that
# left would be noticed only when the running request ends.
_MAX_PIPELINED = 8


def _plain_response(refusal: errors.RequestError, _: web.BaseRequest) -> web.Response:
    return web.Response(body=refusal.body(), status=refusal.status, content_type="application/json")


class ConnectionLimiter:
    """Bounds the connections of one port. Hooks are called when one is opened, closed or refused.

    `budget`: where long heads, and those that are not whole, count for their address.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        refuse: Refuse = _plain_response,
        *,
        budget: MemoryBudget | None = None,
        changed: ConnectionHook = lambda by: None,
        turned_away: Callable[[str, int], None] = lambda reason, connections: None,
    ) -> None:
        self.refuse = refuse
        self._budget = budget
        self.header_timeout_s = settings.header_timeout_s
        self.max_head_bytes = max(MAX_HEAD_BYTES, settings.max_header_bytes)
        self.max_connections, self.max_per_address = settings.max_connections, settings.max_connections_per_address
        self.percentage = 100 if self.max_per_address else 50
        self._places = Places(self.max_connections, self.percentage, self.max_per_address)
        self.plane: PlanePort | None = None  # which counts the connections of this port, where there is one
        self._changed = changed
        self._turned_away = turned_away
        # Those that the data plane has handed over have their places there.
        self._inside: dict[_Connection | Handshake, _native.Handed | None] = {}
        self._swept_s = 0.0
        self.came_s = float("-inf")  # the loop's time at which the last connection was admitted

    def enter(self, connection: "_Connection | Handshake", owner: str, now_s: float) -> errors.RequestError | None:
        """Admits a connection and returns None, or returns the error. At the limit it first closes idle connections."""
        if self._places.used >= self._places.limit:
            self.make_room(now_s)
        if reason := self._places.take(owner):
            self.refused(_ADDRESS if reason == SHARE else reason)
            return errors.too_many_connections(of_address=reason == SHARE)
        self._inside[connection] = None
        self.came_s = now_s
        self._changed(1)
        return None

    def enter_handed(self, connection: "_Connection | Handshake", handed: "_native.Handed") -> None:
        """A connection comes that the data plane has admitted."""
        self._inside[connection] = handed
        self.came_s = asyncio.get_running_loop().time()

    def leave(self, connection: "_Connection | Handshake", owner: str) -> None:
        if connection not in self._inside:
            return
        if handed := self._inside.pop(connection):
            handed.leave()
            return
        self._places.leave(owner)
        self._changed(-1)

    def pass_on(self, connection: "Handshake") -> None:
        """The next one to enter has its place at the data plane."""
        del self._inside[connection]

    def refusal(self, *, of_address: bool) -> bytes:
        """The whole response on a connection that the data plane refuses."""
        return _without_request(errors.too_many_connections(of_address=of_address))

    def refused(self, reason: str, connections: int = 1) -> None:
        self._turned_away(reason, connections)

    def open_account(self, owner: str) -> Account:
        return self._budget.open(f"address:{owner}") if self._budget else unlimited()

    def make_room(self, now_s: float) -> None:
        """All places are taken: closes idle connections, unless it did so a moment ago."""
        if now_s - self._swept_s < _SWEPT_S:
            return
        self._swept_s = now_s
        for connection in list(self._inside):
            if connection.idle_since_s(now_s) <= now_s - _IDLE_S:
                self.refused("idle")
                connection.force_close()
        if self.plane:
            self.plane.close_silent(_IDLE_S)

    async def drain(self) -> None:
        """Returns when every connection has ended, after the port was closed.

        A response that began before the drain promised its client that the connection stays. A request that follows
        at once is served, by a response with `Connection: close`; a connection on which none comes is closed.
        """
        while self._inside or (self.plane and self.plane.connections):
            now_s = asyncio.get_running_loop().time()
            for connection in list(self._inside):
                if not connection.reads_head and connection.idle_since_s(now_s) <= now_s - _DRAIN_IDLE_S:
                    connection.force_close()
            await asyncio.sleep(_DRAIN_CHECK_S)


async def listen(
    app: web.Application,
    host: str,
    port: int,
    settings: GatewaySettings,
    door: ConnectionLimiter | None = None,
    tls: ServerTls | None = None,
    *,
    context: ssl.SSLContext | None = None,
    plane: PlanePort | None = None,
) -> web.AppRunner:
    """Opens a port. `door`: bounds connections and renders errors for malformed requests, which reach no route.

    `context`: TLS in place of `tls` for a port inside the release, without bounds of handshakes. `plane`: accepts in
    place of asyncio; it ends with the runner's cleanup.
    """
    # aiohttp's own logger reports every malformed request with a traceback: noise that a client controls.
    quiet = logging.getLogger("slipway_gateway.http")
    quiet.setLevel(logging.CRITICAL)
    door = door or ConnectionLimiter(settings)

    def connection(server: web.Server, **options: Any) -> _Connection | Handshake:
        made = _Connection(server, door, **options)
        return Handshake(tls, door, made) if tls and not plane else made

    runner = HttpRunner(
        app,
        connection,
        access_log=None,
        logger=quiet,
        handler_cancellation=True,
        auto_decompress=False,
        keepalive_timeout=settings.keepalive_timeout_s,
        max_line_size=settings.max_header_bytes,
        max_field_size=settings.max_header_bytes,
        # Draining is done before cleanup; what is left then is cut.
        shutdown_timeout=0.5,
    )
    if plane:
        app.on_cleanup.append(lambda _: plane.close())
    await runner.setup()
    if plane:
        await _PlaneSite(runner, host or None, port, plane, door, tls).start()
    else:
        await web.TCPSite(runner, host or None, port, backlog=1024, ssl_context=context).start()
    return runner


class _PlaneSite(web.BaseSite):
    """A port on which the data plane accepts. Python binds it, and has its addresses."""

    __slots__ = ("_door", "_host", "_plane", "_port", "_tls")

    def __init__(
        self,
        runner: web.AppRunner,
        host: str | None,
        port: int,
        plane: PlanePort,
        door: ConnectionLimiter,
        tls: ServerTls | None,
    ) -> None:
        super().__init__(runner)
        self._host, self._port, self._plane, self._door, self._tls = host, port, plane, door, tls

    @property
    def name(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._host or '0.0.0.0'}:{self._port}"

    async def start(self) -> None:
        await super().start()
        server = self._runner.server
        assert server is not None
        bound = await asyncio.get_running_loop().create_server(server, self._host, self._port, start_serving=False)
        self._server = bound
        self._door.plane = self._plane
        self._plane.open(bound.sockets, self._door, self._serve, self._tls)

    async def stop(self) -> None:
        self._plane.drain(_DRAIN_IDLE_S)
        await super().stop()

    def _serve(self, handed: "_native.Handed") -> "_Connection | Handshake":
        assert self._runner.server is not None
        connection = self._runner.server()
        assert isinstance(connection, _Connection)
        connection.handed, connection.tls = handed, self._tls
        if self._tls and handed.needs_handshake:
            return Handshake(self._tls, self._door, connection, handed=handed)
        return connection


def check_head(request: web.Request) -> None:
    """Raises RequestError 429: there is no room for the head of this request."""
    if isinstance(request.protocol, _Connection) and not request.protocol.has_room:
        raise errors.no_room_for_heads()


def begun_in_lane(request: web.BaseRequest) -> "_native.Begun | None":
    """What the fast lane did with this request before it gave its connection to Python; None: nothing. Once only."""
    handed = request.protocol.handed if isinstance(request.protocol, _Connection) else None
    return handed.take_begun() if handed else None


def stays_in_python(request: web.BaseRequest, *, stays: bool) -> None:
    """Whether the next request of this connection is probably Python's too, as after a response that no cache had: then
    the connection does not go back to the fast lane before it."""
    if isinstance(request.protocol, _Connection):
        request.protocol.stays = stays


class _Connection(ServerConnection):
    """One client's connection."""

    __slots__ = (
        "_account",
        "_door",
        "_head_timer",
        "_idle_since_s",
        "_is_made",
        "_owner",
        "_shut",
        "_tables",
        "handed",
        "has_room",
        "stays",
        "tls",
    )

    def __init__(self, server: web.Server, door: ConnectionLimiter, **options: Any) -> None:
        super().__init__(server, max_head_bytes=door.max_head_bytes, **options)
        self._door = door
        self._owner = ""
        self.handed: _native.Handed | None = None  # what the data plane knows of it, where that accepted it
        self.stays = False  # in Python, after its last request
        self.tls: ServerTls | None = None  # of its port, where the data plane accepted it
        self._shut = self._is_made = False
        # When it came: it may be plain by another table.
        self._tables = door.plane.lane.tables if door.plane and door.plane.lane else 0
        self._account: Account | None = None  # of heads
        self.has_room = True  # for the head of the next request
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._idle_since_s = self._loop.time()
        if self.handed and self.tls and (secured := self.handed.secured):
            transport = SecuredTransport(transport, secured, self.tls.context())
        if self.handed:
            self._owner = self.handed.owner
            self._door.enter_handed(self, self.handed)
        elif refusal := self._enter(transport):
            self._shut = True
            transport.write(_without_request(refusal))
            transport.close()
            return
        bound_buffers(transport)
        self._is_made = True
        super().connection_made(transport)
        if self.handed and (first_bytes := self.handed.take_first_bytes()):
            # Before the transport begins to read what follows.
            self.data_received(first_bytes)

    def _enter(self, transport: asyncio.Transport) -> errors.RequestError | None:
        peer = transport.get_extra_info("peername")
        self._owner = address_owner(str(peer[0]) if peer else "")
        return self._door.enter(self, self._owner, self._idle_since_s)

    def data_received(self, data: bytes) -> None:
        if self._shut:
            return
        super().data_received(data)
        if self.transport is None:
            return
        if self._pipelines_too_much():
            self.transport.abort()
            return
        if (self._account or self._heads.held_bytes) and not self._count_heads():
            self._refuse_head(self.transport)
            return
        # A head that is not whole yet is no message; a body's bytes come while there is a request.
        if self._messages or self._current_request is not None:
            self._stop_timer()
        elif self._head_timer is None and not self._force_close:
            self._head_timer = self._loop.call_later(self._door.header_timeout_s, self._head_is_late)

    def _count_heads(self) -> bool:
        """Counts what is held of heads; returns whether there is room for it."""
        if self._account is None:
            self._account = self._door.open_account(self._owner)
        more_bytes = self._heads.held_bytes - self._account.held_bytes
        if more_bytes > 0:
            return not self._account.grow(more_bytes)
        self._account.shrink(-more_bytes)
        return True

    def _refuse_head(self, transport: asyncio.Transport) -> None:
        """There is no room for what came last: a head, a part of one, or more behind another request."""
        if self._current_request is not None or len(self._messages) > 1:
            transport.abort()  # a response may have begun
        elif self._messages:
            self.has_room = False  # its request is refused, and counted
        else:
            self._shut = True
            transport.write(_without_request(errors.no_room_for_heads()))
            self.force_close()

    def _served(self, message: Any) -> None:
        super()._served(message)
        self.has_room = True
        if self._account:
            self._count_heads()

    def _goes_elsewhere(self) -> bool:
        transport, lane = self.transport, self._door.plane.lane if self._door.plane else None
        if self.handed is None or lane is None or self.stays or not isinstance(transport, asyncio.Transport):
            return False
        at_once, with_table = self.handed.returns
        if (
            not (at_once or (with_table and lane.tables != self._tables))
            or not lane.is_open
            or self._keepalive is False
        ):
            return False
        rests = self._heads.held_bytes or transport.get_write_buffer_size() or transport.is_closing()
        if rests or self._payload_parser is not None or self._upgraded or self._head_timer is not None:
            return False
        transport.pause_reading()  # what comes from now on waits in the kernel, for the lane
        self.handed.give_back(lane.native, os.dup(transport.get_extra_info("socket").fileno()))
        return True

    def _pipelines_too_much(self) -> bool:
        """Whether more came behind the running request than the gateway reads."""
        waiting = len(self._messages) - (self._current_request is None)
        return waiting > _MAX_PIPELINED or (waiting > 0 and self._reading_paused)

    async def _drain_helper(self) -> None:
        # A write that a time limit ended leaves its cancelled future to the next one, which would end by it at once.
        if self._drain_waiter is not None and self._drain_waiter.cancelled():
            self._drain_waiter = None
        await super()._drain_helper()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        self._door.leave(self, self._owner)
        if self._account:
            self._account.close()
        if self._is_made:
            super().connection_lost(exc)

    @property
    def reads_head(self) -> bool:
        """Whether a part of a request's head has come."""
        return self._head_timer is not None

    def idle_since_s(self, now_s: float) -> float:
        """Time at which the connection began to wait for a request; `now_s` while it has one."""
        if self._messages or self._current_request is not None or self._waiter is None:
            return now_s
        # aiohttp sets this with each response.
        return max(self._idle_since_s, self._next_keepalive_close_time - self._keepalive_timeout)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._messages and self._current_request is None:
            self.force_close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status != 400 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        refusal = errors.bad_head(too_long=isinstance(exc, http_exceptions.LineTooLong))
        response = self._door.refuse(refusal, request)
        response.force_close()
        return response


def _without_request(refusal: errors.RequestError) -> bytes:
    """The response on a connection that is refused, from which nothing is read."""
    body = refusal.body()
    head = f"HTTP/1.1 {refusal.status} Refused\r\nRetry-After: {refusal.retry_after_s}\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
