"""Connections inside the release: to gateways and model pods, by TLS where they have it."""

import ssl
from asyncio import sslproto
from collections.abc import Callable

import aiohttp

from slipway_process.network.mutual_tls import PemIdentity, client_context
from slipway_process.network.resolver import NameResolver

# Size of the TLS read buffer, which asyncio allocates for each connection; its default is 256 KiB.
_READ_BYTES = 16 << 10


class _InsideConnector(aiohttp.TCPConnector):
    """Opens each TLS connection with the current client certificate; open connections keep theirs."""

    def __init__(self, identity: Callable[[], PemIdentity | None]) -> None:
        super().__init__(resolver=NameResolver())
        self._identity = identity
        self._known: tuple[PemIdentity, ssl.SSLContext] | None = None

    def _get_ssl_context(self, req: aiohttp.ClientRequest) -> ssl.SSLContext | None:
        identity = self._identity() if req.is_ssl() else None
        if identity is None:
            return super()._get_ssl_context(req)
        if self._known is None or self._known[0] != identity:
            sslproto.SSLProtocol.max_size = _READ_BYTES
            self._known = (identity, client_context(identity))
        return self._known[1]


def open_inside(identity: Callable[[], PemIdentity | None]) -> aiohttp.ClientSession:
    """Return a session; `identity` returns the operator's current client certificate, None while it has none."""
    return aiohttp.ClientSession(connector=_InsideConnector(identity))
