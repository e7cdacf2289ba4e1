"""How much of a processor this process uses, so that work which may wait stops before clients have to.

Requests in flight show an overload too late: at the edge of what one thread can do, each further request waits for all
others long before many are in flight.
"""

import math
from collections.abc import Callable
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# Long enough that one slow step, such as a new table, is no load; short enough to end a rush before clients see it.
_SMOOTHED_S = 0.2
_LEAST_S = 0.002  # between two readings: the clock of a thread has steps


class ProcessorUse:
    """The part of `limit` processors that the calling thread uses, smoothed.

    `clock` counts seconds, `used` the seconds of a processor that the thread used.
    """

    def __init__(self, clock: Callable[[], float], used: Callable[[], float], limit: float = 1.0) -> None:
        self._clock = clock
        self._used = used
        self._limit = limit
        self._at_s, self._used_s = clock(), used()
        self._share = 0.0

    def share(self) -> float:
        """The part that is in use now, between 0 and 1."""
        elapsed_s = self._clock() - self._at_s
        if elapsed_s >= _LEAST_S:
            used_s = self._used()
            now = min(1.0, (used_s - self._used_s) / elapsed_s / self._limit)
            self._share += (now - self._share) * -math.expm1(-elapsed_s / _SMOOTHED_S)
            self._at_s, self._used_s = self._at_s + elapsed_s, used_s
        return self._share


def processor_limit(root: Path = _ROOT) -> float:
    """Processors that one thread of this container may use: 1, or less where its limit is lower."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return min(1.0, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no limit, nor is a root without control groups
        return 1.0
