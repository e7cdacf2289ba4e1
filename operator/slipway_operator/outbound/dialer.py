"""The HTTP client for calls on behalf of tenants: limited in time and size, with a guard on every connection.

The guard checks the address that a socket is about to connect to. The connection itself resolves the name, once, so a
resolver that returns another address the next time changes nothing. The address counts, not the spelling of the host.
Redirects are not followed, no proxy is used, no cookie is kept.
"""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from slipway_operator.outbound.addresses import EgressPolicy

AddressInfo = tuple[int, int, int, str, tuple[object, ...]]

URL_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class OutboundRequest:
    """A request, and how much of the response's body is read: `keep_bytes` 0 reads none of it."""

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
    """Status and body; a body longer than `keep_bytes` is `cut`."""

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
    """The guard forbids the call, or the URL is not valid: another try fails too."""


class TooLate(NoAnswer):
    """There is no response within the timeout of the request."""


class _Refused(OSError):
    """Ends one connection; aiohttp tries the next address, so `_Dial` keeps the reason."""


class _Dial:
    """One connection attempt to all addresses of one host."""

    def __init__(self, policy: EgressPolicy, host: str) -> None:
        self._policy, self._host, self.refusal = policy, host, ""

    def open_socket(self, info: AddressInfo) -> socket.socket:
        """Return a socket for the address that aiohttp connects to next."""
        family, kind, protocol, _, address = info
        refusal = self._policy.refusal(self._host, str(address[0]), int(str(address[1])))
        if refusal:
            self.refusal = refusal
            raise _Refused(refusal)
        return socket.socket(family, kind, protocol)


class Dialer:
    """Sends requests for tenants. `who` is the subject of a refusal: "hooks", "analyses"."""

    def __init__(self, policy: EgressPolicy, who: str, resolver: AbstractResolver | None = None) -> None:
        self._policy, self._who, self._resolver = policy, who, resolver

    async def send(self, request: OutboundRequest) -> Response:
        """Send a request once.

        Raises:
            NoAnswer: when there is no response, for any reason.
        """
        url = _read(request.url)
        dial = _Dial(self._policy, str(url.host))
        try:
            async with asyncio.timeout(request.timeout_s), self._session(dial) as session:
                return await _exchange(session, url, request)
        except TimeoutError as error:
            raise TooLate(f"no answer within {request.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            if dial.refusal and isinstance(error, aiohttp.ClientConnectorError):
                raise Blocked(f"{self._who} may not call {url.host}: {dial.refusal}") from None
            raise NoAnswer(_failure(url, error)) from error
        except ValueError as error:
            # aiohttp raises it for a header with a line break; its message could contain the header.
            raise Blocked(
                "the request cannot be sent: a header or the URL holds a character that it must not"
            ) from error

    def _session(self, dial: _Dial) -> aiohttp.ClientSession:
        """Return a session for one request: the guard checks its connections for that request's host."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                force_close=True, use_dns_cache=False, socket_factory=dial.open_socket, resolver=self._resolver
            ),
            # Each request has its own timeout; aiohttp's default could end it earlier.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            # A small body could decompress into a huge one.
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )


def _read(text: str) -> URL:
    if len(text) > URL_LIMIT:
        raise Blocked(f"the URL is longer than {URL_LIMIT} characters")
    if not text.startswith(("http://", "https://")):
        raise Blocked("the URL must start with http:// or https://")
    try:
        url = URL(text)
        host, port = url.host, url.port
    except (ValueError, TypeError) as error:
        raise Blocked("the URL is not valid") from error
    if not host or not port:
        raise Blocked("the URL is not valid: it names no host, or port 0")
    if url.user is not None or url.password is not None:
        raise Blocked("the URL holds credentials before its host: take them out; a header can come from a Secret")
    return url


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
        body = b""
        while len(body) <= request.keep_bytes and request.keep_bytes:
            chunk = await response.content.read(request.keep_bytes + 1 - len(body))
            if not chunk:
                break
            body += chunk
        return Response(response.status, body[: request.keep_bytes], len(body) > request.keep_bytes)


def _failure(url: URL, error: Exception) -> str:
    """Describe a failure with nothing of the response, and of the request only host and port."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = "its certificate is not accepted"
    elif isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror or type(error.os_error).__name__
    elif isinstance(error, aiohttp.ClientResponseError):
        why = "what it answers is no HTTP"
    else:
        why = f"the connection broke ({type(error).__name__})"
    return f"{url.host}:{url.port} cannot be reached: {why}"
