"""Reads messages of clients within the memory budget: a message counts as soon as its length is known.

A client that is slow to send the rest can be evicted when others need the room, as one that is slow with an HTTP body.
"""

import asyncio

from slipway_process.places import SHARE

from ..http2.stream import Stream
from ..limits.budget import Account
from ..settings import GatewaySettings
from ..wire import errors
from .context import PREFIX_BYTES


class MessageReader:
    """Reads the messages of one call. `ending` is done when the gateway stops reading messages."""

    def __init__(self, stream: Stream, settings: GatewaySettings, ending: "asyncio.Future[None] | None" = None) -> None:
        self._stream, self._settings, self._ending = stream, settings, ending
        self._rest = b""

    async def message(self, account: Account, timeout_s: float | None) -> bytes | None:
        """The next message, counted in the account; None at the end of the messages.

        `timeout_s`: for the message to begin and to be whole; None: it may begin at any time.

        Raises:
            RequestError: it comes too slowly (408), is too long (413), compressed (501), or there is no room for it
                (429).
        """
        message = self.arrived(account)
        return await self._wait(account, timeout_s) if message is None else message

    def arrived(self, account: Account) -> bytes | None:
        """The next message, if it is whole already; None where it must be awaited. Raises RequestError as `message`."""
        self._rest += self._stream.read_now()
        length = self._length()
        if length is None or len(self._rest) < PREFIX_BYTES + length:
            return None
        self._count(account, length)
        return self._cut(length)

    async def _wait(self, account: Account, timeout_s: float | None) -> bytes | None:
        wait = _Wait()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                wait.limit = limit
                account.waits(wait.evict)
                if self._ending:
                    self._ending.add_done_callback(wait.end)
                return await self._read(account, limit, timeout_s)
        except TimeoutError:
            if wait.is_evicted:
                message = "The message came too slowly while the gateway was at its limit of memory."
                raise errors.overloaded(message) from None
            if wait.has_ended:
                return None
            raise errors.invalid("body_timeout", "The message did not arrive in time.", status=408) from None
        finally:
            account.goes_on()
            if self._ending:
                self._ending.remove_done_callback(wait.end)

    async def _read(self, account: Account, limit: asyncio.Timeout, timeout_s: float | None) -> bytes | None:
        while (length := self._length()) is None:
            data = await self._stream.read()
            if not data and self._rest:
                raise errors.invalid("invalid_message", "The call ended within a message.")
            if not data:
                return None
            self._rest += data
        if timeout_s is None:
            limit.reschedule(asyncio.get_running_loop().time() + self._settings.body_timeout_s)
        self._count(account, length)
        whole = bytearray(self._rest)  # pieces by themselves would take more than what they bring
        self._rest = b""
        while (missing := PREFIX_BYTES + length - len(whole)) > 0:
            self._stream.expect(missing)
            data = await self._stream.read()
            if not data:
                raise errors.invalid("invalid_message", "The call ended within a message.")
            whole += data
            account.moved()
        end = PREFIX_BYTES + length
        self._rest = bytes(whole[end:])
        del whole[end:]
        return bytes(memoryview(whole)[PREFIX_BYTES:])

    def _length(self) -> int | None:
        """The length of the next message; None when that has not arrived. Raises RequestError: it is not taken."""
        if len(self._rest) < PREFIX_BYTES:
            return None
        if self._rest[0]:
            message = "Messages that are compressed are not taken: a small one may be very large. Send identity."
            raise errors.invalid("unsupported_encoding", message, status=501)
        length = int.from_bytes(self._rest[1:PREFIX_BYTES])
        if length > self._settings.max_body_bytes:
            raise errors.too_large(self._settings.max_body_bytes)
        return length

    def _count(self, account: Account, length: int) -> None:
        if refused := account.grow(length):
            raise _no_room(refused)

    def _cut(self, length: int) -> bytes:
        end = PREFIX_BYTES + length
        message, self._rest = self._rest[PREFIX_BYTES:end], self._rest[end:]
        return message


class _Wait:
    """Ends a wait: when its account is evicted, or the gateway ends."""

    def __init__(self) -> None:
        self.limit: asyncio.Timeout | None = None
        self.is_evicted = self.has_ended = False

    def evict(self) -> None:
        self.is_evicted = True
        self._stop()

    def end(self, _: "asyncio.Future[None]") -> None:
        self.has_ended = True
        self._stop()

    def _stop(self) -> None:
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())


def _no_room(reason: str) -> errors.RequestError:
    if reason == SHARE:
        return errors.overloaded("This client's requests are at their share of the gateway's memory.")
    return errors.overloaded("The gateway is at its limit of memory for requests.")
