"""Endpoints that get nothing for a while because they failed, by the rule of outlier.py: logged and counted."""

import logging
from collections.abc import Callable, Sequence

from ..routing.router import Target
from ..routing.table import RouteTable
from ..telemetry.metrics import Metrics
from .outlier import OutlierDetection, Outliers

log = logging.getLogger(__name__)
_GATEWAY_FAILURES = frozenset({0, 502, 503, 504})


class Ejection:
    """Of one gateway."""

    def __init__(self, rule: OutlierDetection, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._outliers = Outliers(rule, clock)
        self._metrics = metrics
        metrics.ejected.set_function(lambda: len(self.urls()))

    def urls(self) -> frozenset[str]:
        """Endpoints that are ejected now."""
        return self._outliers.ejected()

    def follow(self, table: RouteTable) -> None:
        self._outliers.follow({url for urls in table.endpoints.values() for url in urls})

    def succeeded(self, target: Target) -> None:
        """An endpoint answered with a status below 500."""
        self._outliers.succeeded(target.url)

    def failed(self, target: Target, status: int, peers: Sequence[str]) -> None:
        """An endpoint answered with a status of 5xx, or 0 for no answer. `peers`: ready endpoints of its revision."""
        if self._outliers.failed(target.url, peers, gateway=status in _GATEWAY_FAILURES):
            self._metrics.ejections.labels(target.model, target.revision).inc()
            log.warning("%s: endpoint %s of revision %s is ejected", target.route, target.url, target.revision)
