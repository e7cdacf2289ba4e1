"""Reads messages of clients within the memory budget.

The library holds a message until it is whole, and does not show how much of it has arrived. So a message that arrives
within AT_ONCE_S counts when it is there; until a slower one is there, it counts as a message of the largest size. Such
a wait can be evicted when others need the room, as the wait for an HTTP body can.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from grpc import aio

from ..limits.budget import SHARE, Account
from ..settings import GatewaySettings
from ..wire import errors

# For so long a message may be on its way without being counted: a network brings little in that time.
AT_ONCE_S = 0.05

Read = Callable[[], Awaitable[Any]]


class MessageReader:
    """Reads the messages of one call. `ending` is done when the gateway stops reading messages."""

    def __init__(self, read: Read, settings: GatewaySettings, ending: "asyncio.Future[None] | None" = None) -> None:
        self._read, self._settings, self._ending = read, settings, ending

    async def message(self, account: Account, timeout_s: float | None) -> bytes | None:
        """The next message, counted in the account; None at the end of the messages. `timeout_s` None: no limit.

        Raises:
            RequestError: it comes too slowly (408), or there is no room for it (429).
        """
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({reading}, timeout=AT_ONCE_S)
            if not reading.done() and not await self._patiently(reading, account, timeout_s):
                return None
            message = reading.result()
        finally:
            if not reading.done():
                reading.cancel()
        if message is aio.EOF:
            return None
        assert isinstance(message, bytes)
        if refused := account.grow(len(message)):
            raise _no_room(refused)
        return message

    async def _patiently(self, reading: "asyncio.Future[Any]", account: Account, timeout_s: float | None) -> bool:
        """Waits for a slow message; returns whether it came before `ending`. Raises RequestError as `message` does."""
        largest = self._settings.max_body_bytes
        if refused := account.grow(largest):
            raise _no_room(refused)
        evicted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        account.waits(lambda: evicted.set_result(None))
        awaited: set[asyncio.Future[Any]] = {reading, evicted} | ({self._ending} if self._ending else set())
        try:
            await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            account.goes_on()
        if evicted.done():
            raise errors.overloaded("The message came too slowly while the gateway was at its limit of memory.")
        account.shrink(largest)
        if not reading.done() and (self._ending is None or not self._ending.done()):
            raise errors.invalid("body_timeout", "The message did not arrive in time.", status=408)
        return reading.done()


def _no_room(reason: str) -> errors.RequestError:
    if reason == SHARE:
        return errors.overloaded("This client's requests are at their share of the gateway's memory.")
    return errors.overloaded("The gateway is at its limit of memory for requests.")
