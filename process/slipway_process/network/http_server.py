"""aiohttp's server with less around a request: no task of its own, no search for a route that is known, one write.

It uses names of aiohttp 3.14 that are not public.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.helpers import must_be_empty_body, rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE
from aiohttp.http_writer import StreamWriter, _serialize_headers
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import ERROR, _ErrInfo

from .request_heads import MAX_HEAD_BYTES, BoundedHeads

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MakeConnection = Callable[..., Any]  # of a server and the options of aiohttp's RequestHandler

# Paths whose route is kept, and the longest of them: clients choose both.
MAX_KNOWN_PATHS, MAX_KNOWN_PATH_CHARACTERS = 1024, 512


class ServerConnection(web.RequestHandler):
    """Serves the requests of a connection, one after the other, in one task.

    aiohttp's own makes a task for each request, which starts and ends in further turns of the event loop.
    """

    __slots__ = ("_heads",)

    def __init__(self, server: web.Server, *, max_head_bytes: int = MAX_HEAD_BYTES, **options: Any) -> None:
        super().__init__(server, **options)
        self._heads = BoundedHeads(self._parser, max_head_bytes)
        self._parser: Any = self._heads

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:  # readers of bodies call it after each read
            super().resume_reading(resume_parser)

    async def start(self) -> None:
        while not self._force_close:
            if not self._messages:
                if self._goes_elsewhere():
                    break
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
            except asyncio.CancelledError as error:
                self.force_close()
                # Its frames hold the request, which holds this task: without a collection nothing of it would go.
                raise error.with_traceback(None) from None
            except Exception as error:
                self.log_exception("the connection ends", exc_info=error)
                self.force_close()
                break
            finally:
                if error_of_body := payload.exception():
                    error_of_body.__traceback__ = None  # as above: its frames hold the body
            self._served(message)
            if not goes_on or not self._keepalive or self._close or self._force_close:
                break
            self._next_keepalive_close_time = close_s = self._loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = self._loop.call_at(close_s, self._process_keepalive)
        self._end()

    def _goes_elsewhere(self) -> bool:
        """Whether others serve the connection from now on; no part of a request has come. It ends here then."""
        return False

    def _took_message(self) -> None:
        """Goes on reading where messages that waited held it up."""
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._heads.close()
        self._messages.clear()  # they hold the connection too

    def _served(self, message: Any) -> None:
        """A request ended, and another one may follow on its connection."""
        if not isinstance(message, _ErrInfo):
            self._heads.served(message)

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
            if message.exc is not None:
                message.exc.__traceback__ = None  # its frames hold the connection
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
        if self._upgraded:
            return await super().finish_response(request, resp, start_time)
        if resp._eof_sent:
            return resp, False  # nothing is left to do
        if type(resp) is web.Response and _is_plain(resp) and may_send_whole(request, resp.status):
            request._finish()
            try:
                await send_whole(resp, request, resp._body if isinstance(resp._body, bytes) else b"")
            except ConnectionError:
                return resp, True
            return resp, False
        return await super().finish_response(request, resp, start_time)

    async def _linger(self, payload: StreamReader) -> None:
        """Reads the rest of a body that no handler read, for a while; the connection ends if more of it is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lingering_time):
                while not payload.is_eof():
                    await payload.readany()
        if not payload.is_eof():
            self.close()


def _is_plain(response: web.Response) -> bool:
    """Whether it is not begun, its body is bytes, and nothing has to be done to them."""
    return (
        response._payload_writer is None
        and (response._body is None or type(response._body) is bytes)
        and not (response._compression or response._chunked or response._cookies)
        and hdrs.CONTENT_LENGTH not in response._headers
    )


def may_send_whole(request: web.BaseRequest, status: int) -> bool:
    return (
        request.version == HttpVersion11
        and not must_be_empty_body(request.method, status)
        and isinstance(request.writer, StreamWriter)
    )


async def send_whole(response: web.StreamResponse, request: web.BaseRequest, body: bytes) -> None:
    """Sends head and body in one write, with the bytes that aiohttp would send, where `may_send_whole`.

    Raises ConnectionError: the client is gone.
    """
    writer, headers = request.writer, response._headers
    headers[hdrs.CONTENT_LENGTH] = str(len(body))
    if response._keep_alive is None:
        response._keep_alive = request.keep_alive
    if body and hdrs.CONTENT_TYPE not in headers:
        headers[hdrs.CONTENT_TYPE] = "application/octet-stream"
    if hdrs.DATE not in headers:
        headers[hdrs.DATE] = rfc822_formatted_time()
    if hdrs.SERVER not in headers:
        headers[hdrs.SERVER] = SERVER_SOFTWARE
    if not response._keep_alive:
        headers[hdrs.CONNECTION] = "close"
    await request._prepare_hook(response)
    assert isinstance(writer, StreamWriter)
    writer._write(_serialize_headers(f"HTTP/1.1 {response.status} {response.reason}", headers) + body)
    response._eof_sent = True
    response._body_length = writer.output_size
    await writer.drain()


class KnownPaths:
    """Finds the handler of a method and path that succeeded before in a dict. `otherwise`: the application's router."""

    def __init__(self, app: web.Application, otherwise: Handler) -> None:
        self._app, self._otherwise = app, otherwise
        self._known: dict[tuple[str, str], tuple[web.UrlMappingMatchInfo, Handler]] = {}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        found = self._known.get((request.method, request.raw_path))
        if found is None or hdrs.EXPECT in request.headers:
            response = await self._otherwise(request)
            if found is None and response.status == 200:
                self._keep(request)
            return response
        request._match_info, handler = found
        return await handler(request)

    def _keep(self, request: web.Request) -> None:
        matched, path = request.match_info, request.raw_path
        # With a query a client would fill the dict with one path.
        if len(path) > MAX_KNOWN_PATH_CHARACTERS or "?" in path:
            return
        if len(self._known) >= MAX_KNOWN_PATHS:
            self._known.clear()
        handler = matched.handler
        for middleware in reversed(self._app.middlewares):
            handler = partial(middleware, handler=handler)
        self._known[request.method, path] = (matched, handler)


class HttpRunner(web.AppRunner):
    """An application's server, with `connection` for each client. Its middlewares are functions of aiohttp's new style.

    The application has no sub-applications.
    """

    __slots__ = ("_connection",)

    def __init__(self, app: web.Application, connection: MakeConnection = ServerConnection, **options: Any) -> None:
        super().__init__(app, **options)
        self._connection = connection

    async def _make_server(self) -> web.Server:
        return _HttpServer(self.app, await super()._make_server(), self._connection, **self._kwargs)


class _HttpServer(web.Server):
    def __init__(self, app: web.Application, made: web.Server, connection: MakeConnection, **options: Any) -> None:
        handler = KnownPaths(app, made.request_handler).handle
        super().__init__(handler, request_factory=made.request_factory, **options)
        self._connection = connection
        self._options = {name: value for name, value in options.items() if name not in ("handler_cancellation", "loop")}

    def __call__(self) -> Any:
        return self._connection(self, loop=asyncio.get_running_loop(), **self._options)
