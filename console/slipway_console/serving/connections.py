"""Connections of browsers: bounded, with a share for each address; and whose address a request has behind a proxy."""

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from slipway_process.network.http_server import ServerConnection
from slipway_process.shares import Shares

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

FIRST_REQUEST_S = 30.0  # a connection without a whole head by then is closed
KEEPALIVE_S = 75.0
MOST_HOPS = 16  # addresses of a header that are looked at
_BODY = b"Too many connections are open: close pages of the console, and try again.\n"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class TrustedProxies:
    """Proxies that are believed about the clients that they forward for. `networks`: of their addresses."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = networks

    def __contains__(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._networks)

    def client_of(self, request: web.BaseRequest) -> str:
        """The address of the client: the last one of X-Forwarded-For that is no trusted proxy's.

        Without a trusted proxy that is the other end of the connection, whatever the header says.
        """
        client = request.remote or ""
        if client not in self:
            return client
        forwarded = ",".join(request.headers.getall("X-Forwarded-For", ())).split(",")
        for hop in reversed(forwarded[-MOST_HOPS:]):
            address = hop.strip()
            try:
                client = str(ipaddress.ip_address(address))
            except ValueError:
                return client  # of the proxy that wrote it, and of no one before it
            if client not in self:
                return client
        return client


class Door:
    """At most `most` connections; the last quarter is for addresses that have none.

    Those of a trusted proxy have no share, because it has many clients.
    """

    def __init__(self, most: int, proxies: TrustedProxies) -> None:
        self._shares, self._proxies = Shares(most), proxies

    def enter(self, address: str) -> str | None:
        """Whose place was taken; None: there is none."""
        owner = "" if address in self._proxies else address or "unknown"
        return owner if self._shares.take(owner) else None

    def leave(self, owner: str) -> None:
        self._shares.give_back(owner)

    def connection(self, server: web.Server, **options: Any) -> "BoundedConnection":
        """For `HttpRunner`."""
        return BoundedConnection(server, self, **options)


class BoundedConnection(ServerConnection):
    """Has a place at the door, or is closed with a sentence."""

    __slots__ = ("_door", "_first", "_owner")

    def __init__(self, server: web.Server, door: Door, **options: Any) -> None:
        super().__init__(server, **options)
        self._door = door
        self._owner: str | None = None
        self._first: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._owner = self._door.enter(str(peer[0]) if peer else "")
        if self._owner is None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(_REFUSAL)
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
        self._door.leave(self._owner)
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
