"""The rest of a provider's stream, bounded in size, which ends where the provider's own key is in it."""

from collections.abc import Callable

import aiohttp


def drop(response: aiohttp.ClientResponse) -> None:
    """Ends a response at once: a provider that goes on sending would hold the end of TLS back for half a minute."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


class ProviderStream:
    """A response whose first bytes were read, with the part of aiohttp's interface that the gateway uses.

    It is its own content. `end` is called once, when nothing more is read.
    """

    def __init__(self, response: aiohttp.ClientResponse, start: bytes, *, most_bytes: int, key: str) -> None:
        self._response, self._key = response, key.encode()
        self._left_bytes = most_bytes
        self._tail = b""  # of what was read: the key may begin in it
        self._end: Callable[[], None] | None = None
        self.content = self
        self.content_length: int | None = None
        self._check(start)

    def ends_with(self, end: Callable[[], None]) -> None:
        """`end` is called when the stream is closed."""
        self._end = end

    async def readany(self) -> bytes:
        """The next bytes; empty at the end.

        Raises:
            aiohttp.ClientPayloadError: the provider sends too much, or its key.
            aiohttp.ClientError: the stream broke off.
        """
        chunk = await self._response.content.readany()
        self._check(chunk)
        return chunk

    def close(self) -> None:
        """Nothing more is read."""
        drop(self._response)
        end, self._end = self._end, None
        if end is not None:
            end()

    def _check(self, chunk: bytes) -> None:
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            raise aiohttp.ClientPayloadError("the provider sends too much")
        seen = self._tail + chunk
        if self._key in seen:
            raise aiohttp.ClientPayloadError("the provider sends its key")
        self._tail = seen[-len(self._key) + 1 :] if len(self._key) > 1 else b""
