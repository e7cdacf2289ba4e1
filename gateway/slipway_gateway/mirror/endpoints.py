"""Chooses the endpoint of a mirrored request: the least loaded one that has not been busy within the last second."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..balancing.in_flight import InFlight
from ..routing.split import affinity

BUSY_STATUSES = frozenset({429, 503})
_REST_S = 1.0  # a busy server gets no mirrored requests for this long


class MirrorEndpoints:
    """Load and rests of endpoints, for the mirrored requests of one gateway. `clock` returns seconds."""

    def __init__(self, in_flight: InFlight, clock: Callable[[], float]) -> None:
        self._in_flight = in_flight
        self._clock = clock
        self._asking: Counter[str] = Counter()
        self._rests_until_s: dict[str, float] = {}

    def choose(self, urls: Sequence[str], key: str) -> str:
        """The URL of the least loaded endpoint; empty when all of them rest. At equal load a key keeps its endpoint."""
        now_s = self._clock()
        awake = [url for url in urls if self._rests_until_s.get(url, 0.0) <= now_s]
        load = self._in_flight.at
        return min(awake, key=lambda url: (self._asking[url] + load(url), affinity(url, key)), default="")

    @contextmanager
    def asking(self, url: str) -> Iterator[None]:
        """Counts a mirrored request as load of the endpoint `url` for as long as the context is open."""
        self._asking[url] += 1
        try:
            yield
        finally:
            self._asking[url] -= 1
            if not self._asking[url]:
                del self._asking[url]

    def rest(self, url: str) -> None:
        """The server at `url` answered that it is busy: `choose` skips it for a second."""
        now_s = self._clock()
        self._rests_until_s = {name: until_s for name, until_s in self._rests_until_s.items() if until_s > now_s}
        self._rests_until_s[url] = now_s + _REST_S
