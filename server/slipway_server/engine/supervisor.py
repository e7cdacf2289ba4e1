"""Restarts the engine process after a crash, with a backoff, and gives up when it crashes too often."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .client import EngineCrashed

log = logging.getLogger("slipway.engine")

WINDOW_S = 600.0
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0


@dataclass(slots=True)
class Restarts:
    """At most `most` within any window. The first is at once: one crash may be chance. Then each waits twice as long as
    the one before. What crashes more often than that is a fault that starting again does not cure.

    Not a retry of tenacity's: it counts crashes in a moving window, and lives that went well for long lie between them.
    """

    most: int = 5
    window_s: float = WINDOW_S
    _crashes: deque[float] = field(default_factory=deque)

    def delay_s(self, now_s: float) -> float | None:
        """After a crash at this time, in monotonic seconds: how long to wait before another start; None: give up."""
        while self._crashes and now_s - self._crashes[0] >= self.window_s:
            self._crashes.popleft()
        before = len(self._crashes)
        self._crashes.append(now_s)
        if before >= self.most:
            return None
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (before - 1)) if before else 0.0


async def keep_running(
    live: Callable[[], Awaitable[None]],
    restart_in_s: Callable[[EngineCrashed], float | None],
    on_restart: Callable[[], None] = lambda: None,
) -> None:
    """Awaits `live` again after each crash that may be followed by another life.

    Raises:
        EngineError: of the last life: a crash too many, or a model that cannot be loaded.
    """
    while True:
        try:
            await live()
        except EngineCrashed as crash:
            delay_s = restart_in_s(crash)
            if delay_s is None:
                raise
            log.error("the engine crashed and is started again", extra={"reason": str(crash), "delay_s": delay_s})
            await asyncio.sleep(delay_s)
            on_restart()
