"""Connections to endpoints, and the first bytes of what comes over them."""

import asyncio
import contextlib
import functools
import math
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from slipway_plane import NATIVE
from slipway_process.network.resolver import NameResolver

from ..limits.budget import Account
from ..limits.transports import read_in_small_pieces
from ..settings import GatewaySettings
from .connection import EndpointConnection, ReadLimits
from .direct import DirectResponse, DirectSender
from .internal_tls import InternalTls
from .pool import EndpointPool, Prepare

# Endpoints are near, so small buffers are fast enough; what a slow client does not read stays at the server.
_RECEIVE_BUFFER_BYTES = 64 << 10
_READ_BYTES = 16 << 10
_TICK_S = 0.1
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


async def read_at_least(response: aiohttp.ClientResponse | DirectResponse, wanted: int, account: Account) -> bytes:
    """Reads until `wanted` bytes are there, the response has ended, or `account` has no room for more of it."""
    if response.content.is_eof():
        # Most responses came in one read: nothing to wait for.
        whole = response.content.read_nowait()
        if wanted > 1 and whole and account.grow(len(whole)):
            account.force(len(whole))
        return whole
    chunks: list[bytes] = []
    size = 0
    while size < wanted and (chunk := await response.content.readany()):
        chunks.append(chunk)
        size += len(chunk)
        if wanted > 1 and account.grow(len(chunk)):
            # This much is here, and counts; the rest is passed on as it comes.
            account.force(len(chunk))
            break
    return b"".join(chunks)


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A node that is gone sends no reset: its connections die by silence, within half a minute."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    # Linux: probes after 10 s without a word, every 5 s; and no more than 25 s for sent bytes to arrive.
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        if option := getattr(socket, name, 0):
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _tick(limit: asyncio.Timeout, ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(_TICK_S)
    limit.reschedule(asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def lag_free_timeout(seconds: float) -> AsyncIterator[None]:
    """Ends its block after so many seconds in which the event loop ran on time.

    A late turn of the loop counts as one tick: what came meanwhile is read before more time is counted. Otherwise an
    overloaded gateway takes its own lag for an endpoint that does not answer.

    Raises:
        TimeoutError: the time is over.
    """
    async with asyncio.timeout(None) as limit:
        ticking = asyncio.create_task(_tick(limit, math.ceil(seconds / _TICK_S)))
        try:
            yield
        finally:
            ticking.cancel()


class EndpointProtocol(ResponseHandler):
    """One connection. One timer for its silence, which looks again when it is due: aiohttp makes one for each read."""

    _silent_since_s = math.inf

    def _reschedule_timeout(self) -> None:
        if not self._read_timeout:
            self._drop_timeout()
            return
        self._silent_since_s = self._loop.time()
        if self._read_timeout_handle is None:
            self._read_timeout_handle = self._loop.call_later(self._read_timeout, self._look)

    def _drop_timeout(self) -> None:
        self._silent_since_s = math.inf

    def _look(self) -> None:
        self._read_timeout_handle = None
        due_s = self._silent_since_s + (self._read_timeout or math.inf)
        if due_s <= self._loop.time():
            self._on_read_timeout()
        elif due_s < math.inf:
            self._read_timeout_handle = self._loop.call_at(due_s, self._look)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._read_timeout_handle is not None:
            self._read_timeout_handle.cancel()
            self._read_timeout_handle = None


class _Connector(aiohttp.TCPConnector):
    """Limits the time of a connect by `lag_free_timeout`, in place of aiohttp's `sock_connect`.

    `pool`: of connections past the session, closed together with the session's own.
    """

    pool: EndpointPool | None = None

    def __init__(
        self, connect_timeout_s: float, tls: InternalTls | None, factory: Callable[..., asyncio.BaseProtocol]
    ) -> None:
        # The pool keeps connections; here each request has a new one. So the end of a connection with a long body never
        # means that a server closed an idle one.
        super().__init__(resolver=NameResolver(), limit=0, force_close=True, socket_factory=_keepalive_socket)
        self._connect_timeout_s, self._tls = connect_timeout_s, tls
        self._factory = functools.partial(factory, loop=self._loop)  # type: ignore[assignment, arg-type]

    async def open(self, request: aiohttp.ClientRequest) -> EndpointConnection:
        """Opens a connection that this connector does not keep."""
        return cast(EndpointConnection, await self._create_connection(request, [], _NO_TIMEOUT))

    async def adopt(self, opened: socket.socket, prepare: Prepare) -> EndpointConnection:
        """Makes a connection of an open socket; `prepare` gets it before anything is read."""

        def factory() -> EndpointConnection:
            made = cast(EndpointConnection, self._factory())
            prepare(made)
            return made

        transport, made = await self._loop.create_connection(factory, sock=opened)
        read_in_small_pieces(transport)
        return made

    def _close(self, *, abort_ssl: bool = False) -> list[Awaitable[object]]:
        return super()._close(abort_ssl=abort_ssl) + (self.pool.close(abort_tls=abort_ssl) if self.pool else [])

    def _get_ssl_context(self, req: aiohttp.ClientRequest) -> ssl.SSLContext | None:
        """A new connection has the present certificate; those that are open stay."""
        return self._tls.client_context() if self._tls and req.is_ssl() else super()._get_ssl_context(req)

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (aiohttp's own signature)
    ) -> ResponseHandler:
        try:
            async with lag_free_timeout(self._connect_timeout_s):
                made = await super()._create_connection(req, traces, timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {req.url}") from error
        if made.transport:
            read_in_small_pieces(made.transport)
        return made


def open_session(settings: GatewaySettings, tls: InternalTls | None = None) -> aiohttp.ClientSession:
    """Connections without a limit of their own (`max_inflight` is the bound); answers pass as they are encoded.

    `tls`: for endpoints with https; without it they need a certificate that the machine trusts.
    """
    connector = _Connector(settings.connect_timeout_s, tls, EndpointProtocol)
    decoder = NATIVE.ChunkDecoder if NATIVE is not None and settings.plane != "off" else None
    limits = ReadLimits(settings.idle_timeout_s, _READ_BYTES, settings.max_header_bytes, decoder)
    dialer = _Connector(settings.connect_timeout_s, tls, functools.partial(EndpointConnection, limits=limits))
    connector.pool = EndpointPool(connector._loop, dialer.open, dialer.adopt)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_read=settings.idle_timeout_s),
        auto_decompress=False,
        read_bufsize=_READ_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        max_field_size=settings.max_header_bytes,
    )


def open_direct(session: aiohttp.ClientSession) -> DirectSender:
    """Sends small requests within the bounds of this session, which closes its connections."""
    assert isinstance(session.connector, _Connector)
    assert session.connector.pool is not None
    return DirectSender(session, session.connector.pool)
