"""Ports that speak HTTP: bounded heads, refused in the API's own shape, and connections that end when nothing comes."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import http_exceptions, web

from .settings import Settings
from .wire import errors

# Idle client connections live longer than the usual load balancer in front (60 s). A head gets no more time than that.
KEEPALIVE_S = 75.0

Refuse = Callable[[errors.Refusal], web.Response]


def _plainly(refusal: errors.Refusal) -> web.Response:
    return web.Response(body=refusal.body(), status=refusal.status, content_type="application/json")


async def listen(
    app: web.Application, host: str, port: int, settings: Settings, refuse: Refuse = _plainly
) -> web.AppRunner:
    """`refuse` answers each head that is no request and reaches no route."""
    # aiohttp's own logger reports every malformed request with a traceback: noise that a client controls.
    quiet = logging.getLogger("slipway_gateway.http")
    quiet.setLevel(logging.CRITICAL)
    runner = _Runner(
        app,
        refuse,
        access_log=None,
        logger=quiet,
        handler_cancellation=True,
        auto_decompress=False,
        keepalive_timeout=KEEPALIVE_S,
        max_line_size=settings.max_header_bytes,
        max_field_size=settings.max_header_bytes,
        # Draining is done before cleanup; what is left then is cut.
        shutdown_timeout=0.5,
    )
    await runner.setup()
    await web.TCPSite(runner, host or None, port, backlog=1024).start()
    return runner


class _Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_refuse",)

    def __init__(self, server: web.Server, refuse: Refuse, **options: Any) -> None:
        super().__init__(server, **options)
        self._refuse = refuse

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # aiohttp times only what comes after a first request: without this a first head could take forever.
        self.keep_alive(True)
        super().connection_made(transport)

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
        answer = self._refuse(refusal)
        answer.force_close()
        return answer


class _Server(web.Server):
    """Makes our connections where aiohttp's makes its own."""

    def __init__(self, made: web.Server, refuse: Refuse, **options: Any) -> None:
        super().__init__(made.request_handler, request_factory=made.request_factory, **options)
        self._refuse = refuse
        self._options = {name: value for name, value in options.items() if name not in ("handler_cancellation", "loop")}

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._refuse, loop=asyncio.get_running_loop(), **self._options)


class _Runner(web.AppRunner):
    __slots__ = ("_refuse",)

    def __init__(self, app: web.Application, refuse: Refuse, **options: Any) -> None:
        super().__init__(app, **options)
        self._refuse = refuse

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._refuse, **self._kwargs)
