"""Keeps an engine process running: after a crash it is started once more, after a second one soon it is given up."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .client import EngineCrashed

log = logging.getLogger("slipway.engine")

RESTART_WINDOW_S = 3600.0


@dataclass(slots=True)
class Restarts:
    """One crash may be chance. A second one within the window is a fault that starting again does not cure."""

    window_s: float = RESTART_WINDOW_S
    _last_s: float = float("-inf")

    def allow(self, now_s: float) -> bool:
        """Whether to start again after a crash at this time, in monotonic seconds."""
        allowed = now_s - self._last_s >= self.window_s
        self._last_s = now_s
        return allowed


async def keep_running(live: Callable[[], Awaitable[None]], may_restart: Callable[[EngineCrashed], bool]) -> None:
    """Awaits `live` again after each crash that may be followed by another life.

    Raises:
        EngineError: of the last life: a crash too many, or a model that cannot be loaded.
    """
    while True:
        try:
            await live()
        except EngineCrashed as crash:
            if not may_restart(crash):
                raise
            log.error("the engine crashed and is started once more", extra={"reason": str(crash)})
