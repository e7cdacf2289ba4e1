"""Logs and counts ejections of endpoints; outlier.py decides."""

import logging
from collections.abc import Callable, Sequence

from ..routing.router import RouteEndpoint
from ..routing.table import RouteTable
from ..telemetry.metrics import GatewayMetrics
from .outlier import OutlierDetection, OutlierDetector

log = logging.getLogger(__name__)
_MOST_EJECTIONS = 64  # in a row, that successes take off one by one: with more of them nothing is left
_GATEWAY_FAILURES = frozenset({0, 502, 503, 504})


class OutlierEjection:
    """Ejections of one gateway."""

    def __init__(self, rule: OutlierDetection, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self._outliers = OutlierDetector(rule, clock)
        self._metrics = metrics
        metrics.ejected.set_function(lambda: len(self.urls()))

    def urls(self) -> frozenset[str]:
        """Endpoints that are ejected now."""
        return self._outliers.ejected()

    def join(self, eject: Callable[[dict[str, float]], None]) -> None:
        """`eject` gets the endpoints that are ejected, with seconds that are left, whenever they change."""
        self._outliers.on_change = eject

    def succeeded_in_lane(self, url: str, times: int) -> None:
        """The fast lane got responses of an endpoint that are no failure of its own."""
        for _ in range(min(times, _MOST_EJECTIONS)):
            self._outliers.succeeded(url)

    def follow(self, table: RouteTable) -> None:
        self._outliers.follow({url for urls in table.endpoints.values() for url in urls})

    def succeeded(self, endpoint: RouteEndpoint) -> None:
        """An endpoint answered, and its response is no failure of its own."""
        self._outliers.succeeded(endpoint.url)

    def failed(self, endpoint: RouteEndpoint, status: int, peers: Sequence[str]) -> None:
        """An endpoint failed, with a status of 5xx, or 0 for no response. `peers`: ready endpoints of its revision."""
        if self._outliers.failed(endpoint.url, peers, gateway=status in _GATEWAY_FAILURES):
            self._metrics.ejections.labels(endpoint.model, endpoint.revision).inc()
            log.warning("%s: endpoint %s of revision %s is ejected", endpoint.route, endpoint.url, endpoint.revision)
