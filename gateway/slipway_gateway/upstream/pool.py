"""Connections to endpoints that wait for their next request."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from aiohttp import ClientRequest, hdrs
from yarl import URL

from .connection import EndpointConnection

IDLE_S = 15.0
# Idle connections of one endpoint. A burst of streams leaves more, which are closed.
MAX_IDLE = 256
MAX_ORIGINS = 4096

if TYPE_CHECKING:
    from slipway_plane import _native

Connect = Callable[[ClientRequest], Awaitable[EndpointConnection]]
Prepare = Callable[[EndpointConnection], None]
Adopt = Callable[[socket.socket, Prepare], Awaitable[EndpointConnection]]


class Origin:
    """One endpoint. `request`: what a connector needs to connect. `path`: prefix of the path of each request. `idle`:
    its idle connections; the last one was used last."""

    __slots__ = ("host_line", "idle", "is_dropped", "path", "request")

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.request = ClientRequest("POST", URL(url, encoded=True), loop=session._loop, session=session)
        self.host_line = f"Host: {self.request.headers[hdrs.HOST]}\r\n".encode()
        self.path = urlsplit(url).path
        self.idle: list[EndpointConnection] = []
        self.is_dropped = False


class EndpointPool:
    """Connections to all endpoints. `connect`: opens one, or raises what aiohttp's connector raises.

    `adopt`: makes a connection of an open socket, and calls a function with it before anything is read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connect: Connect, adopt: Adopt) -> None:
        self._loop, self._connect, self._adopt = loop, connect, adopt
        self._origins: OrderedDict[str, Origin] = OrderedDict()
        self._open: set[EndpointConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """Connections that are open."""
        return len(self._open)

    def origin(self, url: str, session: aiohttp.ClientSession) -> Origin:
        found = self._origins.get(url)
        if found is None:
            self._origins[url] = found = Origin(url, session)
            if len(self._origins) > MAX_ORIGINS:
                _, oldest = self._origins.popitem(last=False)
                oldest.is_dropped = True
                for connection in oldest.idle:
                    connection.close()
        return found

    async def take(self, origin: Origin) -> EndpointConnection:
        """The idle connection that was used last, or a new one."""
        idle = origin.idle
        while idle:
            connection = idle.pop()
            if connection.is_open:
                if self._loop.time() - connection.idle_since_s < IDLE_S:
                    return connection
                connection.close()
        return await self.connect(origin)

    async def connect(self, origin: Origin) -> EndpointConnection:
        """A new connection."""
        if self._closed:
            raise aiohttp.ClientConnectionError("Connector is closed.")
        made = await self._connect(origin.request)
        if self._closed or not made.is_open:
            made.close()
            raise aiohttp.ClientConnectionResetError("The connection was closed at once.")

        self._own(origin, made)
        return made

    async def take_over(self, origin: Origin, begun: "_native.Begun") -> EndpointConnection:
        """A connection on which the fast lane has sent a request; `awaited` is its response.

        Raises:
            ConnectionTimeoutError: the lane could open none.
        """
        descriptor = begun.detach()
        if descriptor is None:
            raise aiohttp.ConnectionTimeoutError("the data plane could not connect")
        opened = socket.socket(fileno=descriptor)
        if self._closed:
            opened.close()
            raise aiohttp.ClientConnectionError("Connector is closed.")

        def prepare(made: EndpointConnection) -> None:
            self._own(origin, made)
            made.goes_on(begun.take_received(), begun.take_unsent(), begun.ages_s[1], was_idle=begun.was_idle)

        try:
            return await self._adopt(opened, prepare)
        except BaseException:
            opened.close()
            raise

    def _own(self, origin: Origin, made: EndpointConnection) -> None:
        def forget(connection: EndpointConnection) -> None:
            self._open.discard(connection)
            if connection in origin.idle:
                origin.idle.remove(connection)

        made.on_idle, made.on_lost = partial(self._keep, origin), forget
        self._open.add(made)

    def _keep(self, origin: Origin, connection: EndpointConnection) -> None:
        if self._closed or origin.is_dropped or len(origin.idle) >= MAX_IDLE:
            connection.close()
            return
        connection.idle_since_s, connection.was_idle = self._loop.time(), True
        origin.idle.append(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_S, self._close_unused)

    def _close_unused(self) -> None:
        self._timer = None
        last_s = self._loop.time() - IDLE_S
        left = False
        for origin in self._origins.values():
            kept = []
            for connection in origin.idle:
                if connection.idle_since_s > last_s:
                    kept.append(connection)
                else:
                    connection.close()
            origin.idle[:] = kept
            left = left or bool(kept)
        if left:
            self._timer = self._loop.call_later(IDLE_S, self._close_unused)

    def close(self, *, abort_tls: bool) -> list[Awaitable[object]]:
        """Closes all connections, also those in use; returns what to await. `abort_tls`: without a closing alert."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waits: list[Awaitable[object]] = []
        for connection in self._open:
            connection.close(abort=abort_tls and connection.has_tls)
            if (closed := connection.closed()) is not None:
                waits.append(closed)
        return waits
