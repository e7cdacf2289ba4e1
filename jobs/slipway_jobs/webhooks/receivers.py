"""Calls receivers of webhooks: one POST each, to listed hosts alone, without redirects, proxies or cookies."""

import asyncio
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver

from slipway_process.network.guarded import guard_listed
from slipway_process.network.listed_hosts import ListedHosts

_TIMEOUT_S = 15.0
_MAX_HEADER_BYTES = 8192


@dataclass(frozen=True, slots=True)
class ReceiverReply:
    """`status`: of the response; None without one: then `error` is the reason. The body is not read."""

    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None


class Receivers:
    """Calls receivers at listed hosts. `resolver`: replaces aiohttp's resolver in tests."""

    def __init__(self, hosts: ListedHosts, resolver: AbstractResolver | None = None) -> None:
        self._hosts, self._resolver = hosts, resolver

    def may_call(self, text: str) -> bool:
        return self._hosts.read(text) is not None

    async def post(self, text: str, body: bytes, headers: dict[str, str]) -> ReceiverReply:
        url, guard = self._hosts.read(text), guard_listed(self._hosts)
        if url is None:
            return ReceiverReply(error="The host is not listed any more.")
        sent = headers | {"Content-Type": "application/json", "User-Agent": "slipway-jobs"}
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                guard.session(self._resolver, max_field_size=_MAX_HEADER_BYTES) as session,
                session.post(url, data=body, headers=sent, allow_redirects=False) as response,
            ):
                given = response.headers.get("Retry-After", "")
                after_s = float(given) if given.isascii() and given.isdigit() and len(given) < 6 else None
                return ReceiverReply(response.status, None, after_s)
        except TimeoutError:
            return ReceiverReply(error="There was no response in time.")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # No address: tenants must not learn what a name resolves to inside a cluster.
            reason = "Its address is reserved." if guard.refusal else f"No response: {type(error).__name__}."
            return ReceiverReply(error=reason)
