"""Lists of the Kubernetes API in pages that fit in memory, however large their objects are.

The API server bounds a page by the number of its objects only, and a user who may create a pod decides how large the
pod is: a page of 500 can be a gigabyte of JSON. A response is therefore read up to a limit of bytes. A page above it is
requested again with fewer objects.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

PAGE_OBJECTS = 500
# etcd takes objects of up to 1.5 MiB, and in JSON a byte of them is up to six ("<" is \u003c): any one object fits.
MAX_PAGE_BYTES = 16 << 20
_SMALLER = 8

Query = dict[str, str]
Page = dict[str, Any]


class PageTooLarge(Exception):
    """A response has more than `MAX_PAGE_BYTES`."""


class PageResponse(Protocol):
    """The part of an aiohttp.ClientResponse that is used here."""

    content: Any

    def close(self) -> None:
        """Close the connection."""


async def read_page(response: PageResponse) -> bytes:
    """Return the whole body. The connection is closed unless the body was read to its end.

    Raises:
        PageTooLarge: as soon as there are more than `MAX_PAGE_BYTES`.
    """
    body = bytearray()
    try:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_PAGE_BYTES:
                raise PageTooLarge(f"the response has more than {MAX_PAGE_BYTES >> 20} MiB")
    except BaseException:
        response.close()
        raise
    return bytes(body)


async def pages(get: Callable[[Query], Awaitable[Page]], query: Query) -> AsyncIterator[Page]:
    """Yield the pages of one list; `get` sends the query.

    A list with `resourceVersion=0` comes from the API server's cache, which ignores the limit. It is used until a page
    is too large.

    Raises:
        PageTooLarge: one object alone is too large.
    """
    size, more = PAGE_OBJECTS, ""
    while True:
        wanted = query | {"limit": str(size)} | ({"continue": more} if more else {})
        try:
            page = await get(wanted)
        except PageTooLarge:
            if size == 1:
                raise
            size = max(1, size // _SMALLER)
            query = {name: value for name, value in query.items() if name != "resourceVersion"}
            continue
        yield page
        more = page["metadata"].get("continue") or ""
        if not more:
            return
