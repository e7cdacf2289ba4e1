"""HTTP ports: bounded connections and heads, refusals in the shape of the API, timeouts for idle connections."""

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, http_exceptions, web
from aiohttp.http_writer import StreamWriter
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import ERROR, _ErrInfo

from ..limits.connections import ADDRESS, ConnectionCounts, address_owner
from ..limits.transports import bound_buffers
from ..settings import GatewaySettings
from ..wire import errors
from .tls import Handshake, ServerTls

Refuse = Callable[[errors.RequestError, web.BaseRequest], web.Response]
ConnectionHook = Callable[[int], None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

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
    """Bounds the connections of one port. Hooks are called when one is opened, closed or refused."""

    def __init__(
        self,
        settings: GatewaySettings,
        refuse: Refuse = _plain_response,
        *,
        changed: ConnectionHook = lambda by: None,
        turned_away: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.refuse = refuse
        self.header_timeout_s = settings.header_timeout_s
        self._connections = ConnectionCounts(settings.max_connections, settings.max_connections_per_address)
        self._changed = changed
        self._turned_away = turned_away
        self._inside: dict[_Connection | Handshake, None] = {}
        self._swept_s = 0.0

    def enter(self, connection: "_Connection | Handshake", owner: str, now_s: float) -> errors.RequestError | None:
        """Admits a connection and returns None, or returns the error. At the limit it first closes idle connections."""
        if self._connections.full and now_s - self._swept_s >= _SWEPT_S:
            self._swept_s = now_s
            self._sweep(now_s)
        if reason := self._connections.refused(owner):
            self._turned_away(reason)
            return errors.too_many_connections(of_address=reason == ADDRESS)
        self._inside[connection] = None
        self._changed(1)
        return None

    def leave(self, connection: "_Connection | Handshake", owner: str) -> None:
        if connection in self._inside:
            del self._inside[connection]
            self._connections.left(owner)
            self._changed(-1)

    def _sweep(self, now_s: float) -> None:
        for connection in list(self._inside):
            if connection.idle_since_s(now_s) <= now_s - _IDLE_S:
                self._turned_away("idle")
                connection.force_close()

    async def drain(self) -> None:
        """Returns when every connection has ended, after the port was closed.

        A response that began before the drain promised its client that the connection stays. A request that follows
        at once is served, by a response with `Connection: close`; a connection on which none comes is closed.
        """
        while self._inside:
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
    context: ssl.SSLContext | None = None,
) -> web.AppRunner:
    """Opens a port. `door`: bounds connections and renders errors for malformed requests, which reach no route.

    `context`: TLS in place of `tls` for a port inside the release, without bounds of handshakes.
    """
    # aiohttp's own logger reports every malformed request with a traceback: noise that a client controls.
    quiet = logging.getLogger("slipway_gateway.http")
    quiet.setLevel(logging.CRITICAL)
    runner = _Runner(
        app,
        door or ConnectionLimiter(settings),
        tls,
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
    await runner.setup()
    await web.TCPSite(runner, host or None, port, backlog=1024, ssl_context=context).start()
    return runner


class _Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_door", "_head_timer", "_idle_since_s", "_owner", "_shut")

    def __init__(self, server: web.Server, door: ConnectionLimiter, **options: Any) -> None:
        super().__init__(server, **options)
        self._door = door
        self._owner = ""
        self._shut = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self._owner = address_owner(str(peer[0]) if peer else "")
        self._idle_since_s = now_s = self._loop.time()
        if refusal := self._door.enter(self, self._owner, now_s):
            self._shut = True
            transport.write(_without_request(refusal))
            transport.close()
            return
        bound_buffers(transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._shut:
            return
        super().data_received(data)
        if self._pipelines_too_much() and self.transport is not None:
            self.transport.abort()
            return
        # A head that is not whole yet is no message; a body's bytes come while there is a request.
        if self._messages or self._current_request is not None:
            self._stop_timer()
        elif self._head_timer is None and not self._force_close:
            self._head_timer = self._loop.call_later(self._door.header_timeout_s, self._head_is_late)

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:  # readers of bodies call it after each read
            super().resume_reading(resume_parser)

    async def start(self) -> None:
        """Serves the requests of the connection, one after the other, in its own task.

        aiohttp's own makes a task for each request, which starts and ends in further turns of the event loop.
        """
        while not self._force_close:
            if not self._messages:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = self._messages.popleft()
            self._took_message()
            try:
                goes_on = await self._serve(message, payload)
            except ConnectionError:
                break
            except asyncio.CancelledError:
                self.force_close()
                raise
            except Exception as error:
                self.log_exception("the connection ends", exc_info=error)
                self.force_close()
                break
            if not goes_on or not self._keepalive or self._close or self._force_close:
                break
            self._next_keepalive_close_time = close_s = self._loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = self._loop.call_at(close_s, self._process_keepalive)
        self._end()

    def _took_message(self) -> None:
        """Goes on reading where messages that waited held it up."""
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()

    def _end(self) -> None:
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _serve(self, message: Any, payload: StreamReader) -> bool:
        """Serves one request; returns whether another one may follow."""
        assert self._request_factory is not None
        assert self._request_handler is not None
        assert self._task_handler is not None
        handler = self._request_handler
        if isinstance(message, _ErrInfo):
            handler, message = self._make_error_handler(message), ERROR
        writer = StreamWriter(self, self._loop)
        request = self._request_factory(message, payload, self, writer, self._task_handler)
        response, is_lost = await self._handle_request(request, None, handler)
        self._keepalive = bool(response.keep_alive)
        if not (is_lost or payload.is_eof() or self._force_close):
            await self._linger(payload)
        return not is_lost

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if resp._eof_sent and not self._upgraded:
            return resp, False  # most responses were sent to their end: nothing is left to do
        return await super().finish_response(request, resp, start_time)

    async def _linger(self, payload: StreamReader) -> None:
        """Reads the rest of a body that no handler read, for a while; the connection ends if more of it is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lingering_time):
                while not payload.is_eof():
                    await payload.readany()
        if not payload.is_eof():
            self.close()

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
        if not self._shut:
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


class _PlainPaths:
    """Finds handlers of paths without parameters in a dict; other requests go to the application's slower router."""

    def __init__(self, app: web.Application, otherwise: Handler) -> None:
        self._otherwise = otherwise
        self._found: dict[tuple[str, str], tuple[web.UrlMappingMatchInfo, Handler]] = {}
        resources = app.router.resources() if not app.middlewares else ()
        plain = [resource for resource in resources if isinstance(resource, web.PlainResource)]
        for route in itertools.chain.from_iterable(plain):
            if route.resource and route.method != hdrs.METH_ANY:
                found = web.UrlMappingMatchInfo({}, route)
                found.add_app(app)
                found.freeze()
                self._found.setdefault((route.method, route.resource.canonical), (found, found.handler))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        found = self._found.get((request.method, request.raw_path))
        if found is None or hdrs.EXPECT in request.headers:
            return await self._otherwise(request)
        request._match_info, handler = found
        return await handler(request)


class _Server(web.Server):
    """Makes a `_Connection` or a `Handshake` where aiohttp's server makes a `RequestHandler`."""

    def __init__(
        self, made: web.Server, app: web.Application, door: ConnectionLimiter, tls: ServerTls | None, **options: Any
    ) -> None:
        handler = _PlainPaths(app, made.request_handler).handle
        super().__init__(handler, request_factory=made.request_factory, **options)
        self._door = door
        self._tls = tls
        self._options = {name: value for name, value in options.items() if name not in ("handler_cancellation", "loop")}

    def __call__(self) -> Any:
        connection = _Connection(self, self._door, loop=asyncio.get_running_loop(), **self._options)
        return Handshake(self._tls, self._door, connection) if self._tls else connection


class _Runner(web.AppRunner):
    __slots__ = ("_door", "_tls")

    def __init__(self, app: web.Application, door: ConnectionLimiter, tls: ServerTls | None, **options: Any) -> None:
        super().__init__(app, **options)
        self._door = door
        self._tls = tls

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self.app, self._door, self._tls, **self._kwargs)
