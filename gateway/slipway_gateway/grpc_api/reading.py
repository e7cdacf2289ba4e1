"""Reads messages of clients within the memory budget.

The library holds a message until it is whole, and no one can see how much of it came. So what comes at once counts when
it is there, and what takes longer counts as the largest message until then. Such a wait can be evicted, as that of a
body which does not arrive.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from grpc import aio

from ..limits.budget import SHARE, Account
from ..settings import GatewaySettings
from ..wire import errors

# As long as this many clients may send without being counted: a network brings little in that time.
AT_ONCE_S = 0.05

Read = Callable[[], Awaitable[Any]]


class MessageReader:
    """Of one call. `ending`: is done when the gateway stops to read."""

    def __init__(self, read: Read, settings: GatewaySettings, ending: "asyncio.Future[None] | None" = None) -> None:
        self._read, self._settings, self._ending = read, settings, ending

    async def message(self, account: Account, timeout_s: float | None) -> bytes | None:
        """The next one, counted in the account; None at the end.

        Raises:
            RequestError: it comes too slowly (408), or there is no room for it (429).
        """
        wait = _Wait(account, self._settings.max_body_bytes, timeout_s, self._ending)
        try:
            message = await self._read()
        except asyncio.CancelledError:
            if not wait.was_ended():
                raise
            if wait.refusal:
                raise wait.refusal from None
            return None
        finally:
            wait.close()
        if message is aio.EOF:
            return None
        assert isinstance(message, bytes)
        if refused := account.grow(len(message)):
            raise _no_room(refused)
        return message


class _Wait:
    """For one message, of the task that reads it. Most are there at once: so the wait costs them a timer and no task.

    `refusal`: why it was ended; None where the gateway ends.
    """

    __slots__ = ("_account", "_before", "_ended", "_ending", "_held_bytes", "_largest", "_task", "_timeout_s", "_timer",
                 "refusal")  # fmt: skip

    def __init__(
        self, account: Account, largest: int, timeout_s: float | None, ending: "asyncio.Future[None] | None"
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._account, self._largest, self._timeout_s, self._ending = account, largest, timeout_s, ending
        self._held_bytes = 0
        self._ended = False
        self.refusal: errors.RequestError | None = None
        self._timer: asyncio.TimerHandle | None = task.get_loop().call_later(AT_ONCE_S, self._begin)

    def was_ended(self) -> bool:
        """Whether a cancellation of the task is this one's alone, which then is over."""
        return self._ended and self._task.uncancel() <= self._before

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._held_bytes:
            self._account.goes_on()
            self._account.shrink(self._held_bytes)
        if self._ending:
            self._ending.remove_done_callback(self._stop)

    def _begin(self) -> None:
        """It was not there at once: it counts as the largest one."""
        self._timer = None
        if refused := self._account.grow(self._largest):
            self._end(_no_room(refused))
            return
        self._held_bytes = self._largest
        self._account.waits(self._evicted)
        if self._ending:
            self._ending.add_done_callback(self._stop)
        if self._timeout_s is not None:
            self._timer = self._task.get_loop().call_later(self._timeout_s, self._late)

    def _evicted(self) -> None:
        self._end(errors.overloaded("The message came too slowly while the gateway was at its limit of memory."))

    def _late(self) -> None:
        self._end(errors.invalid("body_timeout", "The message did not arrive in time.", status=408))

    def _stop(self, _: "asyncio.Future[None]") -> None:
        self._end(None)

    def _end(self, refusal: errors.RequestError | None) -> None:
        if not self._ended:
            self._ended, self.refusal = True, refusal
            self._task.cancel()


def _no_room(reason: str) -> errors.RequestError:
    if reason == SHARE:
        return errors.overloaded("This client's requests are at their share of the gateway's memory.")
    return errors.overloaded("The gateway is at its limit of memory for requests.")
