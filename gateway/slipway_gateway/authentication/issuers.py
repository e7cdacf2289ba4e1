"""The public keys of OIDC issuers: discovered and fetched over HTTPS, cached, and fetched again for an unknown key."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp
import msgspec

from ..identity import tokens
from ..identity.tokens import IssuerKey, UnusableKeys, UnverifiedToken

log = logging.getLogger(__name__)

FRESH_S = 300.0  # after this the keys are fetched again, so that a key that the issuer removed is not used for long
STALE_S = 86_400.0  # while an issuer does not answer, its last keys are used until they are this old
UNKNOWN_KEY_S = 10.0  # the shortest time between two fetches from one issuer, as tokens with unknown keys cause them
MAX_DOCUMENT_BYTES = 256 << 10
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_TROUBLES = (aiohttp.ClientError, OSError, TimeoutError, UnusableKeys, ValueError)


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


class IssuerUnavailable(Exception):
    """An issuer does not answer, and its last keys are too old to use, or were never fetched."""


@dataclass(slots=True)
class _Issuer:
    keys: tuple[IssuerKey, ...] = ()
    fetched_s: float = float("-inf")
    tried_s: float = float("-inf")
    trouble: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class IssuerKeys:
    """A cache of the keys of those issuers that Tenants name; `keep` drops all others.

    `ca_file`: PEM file of the authorities that are trusted for HTTPS instead of the system's; "": the system's.
    """

    def __init__(self, clock: Callable[[], float], ca_file: str = "") -> None:
        self._clock = clock
        self._ca_file = ca_file
        self._issuers: dict[str, _Issuer] = {}
        self._session: aiohttp.ClientSession | None = None

    async def of(self, token: UnverifiedToken) -> list[IssuerKey]:
        """The issuer's keys that may have signed a token, which can be none; fetches keys that are old or do not fit.

        Raises:
            IssuerUnavailable: no fetch from the issuer succeeded within STALE_S.
        """
        issuer = self._issuers.setdefault(token.issuer, _Issuer())
        if self._clock() - issuer.fetched_s >= FRESH_S:
            await self._refresh(token.issuer, issuer)
        found = tokens.candidates(issuer.keys, token)
        if not found and issuer.keys:
            await self._refresh(token.issuer, issuer)
            found = tokens.candidates(issuer.keys, token)
        if self._clock() - issuer.fetched_s >= STALE_S:
            raise IssuerUnavailable(issuer.trouble)
        return found

    def trouble(self, issuer: str) -> str:
        """Why the last fetch of this issuer's keys failed; empty when it succeeded, or there was none."""
        found = self._issuers.get(issuer)
        return found.trouble if found else ""

    def keep(self, issuers: frozenset[str]) -> None:
        for gone in self._issuers.keys() - issuers:
            del self._issuers[gone]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _refresh(self, url: str, issuer: _Issuer) -> None:
        """Fetches an issuer's keys, at most once in UNKNOWN_KEY_S; concurrent callers wait for the same fetch.

        A failure is logged and raises nothing: the last keys stay.
        """
        async with issuer.lock:
            if self._clock() - issuer.tried_s < UNKNOWN_KEY_S:
                return
            issuer.tried_s = self._clock()
            try:
                issuer.keys = await self._fetch(url)
                issuer.fetched_s, issuer.trouble = self._clock(), ""
            except _TROUBLES as error:
                trouble = f"{type(error).__name__}: {error}"[:500]
                if trouble != issuer.trouble:
                    log.error("the keys of the issuer %s cannot be read, the last ones stay: %s", url, trouble)
                issuer.trouble = trouble

    async def _fetch(self, issuer: str) -> tuple[IssuerKey, ...]:
        document = await self._get(issuer.rstrip("/") + "/.well-known/openid-configuration")
        found = msgspec.json.decode(document, type=_Discovery)
        if found.issuer != issuer:
            raise UnusableKeys(f"it calls itself {found.issuer[:200]}")
        return tokens.parse_keys(await self._get(found.jwks_uri))

    async def _get(self, url: str) -> bytes:
        if urlsplit(url).scheme != "https":
            raise UnusableKeys(f"{url[:200]} is not https")
        async with self._open().get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise UnusableKeys(f"{url[:200]} answers with {answer.status}")
            content = bytearray()
            async for piece in answer.content.iter_chunked(64 << 10):
                content += piece
                if len(content) > MAX_DOCUMENT_BYTES:
                    raise UnusableKeys(f"{url[:200]} is longer than {MAX_DOCUMENT_BYTES} bytes")
            return bytes(content)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trust = ssl.create_default_context(cafile=self._ca_file or None)
            connector = aiohttp.TCPConnector(ssl=trust, limit=16)
            self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, auto_decompress=False)
        return self._session
