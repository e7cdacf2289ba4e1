"""One computation for equal requests that wait: the first one leads, the others get its response."""

import asyncio
import contextlib
from collections.abc import Iterator

from slipway_process.places import Places

from .entry import Entry

# Requests that wait for the response to an equal one, of all keys together. Beyond these each is computed.
MAX_WAITING = 4096


class Flight:
    """One computation. `entry`: its response, set by who leads it. `is_unkept`: there is one that cannot be kept, so
    that those who wait need not try one after the other."""

    def __init__(self) -> None:
        self.entry: Entry | None = None
        self.is_unkept = False
        self._ended = asyncio.Event()

    async def wait(self) -> None:
        """Returns when the computation ended, however it did."""
        await self._ended.wait()

    def end(self) -> None:
        self._ended.set()


class Flights:
    """All computations of one gateway, by key."""

    def __init__(self, most_waiting: int = MAX_WAITING) -> None:
        self._flights: dict[bytes, Flight] = {}
        self._waiting = Places(most_waiting)

    def of(self, key: bytes) -> Flight | None:
        """The computation for a key that is in progress."""
        return self._flights.get(key)

    @contextlib.contextmanager
    def lead(self, key: bytes) -> Iterator[Flight]:
        """This request computes the response of a key; there must be no flight of it. Those that wait go on after."""
        flight = self._flights[key] = Flight()
        try:
            yield flight
        finally:
            del self._flights[key]
            flight.end()

    @contextlib.contextmanager
    def waiting(self, owner: str) -> Iterator[bool]:
        """While a request of `owner` waits: whether there is a place for it, of which each owner has a share."""
        taken = not self._waiting.take(owner)
        try:
            yield taken
        finally:
            if taken:
                self._waiting.leave(owner)

    @property
    def waits(self) -> int:
        """Requests that wait now."""
        return self._waiting.used
