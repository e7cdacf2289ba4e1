"""One call of a provider: one POST over TLS, guarded, without redirects, proxies, cookies or a second try.

Only a response with status 200 in the form that was requested counts; nothing of any other one reaches a client: it may
quote the key or the account.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDict
from yarl import URL

from slipway_contracts.resilience import ExternalTarget
from slipway_process.network.guarded import guard_listed
from slipway_process.places import Places

from ..limits.budget import Account
from ..routing.router import RouteEndpoint
from ..scorers.resolver import HostResolver
from ..upstream.exchange import UpstreamResponse
from ..upstream.provider_stream import ProviderStream, drop
from . import provider_request
from .hosts import ExternalHosts
from .keys import KeyUnavailable, ProviderKeys


class CallFailure(StrEnum):
    """Why a call has no response for a client."""

    BLOCKED = "blocked"  # its host is not listed, or it has no such path
    NO_KEY = "no_key"  # the Secret cannot be read
    BUSY = "busy"  # too many calls are in progress, of this client or of all
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"  # no connection, no valid certificate, an address that is reserved, or no HTTP
    REFUSED = "refused"  # a redirect, or a status of 400 to 499
    FAILED = "failed"  # any other status than 200
    INVALID = "invalid"  # another form than was requested, compressed, no JSON, or with the key in it
    TOO_LARGE = "too_large"  # more bytes than the setting, or than the client's memory has room for


class ExternalCall(NamedTuple):
    """One call. `name`: of the provider in metrics and the ledger. `client`: whose place it takes."""

    namespace: str  # of the Secret
    target: ExternalTarget
    name: str
    path: str
    body: bytes
    stream: bool
    account: Account
    client: str


class ExternalLimits(NamedTuple):
    """Bounds of calls. `timeout_s`: until the first byte of a stream, or the end of another response. `idle_timeout_s`:
    between two parts of a stream."""

    timeout_s: float
    idle_timeout_s: float
    most_bytes: int
    connect_timeout_s: float = 5.0


class ExternalClient:
    """Calls providers at listed hosts. `resolver`: replaces the system's in tests."""

    def __init__(
        self,
        hosts: ExternalHosts,
        keys: ProviderKeys,
        limits: ExternalLimits,
        places: Places,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`tls`: makes what verifies certificates of providers."""
        self._hosts, self._keys, self._limits, self._places = hosts, keys, limits, places
        self._resolver = resolver or HostResolver("provider-names")
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None

    def may_call(self, target: ExternalTarget, path: str) -> bool:
        """Whether the administrator listed the provider's host, and the provider has such a path."""
        url = provider_request.url_of(target, path)
        return bool(url) and self._hosts.read(url) is not None

    def key_problems(self, namespace: str, targets: Iterable[ExternalTarget]) -> tuple[str, ...]:
        """Why keys of providers could not be read when they were needed last, a sentence for each."""
        problems = (self._keys.problem(namespace, target.secret, target.key) for target in targets)
        return tuple(dict.fromkeys(problem for problem in problems if problem))

    async def respond(self, call: ExternalCall) -> UpstreamResponse | CallFailure:
        """The response to relay, or why there is none."""
        url = self._hosts.read(provider_request.url_of(call.target, call.path))
        if url is None:
            return CallFailure.BLOCKED
        if self._places.take(call.client):
            return CallFailure.BUSY
        result: UpstreamResponse | CallFailure = CallFailure.UNREACHABLE
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                key = await self._keys.read(call.namespace, call.target.secret, call.target.key)
                result = await self._exchange(url, key, call)
        except KeyUnavailable:
            result = CallFailure.NO_KEY
        except TimeoutError:
            result = CallFailure.TIMEOUT
        except aiohttp.ClientPayloadError:
            result = CallFailure.INVALID
        # A response that is no HTTP raises one of these too.
        except (aiohttp.ClientError, OSError, ValueError):
            pass
        finally:
            rest = result.rest if isinstance(result, UpstreamResponse) else None
            if isinstance(rest, ProviderStream):
                rest.ends_with(lambda: self._places.leave(call.client))
            else:
                self._places.leave(call.client)
        return result

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    async def _exchange(self, url: URL, key: str, call: ExternalCall) -> UpstreamResponse | CallFailure:
        if self._session is None:
            self._session = guard_listed(self._hosts).session(self._resolver)
            self._context = self._tls()
        response = await self._session.post(
            url,
            data=provider_request.body_of(call.body, call.target.model),
            headers=provider_request.headers_of(key, stream=call.stream),
            # A redirect would carry prompts and the key to a host that no administrator listed.
            allow_redirects=False,
            ssl=self._context or True,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._limits.connect_timeout_s, sock_read=self._limits.idle_timeout_s
            ),
        )
        is_kept = False
        try:
            result = await self._read(response, key, call)
            is_kept = isinstance(result, UpstreamResponse) and result.rest is not None
            return result
        finally:
            if not is_kept:
                drop(response)

    async def _read(
        self, response: aiohttp.ClientResponse, key: str, call: ExternalCall
    ) -> UpstreamResponse | CallFailure:
        if response.status != 200:
            return CallFailure.REFUSED if 300 <= response.status < 500 else CallFailure.FAILED
        content_type, encoding = (response.headers.get(name, "") for name in ("Content-Type", "Content-Encoding"))
        if not provider_request.has_form(content_type, encoding, stream=call.stream):
            return CallFailure.INVALID
        kind = "text/event-stream" if call.stream else "application/json"
        headers = CIMultiDict({"Content-Type": f"{kind}; charset=utf-8" if call.stream else kind})
        endpoint = RouteEndpoint("", call.name, "", "")
        if call.stream:
            start = await response.content.readany()
            if not start:
                return CallFailure.INVALID
            rest = ProviderStream(response, start, most_bytes=self._limits.most_bytes, key=key)
            return UpstreamResponse(endpoint, 200, headers, start, rest)
        body = await self._body(response, call.account)
        if body is None:
            return CallFailure.TOO_LARGE
        if key.encode() in body or not provider_request.is_object(body):
            return CallFailure.INVALID
        return UpstreamResponse(endpoint, 200, headers, body)

    async def _body(self, response: aiohttp.ClientResponse, account: Account) -> bytes | None:
        """The whole body; None where it has too many bytes, or the client's memory no room for them."""
        body = bytearray()
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > self._limits.most_bytes or account.grow(len(chunk)):
                return None
        return bytes(body)
