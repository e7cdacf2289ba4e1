"""Calls scorers: one POST each, guarded, without redirects, proxies, cookies or a second try.

The guard checks the address that a socket is about to connect to. The connection itself resolves the name, once, so a
resolver that returns another address the next time changes nothing.
"""

import asyncio
import socket
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from .hosts import ScorerHosts
from .resolver import ScorerResolver

AddressInfo = tuple[int, int, int, str, tuple[object, ...]]
# A result has two numbers.
MAX_RESULT_BYTES = 4 << 10
MAX_URL_CHARACTERS = 2048


class CallFailure(StrEnum):
    """Why a call has no result."""

    BLOCKED = "blocked"  # its host is not listed, or its address must not be connected to
    UNANSWERED = "unanswered"  # no connection, no HTTP, or no whole response in time
    INVALID = "invalid"  # another status than 200, or too long a response


@dataclass(slots=True)
class _GuardedConnection:
    """One connection attempt to all addresses of one host."""

    hosts: ScorerHosts
    blocked: bool = False

    def open_socket(self, info: AddressInfo) -> socket.socket:
        """A socket for the address that aiohttp connects to next."""
        family, kind, protocol, _, address = info
        if not self.hosts.may_connect(str(address[0]), int(str(address[1]))):
            self.blocked = True
            raise OSError("the address of a scorer is reserved")
        return socket.socket(family, kind, protocol)


class ScorerClient:
    """`resolver`: another one, for tests."""

    def __init__(self, hosts: ScorerHosts, resolver: AbstractResolver | None = None) -> None:
        self._hosts = hosts
        self._resolver = resolver or ScorerResolver()

    def may_call(self, url: str) -> bool:
        """Whether the administrator listed the host of this URL."""
        return self._read(url) is not None

    async def call(self, url: str, body: bytes, timeout_s: float) -> bytes | CallFailure:
        """The response to one POST, or why there is none."""
        target, dial = self._read(url), _GuardedConnection(self._hosts)
        if target is None:
            return CallFailure.BLOCKED
        try:
            async with asyncio.timeout(timeout_s), self._session(dial) as session:
                return await _exchange(session, target, body)
        # A response that is no HTTP raises one of these too.
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return CallFailure.BLOCKED if dial.blocked else CallFailure.UNANSWERED

    async def close(self) -> None:
        await self._resolver.close()

    def _read(self, text: str) -> URL | None:
        if len(text) > MAX_URL_CHARACTERS or not text.startswith(("http://", "https://")):
            return None
        try:
            url = URL(text)
            plain = url.user is None and url.password is None and bool(url.port)
            return url if plain and url.host and self._hosts.names(url.host) else None
        except (ValueError, TypeError):
            return None

    def _session(self, dial: _GuardedConnection) -> aiohttp.ClientSession:
        """For one call: the guard checks the connections of that call alone."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                force_close=True, use_dns_cache=False, socket_factory=dial.open_socket, resolver=self._resolver
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            # A small body could decompress into a huge one.
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )


async def _exchange(session: aiohttp.ClientSession, url: URL, body: bytes) -> bytes | CallFailure:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "slipway-gateway"}
    # A redirect would carry contents to a host that no administrator listed.
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            return CallFailure.INVALID
        received = b""
        while chunk := await response.content.read(MAX_RESULT_BYTES + 1 - len(received)):
            received += chunk
            if len(received) > MAX_RESULT_BYTES:
                return CallFailure.INVALID
        return received
