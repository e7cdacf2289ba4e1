"""HTTP calls to URLs that users write, by sessions that connect to allowed addresses alone.

The guard checks the address that a socket is about to connect to. The connection itself resolves the name, once, so a
resolver that returns another address the next time changes nothing. The address counts, not the spelling of the host.
A session uses no proxy and keeps no cookie; its callers follow no redirects, which would carry headers and body to a
host that was not allowed.
"""

import socket
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from slipway_process.network.listed_hosts import ListedHosts

AddressInfo = tuple[int, int, int, str, tuple[object, ...]]


class ConnectionGuard:
    """The guard of one call, or of one session.

    `check`: returns why a call may not connect to an address and port; empty: it may.
    """

    def __init__(self, check: Callable[[str, int], str]) -> None:
        self._check = check
        self.refusal = ""  # the last refusal of `check`: aiohttp goes on with the next address of a host

    def session(
        self, resolver: AbstractResolver | None = None, *, keeps: int = 0, keep_s: float = 0.0, **limits: Any
    ) -> aiohttp.ClientSession:
        """A session without a time limit: the caller has one. `limits`: of ClientSession.

        `keeps`: connections, which are kept for `keep_s` after a call; 0: the session is for one call alone.
        """
        kept: dict[str, Any] = {"limit": keeps, "keepalive_timeout": keep_s} if keeps else {"force_close": True}
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                use_dns_cache=False, socket_factory=self._open_socket, resolver=resolver, **kept
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            # A small body could decompress into a huge one.
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            **limits,
        )

    def _open_socket(self, info: AddressInfo) -> socket.socket:
        """A socket for the address that aiohttp connects to next. Raises OSError if `check` refuses it."""
        family, kind, protocol, _, address = info
        if refusal := self._check(str(address[0]), int(str(address[1]))):
            self.refusal = refusal
            raise OSError(refusal)
        return socket.socket(family, kind, protocol)


def guard_listed(hosts: ListedHosts) -> ConnectionGuard:
    """The guard of one call to a host of the administrator's list."""
    return ConnectionGuard(lambda address, port: "" if hosts.may_connect(address, port) else "it is reserved")


async def read_body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body; of a body longer than `most_bytes`, the first `most_bytes + 1`."""
    body = bytearray()  # a sender may choose pieces of one byte
    while len(body) <= most_bytes and (chunk := await response.content.read(most_bytes + 1 - len(body))):
        body += chunk
    return bytes(body)
