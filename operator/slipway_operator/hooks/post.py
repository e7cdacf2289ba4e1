"""One signed POST to a webhook: bounded in time and size, to no address that is this machine's own."""

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp

BODY_LIMIT_BYTES = 8192
MESSAGE_LIMIT_CHARS = 256
_AGAIN = frozenset({408, 425, 429})  # beside 5xx: statuses that another try may change

AddressInfo = tuple[int, int, int, str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one try. `outcome` is the metric's word: ok, refused, timeout, blocked or error."""

    outcome: str
    message: str
    again: bool = False  # another try may end otherwise

    @property
    def ok(self) -> bool:
        """Answered 2xx."""
        return self.outcome == "ok"


class Blocked(OSError):
    """An address that hooks must not reach."""


class KeyUnreadable(Exception):
    """A signing key is configured and cannot be read: nothing is sent unsigned."""


class Poster:
    """The HTTP client of the hooks."""

    def __init__(self, key_file: Path | None, allow_local: bool, clock: Callable[[], float]) -> None:
        """`clock` counts seconds since 1970; the key is read for every try, so a new one needs no restart."""
        self._key_file, self._clock = key_file, clock
        # Each call brings its own limit; aiohttp's would cut a long one short.
        unlimited = aiohttp.ClientTimeout(total=None, sock_connect=None)
        # No cookie of one hook's answer goes out with another's question.
        self._session = aiohttp.ClientSession(
            connector=connector(allow_local, "hooks"),
            timeout=unlimited,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> "Poster":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def post(self, url: str, body: bytes, key: str, timeout_s: float) -> Reply:
        """Try once; every way to fail is a Reply."""
        if urlsplit(url).scheme not in ("http", "https"):
            return Reply("blocked", "the URL must start with http:// or https://")
        try:
            headers = self._headers(body, key)
            async with asyncio.timeout(timeout_s):
                return await self._post(url, body, headers)
        except TimeoutError:
            return Reply("timeout", f"no answer within {timeout_s:g} s", again=True)
        except KeyUnreadable as error:
            return Reply("error", str(error), again=True)
        except aiohttp.InvalidURL as error:
            return Reply("blocked", _clean(f"the URL is not valid: {error}"))
        except aiohttp.ClientConnectorError as error:
            blocked = isinstance(error.os_error, Blocked)
            message = _clean(str(error.os_error) or type(error.os_error).__name__)
            return Reply("blocked" if blocked else "error", message, again=not blocked)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Reply("error", _clean(f"{type(error).__name__}: {error}"), again=True)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        # A redirect would carry the signed body to an address that nobody wrote down.
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            said = await _first_line(response)
            status = f"{response.status} {response.reason or ''}".strip()
            if 300 <= response.status < 400:
                return Reply("refused", f"{status}: redirects are not followed; write the final URL")
            message = _clean(f"{status}: {said}" if said else status)
            if 200 <= response.status < 300:
                return Reply("ok", message)
            return Reply("refused", message, again=response.status >= 500 or response.status in _AGAIN)

    def _headers(self, body: bytes, key: str) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "slipway-operator",
            "Idempotency-Key": key,
        }
        if self._key_file is not None:
            headers["X-Slipway-Signature"] = signature(_read_key(self._key_file), int(self._clock()), body)
        return headers


def signature(key: bytes, moment_s: int, body: bytes) -> str:
    """The value of X-Slipway-Signature; see docs/hooks.md for its verification."""
    signed = hmac.new(key, f"{moment_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment_s},v1={signed}"


def is_local(address: str) -> bool:
    """Whether an IP address is this machine's own or link-local (a cloud's metadata), or no host's at all."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    real = mapped or found
    return real.is_loopback or real.is_link_local or real.is_unspecified or real.is_multicast


def connector(allow_local: bool, who: str) -> aiohttp.TCPConnector:
    """Connections that are used once, and go to no address of this machine unless that is allowed. For `who`."""

    def outside(info: AddressInfo) -> socket.socket:
        """Asked with the very address that is connected to, whatever name led there."""
        if is_local(str(info[4][0])):
            # The same words for every address: a host with several fails with this very error.
            raise Blocked(f"{who} may not call loopback, link-local or multicast addresses")
        return _any_socket(info)

    return aiohttp.TCPConnector(force_close=True, limit=0, socket_factory=_any_socket if allow_local else outside)


def _any_socket(info: AddressInfo) -> socket.socket:
    family, kind, protocol = info[:3]
    return socket.socket(family, kind, protocol)


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise KeyUnreadable(f"the signing key cannot be read: {error.strerror}") from error
    if not key:
        raise KeyUnreadable("the signing key is empty")
    return key


async def _first_line(response: aiohttp.ClientResponse) -> str:
    """Of a body that may be endless; what is beyond the limit is never read."""
    body = b""
    while len(body) < BODY_LIMIT_BYTES and (chunk := await response.content.read(BODY_LIMIT_BYTES - len(body))):
        body += chunk
    lines = body.decode("utf-8", errors="replace").strip().splitlines()
    return lines[0] if lines else ""


def _clean(text: str) -> str:
    """For a status field and an Event: printable and short."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return printable if len(printable) <= MESSAGE_LIMIT_CHARS else printable[: MESSAGE_LIMIT_CHARS - 1] + "…"
