"""Places for work that is in progress: bounded, with a share for each viewer, and a bounded wait for one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from slipway_console.access.refusal import unavailable
from slipway_process.shares import Shares

WAIT_S = 5.0


class Places:
    """At most `most` at once; the last quarter is for shares that have none. `why`: the sentence where none is free."""

    def __init__(self, most: int, why: str) -> None:
        self._shares, self._why, self._freed = Shares(most), why, asyncio.Condition()

    @contextlib.asynccontextmanager
    async def of(self, share: str) -> AsyncIterator[None]:
        """A place until the end of the block. Raises ApiRefusal when there is none in time."""
        async with self._freed:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._freed.wait_for(lambda: self._shares.take(share))
            except TimeoutError:
                raise unavailable(self._why) from None
        try:
            yield
        finally:
            async with self._freed:
                self._shares.give_back(share)
                self._freed.notify_all()
