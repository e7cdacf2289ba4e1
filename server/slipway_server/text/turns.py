"""Waits for a slot of a `FairQueue` in an event loop."""

import asyncio

from .fair_queue import FairQueue, QueueRules


class TextBusy(Exception):
    """Too many jobs wait. Nothing was started; a later attempt may succeed."""


class Turns:
    def __init__(self, rules: QueueRules) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(rules)

    async def take(self, tenant: str) -> None:
        """Wait for a slot, which `release` gives back.

        Raises:
            TextBusy: too many jobs of this tenant wait.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (refused := self._queue.push(tenant, turn)) is not None:
            refused.set_exception(TextBusy("Too many texts wait for their tokens."))
        self._advance()
        try:
            await asyncio.wait([turn])  # unlike `await turn`, its end does not cancel the turn
        except asyncio.CancelledError:
            self._give_up(tenant, turn)
            raise
        turn.result()

    def release(self, tenant: str) -> None:
        self._queue.release(tenant)
        self._advance()

    def _advance(self) -> None:
        while (turn := self._queue.pop()) is not None:
            turn.set_result(None)

    def _give_up(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        """The caller of `take` is gone, perhaps in the moment of its turn."""
        if not turn.done():
            self._queue.remove(tenant, turn)
        elif turn.exception() is None:
            self.release(tenant)
