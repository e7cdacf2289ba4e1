"""Calls scorers: one POST each, guarded, without redirects, proxies, cookies or a second try."""

import asyncio
from enum import StrEnum

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from slipway_process.network.guarded import guard_listed, read_body

from .hosts import ScorerHosts
from .resolver import HostResolver

# A result has two numbers.
MAX_RESULT_BYTES = 4 << 10


class CallFailure(StrEnum):
    """Why a call has no result."""

    BLOCKED = "blocked"  # its host is not listed, or its address must not be connected to
    UNANSWERED = "unanswered"  # no connection, no HTTP, or no whole response in time
    INVALID = "invalid"  # another status than 200, or too long a response


class ScorerClient:
    """Calls scorers at listed hosts. `resolver`: replaces the system's resolver in tests."""

    def __init__(self, hosts: ScorerHosts, resolver: AbstractResolver | None = None) -> None:
        self._hosts = hosts
        self._resolver = resolver or HostResolver("scorer-names")

    def may_call(self, url: str) -> bool:
        """Whether the administrator listed the host of this URL."""
        return self._hosts.read(url) is not None

    async def call(self, url: str, body: bytes, timeout_s: float) -> bytes | CallFailure:
        """The response to one POST, or why there is none."""
        target, guard = self._hosts.read(url), guard_listed(self._hosts)
        if target is None:
            return CallFailure.BLOCKED
        try:
            async with asyncio.timeout(timeout_s), guard.session(self._resolver) as session:
                return await _exchange(session, target, body)
        # A response that is no HTTP raises one of these too.
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return CallFailure.BLOCKED if guard.refusal else CallFailure.UNANSWERED

    async def close(self) -> None:
        await self._resolver.close()


async def _exchange(session: aiohttp.ClientSession, url: URL, body: bytes) -> bytes | CallFailure:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "slipway-gateway"}
    # A redirect would carry contents to a host that no administrator listed.
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            return CallFailure.INVALID
        received = await read_body(response, MAX_RESULT_BYTES)
        return received if len(received) <= MAX_RESULT_BYTES else CallFailure.INVALID
