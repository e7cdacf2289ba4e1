"""Restarts the engine process after a crash, with a backoff, and gives up when it crashes too often.

The supervisor of `slipway_process` keeps tasks of a process; this keeps a process beside it, which has other causes
to end.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipway_process.backoff import Backoff

log = logging.getLogger("slipway.engine")

WINDOW_S = 600.0
BACKOFF = Backoff(1.0, 30.0)


class EngineError(Exception):
    """The engine cannot serve any more, or never could; the message is one sentence for a person."""


class EngineCrashed(EngineError):
    """The engine process ended while it served, without giving a reason."""


class ModelRefused(EngineError):
    """The engine process cannot load the model, and gave the reason."""


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
        return BACKOFF.delay_s(before)


async def keep_running(
    live: Callable[[], Awaitable[None]],
    restart_in_s: Callable[[EngineCrashed], float | None],
    on_restart: Callable[[], None] = lambda: None,
) -> None:
    """Awaits `live`, and awaits it again after each crash for which `restart_in_s` returns a delay in seconds.

    An exception that nothing expects counts as a crash: `live` has ended the process, and the next one may do better.

    Raises:
        EngineError: from the last `live`: a crash that is not followed by a restart, or an engine that cannot start.
        OSError: the system starts no process.
    """
    while True:
        crash = await _crash_of(live)
        delay_s = restart_in_s(crash)
        if delay_s is None:
            raise crash
        log.error("the engine crashed and is started again", extra={"reason": str(crash), "delay_s": delay_s})
        await asyncio.sleep(delay_s)
        on_restart()


async def _crash_of(live: Callable[[], Awaitable[None]]) -> EngineCrashed:
    try:
        await live()
    except EngineCrashed as crash:
        return crash
    except (EngineError, OSError):
        raise
    except Exception as error:
        log.error("the task of the engine ended", exc_info=error)
        return EngineCrashed(f"The task of the engine ended by {error!r}.")
    return EngineCrashed("The task of the engine ended.")
