"""Outlier detection as in Envoy: an endpoint that fails is ejected for a while (pure).

https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutlierDetection:
    """When and for how long endpoints are ejected; the names are Envoy's. A count of 0 turns its condition off."""

    consecutive_5xx: int = 5
    consecutive_gateway_failure: int = 5  # no connection, a reset, 502, 503 or 504
    base_ejection_time_s: float = 10.0  # multiplied by the endpoint's ejections in a row
    max_ejection_time_s: float = 300.0
    max_ejection_percent: int = 50  # of a revision's endpoints; above 0, one of two or more may always be ejected


@dataclass(slots=True)
class _EndpointHistory:
    failures_5xx: int = 0
    gateway_failures: int = 0
    ejections: int = 0  # in a row
    ejected_until_s: float = 0.0


class OutlierDetector:
    """Failures and ejections of the endpoints of one table. `clock` counts seconds."""

    def __init__(self, rule: OutlierDetection, clock: Callable[[], float]) -> None:
        self._rule, self._clock = rule, clock
        self._endpoints: dict[str, _EndpointHistory] = {}
        self._ejected: frozenset[str] = frozenset()
        self._next_s = 0.0  # when the next ejection ends
        self.on_change: Callable[[dict[str, float]], None] = lambda left: None

    def succeeded(self, url: str) -> None:
        """A response that is no failure. During an ejection it belongs to an earlier request and does not count."""
        if self._endpoints and (known := self._endpoints.get(url)) and url not in self.ejected():
            del self._endpoints[url]
            if known.ejections > 1:
                # One success does not prove that the endpoint is well: as in Envoy, it takes off one ejection only.
                self._endpoints[url] = _EndpointHistory(ejections=known.ejections - 1)

    def failed(self, url: str, peers: Sequence[str], *, gateway: bool) -> bool:
        """Counts a failure of the endpoint `url`; returns whether the endpoint is ejected because of it.

        `peers`: endpoints of its revision, itself among them. `gateway`: it did not answer, or with 502, 503 or 504;
        False: it answered with another 5xx.
        """
        if url in self.ejected():
            return False  # it belongs to an earlier request, as with `succeeded`
        known = self._endpoints.setdefault(url, _EndpointHistory())
        known.failures_5xx += 1
        known.gateway_failures = known.gateway_failures + 1 if gateway else 0
        rule = self._rule
        reached = 0 < rule.consecutive_5xx <= known.failures_5xx
        reached |= 0 < rule.consecutive_gateway_failure <= known.gateway_failures
        if not reached or not self._may_go(url, peers):
            return False
        self._eject(url, known)
        return True

    def ejected(self) -> frozenset[str]:
        """Endpoints that get no requests now if there are others."""
        if self._ejected and self._clock() >= self._next_s:
            self._return()
        return self._ejected

    def follow(self, urls: Collection[str]) -> None:
        """Adopts a new table: forgets endpoints that left it, because an address may come back as another pod."""
        for gone in [url for url in self._endpoints if url not in urls]:
            del self._endpoints[gone]
        self._return()

    def _may_go(self, url: str, peers: Sequence[str]) -> bool:
        if url not in peers:
            return False
        out = sum(peer in self._ejected for peer in peers)
        allowed = max(1, len(peers) * self._rule.max_ejection_percent // 100)
        return self._rule.max_ejection_percent > 0 and out < min(allowed, len(peers) - 1)

    def _eject(self, url: str, known: _EndpointHistory) -> None:
        known.ejections += 1
        known.failures_5xx = known.gateway_failures = 0
        lasts_s = min(self._rule.base_ejection_time_s * known.ejections, self._rule.max_ejection_time_s)
        known.ejected_until_s = self._clock() + lasts_s
        self._return()

    def _return(self) -> None:
        now_s = self._clock()
        left = {url: known.ejected_until_s for url, known in self._endpoints.items() if known.ejected_until_s > now_s}
        if left or self._ejected:
            self.on_change({url: until_s - now_s for url, until_s in left.items()})
        self._ejected = frozenset(left)
        self._next_s = min(left.values(), default=0.0)
