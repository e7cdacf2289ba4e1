"""Whether clients need what the gateway has left: copies for an analysis wait for them."""

from collections.abc import Callable

from .processor import ProcessorUse
from .time_limits import TimeLimits


class ClientDemand:
    """`is_awaited`: whether requests wait for an endpoint in the namespace of a route."""

    def __init__(
        self,
        is_awaited: Callable[[str], bool],
        running: TimeLimits,
        processor: ProcessorUse,
        *,
        most_running: int,
        most_percentage: int,
    ) -> None:
        """`most_running`: requests; `most_percentage`: of the processor, 100: that does not count. More is busy."""
        self._is_awaited, self._running, self._processor = is_awaited, running, processor
        self._most_running, self._most_percentage = most_running, most_percentage

    def is_busy(self, route: str) -> bool:
        """Whether clients need the capacity: some wait for an endpoint, many requests run, or the processor is used."""
        if self._is_awaited(route) or len(self._running) > self._most_running:
            return True
        return self._most_percentage < 100 and self._processor.share() * 100 > self._most_percentage
