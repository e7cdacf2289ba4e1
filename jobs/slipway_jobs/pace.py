"""How long a batch is likely to take, from those that ended before it (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_BATCHES = 20  # of the past, and of those that run, which count


@dataclass(frozen=True, slots=True)
class TimedLines:
    """Lines of a batch, and the seconds that they took, or have taken until now."""

    lines: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """The last batches of a tenant for one endpoint that were completed, and those of the tenant that run."""

    completed: Sequence[TimedLines]
    running: Sequence[TimedLines]

    def estimated_seconds(self, lines: int) -> float | None:
        """Until a new batch of so many lines ends, after those that run; None where none was completed yet."""
        total = sum(batch.lines for batch in self.completed)
        if not total:
            return None
        line_s = sum(max(0.0, batch.seconds) for batch in self.completed) / total
        ahead_s = sum(max(0.0, batch.lines * line_s - batch.seconds) for batch in self.running)
        return _shown(lines * line_s + ahead_s)


def remaining_seconds(running: TimedLines, ended: int) -> float | None:
    """Of a batch of which `ended` lines have ended until now; None while none has."""
    if not ended:
        return None
    return _shown(max(0.0, running.seconds) / ended * max(0, running.lines - ended))


def _shown(seconds: float) -> float | None:
    """Clocks of a database may jump: what is no time is not shown."""
    return round(seconds, 3) if math.isfinite(seconds) else None
