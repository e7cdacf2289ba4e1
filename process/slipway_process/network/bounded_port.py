"""A port of an application for clients of the cluster: bounded connections, handshakes and idle time."""

import asyncio
import logging
import ssl

from aiohttp import web

from .connections import ConnectionLimit
from .http_server import HttpRunner

HANDSHAKE_S = 10.0  # a connection counts when its handshake is done; asyncio's own limit is a minute
_SHUTDOWN_S = 2.0
_KEEPALIVE_S = 15.0


async def serve(
    application: web.Application, limit: ConnectionLimit, port: int, context: ssl.SSLContext | None, name: str
) -> None:
    """Serve until cancelled; without a context by plain HTTP. `name`: of the logger of aiohttp's own messages.

    Raises:
        OSError: the port cannot be opened.
    """
    runner = HttpRunner(
        application,
        limit.connection,
        access_log=None,
        logger=_quiet(name),
        keepalive_timeout=_KEEPALIVE_S,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    try:
        assert runner.server is not None
        listener = await asyncio.get_running_loop().create_server(
            runner.server, None, port, ssl=context, ssl_handshake_timeout=HANDSHAKE_S if context else None, backlog=128
        )
        try:
            await asyncio.Event().wait()
        finally:
            listener.close()
    finally:
        await runner.cleanup()


def _quiet(name: str) -> logging.Logger:
    """aiohttp's own logger has a traceback for each malformed request: noise that a client controls."""
    quiet = logging.getLogger(name)
    quiet.setLevel(logging.CRITICAL)
    return quiet
