"""Connections of a port: bounded, with a share for each address, and closed where no request comes."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from slipway_process.network.http_server import ServerConnection
from slipway_process.shares import Shares

FIRST_REQUEST_S = 30.0  # a connection without a whole head by then is closed


def refusal(body: bytes) -> bytes:
    """The response, with this text, to a connection that has no place."""
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


class ConnectionLimit:
    """At most `most` connections; the last quarter is for addresses that have none.

    `refused`: what a connection without a place reads. `is_shared`: whether an address stands for many clients, and
    has no share.
    """

    def __init__(self, most: int, refused: bytes, is_shared: Callable[[str], bool] = lambda address: False) -> None:
        self.refused = refused
        self._shares, self._is_shared = Shares(most), is_shared

    def take(self, address: str) -> str | None:
        """Whose place was taken; None: there is none."""
        owner = "" if self._is_shared(address) else address or "unknown"
        return owner if self._shares.take(owner) else None

    def give_back(self, owner: str) -> None:
        self._shares.give_back(owner)

    def connection(self, server: web.Server, **options: Any) -> "BoundedConnection":
        """For `HttpRunner`."""
        return BoundedConnection(server, self, **options)


class BoundedConnection(ServerConnection):
    """Has a place, or is closed with a sentence."""

    __slots__ = ("_first", "_limit", "_owner")

    def __init__(self, server: web.Server, limit: ConnectionLimit, **options: Any) -> None:
        super().__init__(server, **options)
        self._limit = limit
        self._owner: str | None = None
        self._first: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._owner = self._limit.take(str(peer[0]) if peer else "")
        if self._owner is None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(self._limit.refused)
            transport.close()
            return
        self._first = self._loop.call_later(FIRST_REQUEST_S, self._close_silent)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._owner is not None:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._owner is None:
            return
        self._forget_first()
        self._limit.give_back(self._owner)
        self._owner = None
        super().connection_lost(exc)

    def _took_message(self) -> None:
        self._forget_first()
        super()._took_message()

    def _forget_first(self) -> None:
        if self._first is not None:
            self._first.cancel()
            self._first = None

    def _close_silent(self) -> None:
        self._first = None
        self.force_close()
