"""Connections to endpoints, and the first bytes of what comes over them."""

import socket

import aiohttp

from .budget import Account
from .settings import Settings

# Endpoints are near, so small buffers are fast enough; what a slow client does not read stays at the server.
_RECEIVE_BUFFER_BYTES = 64 << 10
_READ_BYTES = 16 << 10


async def read_at_least(response: aiohttp.ClientResponse, wanted: int, account: Account) -> bytes:
    """Reads until `wanted` bytes are there, the answer ended, or there is no room for more of it."""
    chunks: list[bytes] = []
    size = 0
    while size < wanted and (chunk := await response.content.readany()):
        chunks.append(chunk)
        size += len(chunk)
        if wanted > 1 and account.grow(len(chunk)):
            # This much is here, and counts; the rest is passed on as it comes.
            account.force(len(chunk))
            break
    return b"".join(chunks)


def _mortal_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A node that is gone sends no reset: its connections die by silence, within half a minute."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    # Linux: probes after 10 s without a word, every 5 s; and no more than 25 s for sent bytes to arrive.
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        if option := getattr(socket, name, 0):
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def open_session(settings: Settings) -> aiohttp.ClientSession:
    """Connections without a limit of their own (`max_inflight` is the bound); answers pass as they are encoded."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0, socket_factory=_mortal_socket),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.idle_timeout_s
        ),
        auto_decompress=False,
        read_bufsize=_READ_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        max_field_size=settings.max_header_bytes,
    )
