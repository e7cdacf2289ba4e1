"""Sends a small request without what aiohttp's client does for other programs.

Its session follows redirects, keeps cookies, and makes objects for URL, body, writer and task of each request; its pool
and its connections make some for each response. Its connector and its parser are used as they are.
"""

import asyncio
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import RequestInfo, hdrs
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict, CIMultiDictProxy

from .connection import Body, EndpointConnection
from .pool import EndpointPool, Origin

if TYPE_CHECKING:
    from slipway_plane import _native

# A server that turns a connection away ends it within this time. It is awaited only where a server that uses TLS ended
# a connection and still takes new ones.
TURNED_AWAY_S = 1.0


class DirectResponse:
    """The response to such a request, with the part of aiohttp's interface that the gateway uses."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(
        self, status: int, headers: CIMultiDictProxy[str], content: Body, connection: EndpointConnection
    ) -> None:
        self.status, self.headers, self.content = status, headers, content
        self._connection = connection

    @property
    def content_length(self) -> int | None:
        length = self.headers.get(hdrs.CONTENT_LENGTH)
        return None if length is None else int(length)

    @property
    def content_type(self) -> str:
        return self.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()

    @property
    def connection(self) -> EndpointConnection:
        """By which the response comes."""
        return self._connection

    def close(self) -> None:
        """Closes the connection unless the whole response is there: then it serves others."""
        if not self.content.is_eof():
            self._connection.close()


class DirectSender:
    """Sends over connections of its own.

    A server may close an idle connection while a request is on its way. Then the request is sent once more, to the same
    server, over a new connection. If the server takes none, it may have died of the request: it is an error.
    """

    def __init__(self, session: aiohttp.ClientSession, pool: EndpointPool) -> None:
        """`session`: its rules for the host and port of a URL apply here too."""
        self.session, self.pool = session, pool

    async def post(
        self, url: str, path_qs: str, headers: CIMultiDict[str], body: bytes, begun: "_native.Begun | None" = None
    ) -> DirectResponse:
        """`url`: of the endpoint. `body`: small, for it is written at once. `begun`: the fast lane has sent it there.

        Raises what aiohttp's session raises.
        """
        origin = self.pool.origin(url, self.session)
        head = _serialize_headers(f"POST {origin.path}{path_qs} HTTP/1.1", headers)
        # `headers` have neither Host nor Content-Length: each side frames bodies itself.
        whole = b"%b%bContent-Length: %d\r\n\r\n%b" % (head[:-2], origin.host_line, len(body), body)
        return await self._exchange(origin, "POST", whole, begun)

    async def get(self, url: str, path_qs: str) -> DirectResponse:
        """`url`: of the endpoint. Raises what aiohttp's session raises."""
        origin = self.pool.origin(url, self.session)
        head = f"GET {origin.path}{path_qs} HTTP/1.1\r\n".encode()
        return await self._exchange(origin, "GET", b"%b%b\r\n" % (head, origin.host_line))

    async def turns_away(self, url: str) -> bool:
        """Whether a server ends connections on which nothing was sent: no request is the cause, then.

        In TLS 1.3 a client is done, and sends, before the server has looked at its certificate. So the refusal of a
        certificate looks as the death of a server that had the request.
        """
        if not url.startswith("https:"):
            return False
        try:
            connection = await self.pool.connect(self.pool.origin(url, self.session))
        except aiohttp.ClientConnectionResetError:
            return True
        except (aiohttp.ClientError, OSError):
            return False  # it takes none: it may have died
        try:
            closed = connection.closed()
            return closed is None or bool((await asyncio.wait([closed], timeout=TURNED_AWAY_S))[0])
        finally:
            connection.close()

    async def _exchange(
        self, origin: Origin, method: str, whole: bytes, begun: "_native.Begun | None" = None
    ) -> DirectResponse:
        connection = await (self.pool.take_over(origin, begun) if begun else self.pool.take(origin))
        try:
            return await self._send(connection, origin, method, b"" if begun else whole)
        except (aiohttp.ClientError, OSError):
            if not connection.closed_idle:
                raise
        return await self._send(await self._connect_again(origin), origin, method, whole)

    async def _connect_again(self, origin: Origin) -> EndpointConnection:
        try:
            return await self.pool.connect(origin)
        except (aiohttp.ClientError, OSError) as refused:
            raise aiohttp.ServerDisconnectedError from refused

    async def _send(self, connection: EndpointConnection, origin: Origin, method: str, whole: bytes) -> DirectResponse:
        awaited = connection.send(whole) if whole else connection.awaited()
        try:
            message, content = await awaited
        except HttpProcessingError as error:
            about = RequestInfo(origin.request.url, method, origin.request.request_info.headers)
            raise aiohttp.ClientResponseError(about, (), status=error.code, message=error.message) from error
        except BaseException:
            # The response may have come before this was cancelled: then the connection may serve another request.
            if not awaited.done() or awaited.cancelled() or awaited.exception() or not awaited.result()[1].is_eof():
                connection.close()
            raise
        finally:
            del awaited  # its exception has this frame in its traceback: a cycle
        return DirectResponse(message.code, message.headers, content, connection)
