"""How long a source waits for its refusal after many of them (pure). Guessing gets slow; right keys never do."""

from collections import OrderedDict

from slipway_process.backoff import Backoff

MAX_SOURCES = 4096
FREE = 10.0  # refusals that cost nothing
FORGOTTEN_PER_S = 1.0
BACKOFF = Backoff(0.1, 2.0)  # of refusals beyond these


class FailureDelays:
    """Recent refusals by source. Beyond `max_sources` the source that was quiet for longest is forgotten."""

    def __init__(self, max_sources: int = MAX_SOURCES) -> None:
        self._max_sources = max_sources
        self._sources: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, and when it was counted

    def __len__(self) -> int:
        return len(self._sources)

    def failed(self, source: str, now: float) -> float:
        """Counts one more refusal of a source; returns the seconds by which to delay it. `now`: in seconds."""
        count, at = self._sources.pop(source, (0.0, now))
        count = max(0.0, count - FORGOTTEN_PER_S * max(0.0, now - at)) + 1.0
        # Beyond the longest delay nothing changes: a source that stops is forgotten in bounded time.
        count = min(count, 2 * FREE)
        self._sources[source] = count, now
        if len(self._sources) > self._max_sources:
            self._sources.popitem(last=False)
        return BACKOFF.delay_s(count - FREE)
