"""Turns of namespaces at what the process does a bounded number of times at once."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slipway_process.places import Places


class Turns:
    """A semaphore with a share for each namespace. A turn that becomes free goes to the namespaces that wait, in turns.

    So a namespace whose calls hang has at most its share of them, and its next calls wait behind its own alone.
    """

    def __init__(self, total: int, most: int = 0) -> None:
        """`total`: turns at once, of which a namespace has at most `most`, and fewer when several have many."""
        self._places = Places(total, most=most)
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()  # the oldest first

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn of the namespace, and hold it."""
        if namespace in self._waiting or self._places.take(namespace):
            await self._wait(namespace)
        try:
            yield
        finally:
            self._end(namespace)

    async def _wait(self, namespace: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, {})[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(namespace, turn)
                self._give()  # to a call that came after this one and waits behind it
            else:
                self._end(namespace)  # it was given at the same moment
            raise

    def _end(self, namespace: str) -> None:
        self._places.leave(namespace)
        self._give()

    def _give(self) -> None:
        """Give free turns to namespaces that wait: to each at most one, and the next time to the others first."""
        for namespace in list(self._waiting):
            turn = self._first(namespace)
            if turn is not None and not self._places.take(namespace):
                self._leave(namespace, turn)
                turn.set_result(None)
                if namespace in self._waiting:
                    self._waiting.move_to_end(namespace)

    def _first(self, namespace: str) -> asyncio.Future[None] | None:
        """The call of a namespace that waits for longest; those that were cancelled meanwhile leave."""
        while turns := self._waiting.get(namespace):
            if not (turn := next(iter(turns))).done():
                return turn
            self._leave(namespace, turn)
        return None

    def _leave(self, namespace: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(namespace, {})
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(namespace, None)
