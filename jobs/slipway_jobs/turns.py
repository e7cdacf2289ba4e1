"""Turns for others while large JSON is looked at on the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

LARGE_BODY_BYTES = 256 << 10
_OTHERS_S = 0.005


async def let_others_run(data: bytes | bytearray) -> None:
    """Call it between two looks at a body: each look at a large one takes some hundredths of a second.

    An answer to another request needs some rounds of the event loop, so that one round is too little.
    """
    if len(data) > LARGE_BODY_BYTES:
        await asyncio.sleep(_OTHERS_S)


class Turns:
    """Large bodies that come at once are looked at one after the other: pauses of several would end together."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def take(self, data: bytes) -> AsyncIterator[None]:
        """Looks at `data` within it. A small body waits for no other one."""
        if len(data) <= LARGE_BODY_BYTES:
            yield
            return
        async with self._one:
            try:
                yield
            finally:
                await let_others_run(data)
