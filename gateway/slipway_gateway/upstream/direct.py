"""Sends a small request over the session's connections without what a session does for other clients.

aiohttp's session follows redirects, keeps cookies, and makes objects for URL, body, writer and task of each request:
half of what the gateway does for one. Its connector, its parser and its timeouts are used as they are.
"""

from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp import ClientRequest, RequestInfo, StreamReader, hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

_MAX_ORIGINS = 4096


class DirectResponse:
    """The response to such a request, with the part of aiohttp's interface that the gateway uses."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(
        self, status: int, headers: CIMultiDictProxy[str], content: StreamReader, connection: Connection
    ) -> None:
        self.status, self.headers, self.content = status, headers, content
        self._connection: Connection | None = connection
        content.on_eof(self._release)

    @property
    def content_length(self) -> int | None:
        length = self.headers.get(hdrs.CONTENT_LENGTH)
        return None if length is None else int(length)

    @property
    def content_type(self) -> str:
        return self.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()

    def close(self) -> None:
        """Closes the connection unless the whole response is there."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


@dataclass(frozen=True, slots=True)
class _Origin:
    """`request`: what the connector needs to connect. `path`: before that of each request."""

    request: ClientRequest
    host_line: bytes
    path: str


class DirectSender:
    """`read_bytes`, `max_header_bytes`: bounds of what is read."""

    def __init__(self, session: aiohttp.ClientSession, *, read_bytes: int, max_header_bytes: int) -> None:
        assert session.connector is not None
        self._session, self._connector = session, session.connector
        self._read_bytes, self._max_header_bytes = read_bytes, max_header_bytes
        self._origins: OrderedDict[str, _Origin] = OrderedDict()

    async def post(self, url: str, path_qs: str, headers: CIMultiDict[str], body: bytes) -> DirectResponse:
        """`url`: of the endpoint. `body`: small, for it is written at once. Raises what aiohttp's session raises."""
        origin = self._origins.get(url) or self._add(url)
        connection = await self._connector.connect(origin.request, [], self._session.timeout)
        try:
            protocol = connection.protocol
            assert protocol is not None
            self._send(protocol, origin, path_qs, headers, body)
            return await self._response(protocol, connection, origin)
        except BaseException:
            connection.close()
            raise

    def _send(
        self, protocol: ResponseHandler, origin: _Origin, path_qs: str, headers: CIMultiDict[str], body: bytes
    ) -> None:
        protocol.set_response_params(
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=self._session.timeout.sock_read,
            read_bufsize=self._read_bytes,
            max_field_size=self._max_header_bytes,
        )
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        head = _serialize_headers(f"POST {origin.path}{path_qs} HTTP/1.1", headers)
        # Neither is among `headers`: each side frames bodies itself.
        transport.write(b"%b%bContent-Length: %d\r\n\r\n%b" % (head[:-2], origin.host_line, len(body), body))
        protocol.start_timeout()

    async def _response(self, protocol: ResponseHandler, connection: Connection, origin: _Origin) -> DirectResponse:
        while True:
            try:
                message, content = await protocol.read()
            except HttpProcessingError as error:
                about = RequestInfo(origin.request.url, "POST", origin.request.request_info.headers)
                raise aiohttp.ClientResponseError(about, (), status=error.code, message=error.message) from error
            if not 100 <= message.code <= 199 or message.code == 101:
                return DirectResponse(message.code, message.headers, content, connection)

    def _add(self, url: str) -> _Origin:
        made = ClientRequest("POST", URL(url, encoded=True), loop=self._session._loop, session=self._session)
        self._origins[url] = found = _Origin(made, f"Host: {made.headers[hdrs.HOST]}\r\n".encode(), urlsplit(url).path)
        if len(self._origins) > _MAX_ORIGINS:
            self._origins.popitem(last=False)
        return found
