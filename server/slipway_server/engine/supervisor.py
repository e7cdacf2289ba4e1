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
    """Allows at most `most` restarts within any `window_s` seconds.

    The first restart is immediate: one crash may be chance. Each later one waits twice as long as the one before. An
    engine that crashes more often has a fault that a restart does not cure.

    This is no retry as tenacity has them: it counts crashes in a moving window, between long times of normal service.
    """

    most: int = 5
    window_s: float = WINDOW_S
    _crashes: deque[float] = field(default_factory=deque)

    def delay_s(self, now_s: float) -> float | None:
        """Records a crash at `now_s` (monotonic). Returns the seconds to wait before the restart; None: give up."""
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
    """Awaits `live`, and awaits it again after each crash for which `restart_in_s` returns a delay in seconds.

    Raises:
        EngineError: from the last `live`: a crash that is not followed by a restart, or an engine that cannot start.
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
