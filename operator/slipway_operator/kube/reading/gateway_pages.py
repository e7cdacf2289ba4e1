"""Reads a page of every gateway's admin port, such as what it reports about tenants."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import aiohttp
import msgspec

from slipway_operator.kube.reading.gateways import Endpoint, Gateways
from slipway_process.network.guarded import read_body

T = TypeVar("T")

TIMEOUT = aiohttp.ClientTimeout(total=5.0)
MAX_BYTES = 32 << 20
_TROUBLES = (
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    msgspec.MsgspecError,
    UnicodeDecodeError,
    ValueError,
    RecursionError,
)


async def read_pages(
    gateways: Gateways, session: aiohttp.ClientSession, path: str, decode: Callable[[bytes], T]
) -> tuple[tuple[T, ...], int]:
    """Return the pages of all gateways that answered, and how many ready ones did not: others get no requests.

    Raises:
        ApiError: addresses of gateways cannot be read.
    """
    found = await gateways.endpoints()
    pages = await asyncio.gather(*(_read(session, endpoint, path, decode) for endpoint in found))
    silent = sum(page is None and endpoint.ready for page, endpoint in zip(pages, found, strict=True))
    return tuple(page for page in pages if page is not None), silent


async def _read(
    session: aiohttp.ClientSession, endpoint: Endpoint, path: str, decode: Callable[[bytes], T]
) -> T | None:
    try:
        async with session.get(f"{endpoint.url}{path}", timeout=TIMEOUT) as response:
            response.raise_for_status()
            content = await read_body(response, MAX_BYTES)
            return decode(content) if len(content) <= MAX_BYTES else None
    except _TROUBLES:
        return None
