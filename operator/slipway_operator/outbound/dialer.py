"""The HTTP client for calls on behalf of tenants: limited in time and size, with a guard on every connection."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from slipway_operator.outbound.addresses import EgressPolicy
from slipway_process.network.guarded import ConnectionGuard, read_body
from slipway_process.network.urls import read_url

URL_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class OutboundRequest:
    """A request. At most `keep_bytes` of the response's body are returned; 0: the body is not read."""

    method: str
    url: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout_s: float = 10.0
    keep_bytes: int = 0
    insecure: bool = False  # accept any certificate


@dataclass(frozen=True, slots=True)
class Response:
    """Status and body; `cut`: the body was longer than `keep_bytes`."""

    status: int
    body: bytes = b""
    cut: bool = False

    @property
    def phrase(self) -> str:
        """The status with its standard reason phrase; the phrase that the server sent is not shown."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


class NoAnswer(Exception):
    """There is no response. The message is for users: it holds no header, no URL and nothing of the body."""


class Blocked(NoAnswer):
    """The guard forbids the call, or URL or headers are not valid: another try would fail too."""


class TooLate(NoAnswer):
    """There is no response within the timeout of the request."""


class Dialer:
    """Sends requests for tenants. `who` is the subject of a refusal: "hooks", "analyses"."""

    def __init__(self, policy: EgressPolicy, who: str, resolver: AbstractResolver | None = None) -> None:
        self._policy, self._who, self._resolver = policy, who, resolver

    async def send(self, request: OutboundRequest) -> Response:
        """Send a request once.

        Raises:
            NoAnswer: when there is no response, for any reason.
        """
        try:
            url = read_url(request.url, URL_LIMIT)
        except ValueError as error:
            raise Blocked(str(error)) from error
        guard = ConnectionGuard(partial(self._policy.refusal, str(url.host)))
        try:
            async with asyncio.timeout(request.timeout_s), guard.session(self._resolver) as session:
                return await _exchange(session, url, request)
        except TimeoutError as error:
            raise TooLate(f"no answer within {request.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            if guard.refusal and isinstance(error, aiohttp.ClientConnectorError):
                raise Blocked(f"{self._who} may not call {url.host}: {guard.refusal}") from None
            raise NoAnswer(_failure(url, error)) from error
        except ValueError as error:
            # aiohttp raises ValueError for a header with a line break; its message could contain the header.
            raise Blocked(
                "the request cannot be sent: a header or the URL holds a character that it must not"
            ) from error


async def _exchange(session: aiohttp.ClientSession, url: URL, request: OutboundRequest) -> Response:
    async with session.request(
        request.method,
        url,
        params=request.query or None,
        headers={"Accept-Encoding": "identity", "User-Agent": "slipway-operator", **request.headers},
        data=request.body or None,
        # A redirect would carry the headers and the body to an address that no user wrote.
        allow_redirects=False,
        ssl=not request.insecure,
    ) as response:
        body = await read_body(response, request.keep_bytes) if request.keep_bytes else b""
        return Response(response.status, body[: request.keep_bytes], len(body) > request.keep_bytes)


def _failure(url: URL, error: Exception) -> str:
    """Describe a failure for users: with host and port of the request, and nothing of the response."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = "its certificate is not accepted"
    elif isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror or type(error.os_error).__name__
    elif isinstance(error, aiohttp.ClientResponseError):
        why = "what it answers is no HTTP"
    else:
        why = f"the connection broke ({type(error).__name__})"
    return f"{url.host}:{url.port} cannot be reached: {why}"
