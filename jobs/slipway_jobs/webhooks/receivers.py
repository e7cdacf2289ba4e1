"""Calls receivers of webhooks: one POST each, to listed hosts alone, without redirects, proxies or cookies.

The guard checks the address that a socket is about to connect to, so that a name that resolves to another address the
next time changes nothing.
"""

import asyncio
import socket
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from slipway_process.network.listed_hosts import ListedHosts

MAX_URL_CHARACTERS = 2048
_TIMEOUT_S = 15.0
_MAX_HEADER_BYTES = 8192
AddressInfo = tuple[int, int, int, str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class ReceiverReply:
    """`status`: of the response; None without one, and `error` says why. The body is not read."""

    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None


class Receivers:
    """`resolver`: another one, for tests."""

    def __init__(self, hosts: ListedHosts, resolver: AbstractResolver | None = None) -> None:
        self._hosts, self._resolver = hosts, resolver

    def may_call(self, text: str) -> bool:
        return self._read(text) is not None

    async def post(self, text: str, body: bytes, headers: dict[str, str]) -> ReceiverReply:
        url = self._read(text)
        if url is None:
            return ReceiverReply(error="The host is not listed any more.")
        blocked = False

        def open_socket(info: AddressInfo) -> socket.socket:
            nonlocal blocked
            family, kind, protocol, _, address = info
            if not self._hosts.may_connect(str(address[0]), int(str(address[1]))):
                blocked = True
                raise OSError("the address of a receiver is reserved")
            return socket.socket(family, kind, protocol)

        sent = headers | {"Content-Type": "application/json", "User-Agent": "slipway-jobs"}
        connector = aiohttp.TCPConnector(
            force_close=True, use_dns_cache=False, socket_factory=open_socket, resolver=self._resolver
        )
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                aiohttp.ClientSession(
                    connector=connector, cookie_jar=aiohttp.DummyCookieJar(), max_field_size=_MAX_HEADER_BYTES
                ) as session,
                session.post(url, data=body, headers=sent, allow_redirects=False) as response,
            ):
                given = response.headers.get("Retry-After", "")
                after_s = float(given) if given.isascii() and given.isdigit() and len(given) < 6 else None
                return ReceiverReply(response.status, None, after_s)
        except TimeoutError:
            return ReceiverReply(error="There was no response in time.")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # No address: tenants must not learn what a name resolves to inside a cluster.
            reason = "Its address is reserved." if blocked else f"No response: {type(error).__name__}."
            return ReceiverReply(error=reason)

    def _read(self, text: str) -> URL | None:
        if len(text) > MAX_URL_CHARACTERS or not text.startswith(("http://", "https://")):
            return None
        try:
            url = URL(text)
            plain = url.user is None and url.password is None and bool(url.port)
            return url if plain and url.host and self._hosts.names(url.host) else None
        except (ValueError, TypeError):
            return None
