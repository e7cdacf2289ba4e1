"""What the failsafe does now: revisions that are cut off and weights that expired, with their logs and metrics."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipway_contracts.gateway_report import FailsafeReport

from ..routing.router import RouteEndpoint, order_backends
from ..routing.table import Route, RouteTable
from ..telemetry.metrics import GatewayMetrics
from .failsafe import AttemptResult, CutOffRule, RouteHealth, fall_back_to_stable, find_split

if TYPE_CHECKING:
    from slipway_plane import _native

log = logging.getLogger(__name__)
_EXPIRED = (
    "the operator did not renew its weights: they go back to the stable revision as far as its pods can carry them"
)


_QUIET = ("", False)  # what is reported of a route of which nothing is cut off or expired


@dataclass(frozen=True, slots=True)
class FailsafeSettings:
    """What a gateway may do without the operator; `ttl_s` 0: weights never expire."""

    rule: CutOffRule = field(default_factory=CutOffRule)
    ttl_s: float = 0.0


def _version(route: Route) -> tuple[str, int, str]:
    """Identifies one published state of one route object: its uid, its generation and the digest of its weights."""
    return route.uid, route.generation, route.digest


class FailsafeState:
    """The failsafe of every route in the table. `clock` counts seconds."""

    def __init__(self, metrics: GatewayMetrics, settings: FailsafeSettings, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._health: dict[str, RouteHealth] = {}
        self._renewed_s: dict[str, float] = {}
        self._reported: dict[str, tuple[str, bool]] = {}
        self._lane: _native.Lane | None = None

    def join(self, lane: "_native.Lane") -> None:
        """The fast lane leaves a route to Python while the failsafe acts on it."""
        self._lane = lane

    def valid_for_s(self, route: Route) -> float | None:
        """Seconds for which the weights of a route are valid without a renewal; None: for ever."""
        if self._settings.ttl_s <= 0:
            return None
        return max(0.0, self._renewed_s[route.name] + self._settings.ttl_s - self._clock())

    def began_in_lane(self, route: str, revision: str, clients: Collection[str]) -> None:
        """The fast lane got good responses for these clients."""
        if health := self._health.get(route):
            for client in clients:
                health.began(revision, client)

    def follow(self, last: RouteTable, table: RouteTable) -> None:
        """Adopts a new table. A route that changed is renewed, one that is only listed again is not.

        A new version of a route starts without history of its attempts.
        """
        health, renewed = self._health, self._renewed_s
        self._health, self._renewed_s = {}, {}
        for name, route in table.routes.items():
            before = last.routes.get(name)
            same = before is not None and _version(before) == _version(route)
            self._health[name] = health[name] if same else RouteHealth(self._settings.rule, route.backends)
            self._renewed_s[name] = renewed[name] if route == before else self._clock()
        for gone in self._reported.keys() - table.routes.keys():
            self._metrics.failsafe_gone(gone)
            del self._reported[gone]
        for route in table.routes.values():
            self._report_change(route)

    def renew(self) -> None:
        """The operator called: the weights that it published are still valid."""
        for name in self._renewed_s:
            self._renewed_s[name] = self._clock()
        if self._lane is not None and self._settings.ttl_s > 0:
            self._lane.renew(self._settings.ttl_s)

    def is_active(self, route: Route) -> bool:
        """Whether a revision is cut off or the weights expired."""
        return self._health[route.name].cut is not None or self._expired(route)

    def is_cut_off(self, route: Route) -> bool:
        """Whether a revision of a route is cut off."""
        return self._health[route.name].cut is not None

    def uses_published_weights(self, table: RouteTable, route: Route) -> bool:
        if self._health[route.name].cut:
            return False
        return self._settings.ttl_s <= 0 or self.weights_in_force(table, route) is route

    def weights_in_force(self, table: RouteTable, route: Route) -> Route:
        """The route itself or, once its weights expired, a copy with weights back at the stable revision."""
        if self._settings.ttl_s <= 0 or not self._expired(route):
            return route
        found = find_split(route)
        return fall_back_to_stable(route, len(table.urls(route, found[1].revision)) if found else 0)

    def avoided_revision(self, route: Route, in_force: Route, key: str) -> str:
        """The revision that a request with this key must avoid because it is cut off; empty when there is none."""
        health = self._health[route.name]
        if not health.cut and in_force is route:
            return ""
        order = order_backends(in_force, key)
        avoided = order[0].revision if order and health.avoids(order[0].revision, self._clock()) else ""
        self._report_change(route)
        return avoided

    def attempt_began(self, route: Route, endpoint: RouteEndpoint, client: str) -> AttemptResult:
        health = self._health[route.name]
        result = health.began(endpoint.revision, client)
        if health.cut or self._reported or self._settings.ttl_s > 0:
            self._report_change(route)
        return result

    def attempt_failed(self, route: Route, endpoint: RouteEndpoint, result: AttemptResult | None, client: str) -> None:
        self._health[route.name].failed(endpoint.revision, result, self._clock(), client)
        self._report_change(route)

    def report(self, route: Route) -> FailsafeReport:
        """`failsafe` of the route in `/internal/routes`."""
        cut = self._health[route.name].cut
        return FailsafeReport(cut.revision if cut else "", cut.reason if cut else "", self._expired(route))

    def _expired(self, route: Route) -> bool:
        ttl_s = self._settings.ttl_s
        return ttl_s > 0 and self._clock() - self._renewed_s[route.name] > ttl_s

    def _report_change(self, route: Route) -> None:
        """Logs each cut or expiry once when it begins and once when it ends, and sets the route's metrics."""
        cut = self._health[route.name].cut
        now = (cut.revision if cut else "", self._expired(route))
        before = self._reported.get(route.name, _QUIET)
        if now == before:
            return
        self._reported[route.name] = now
        if self._lane is not None:
            self._lane.pause(route.name, cut is not None)
        self._metrics.failsafe(route.name, cut_off=bool(cut), expired=now[1])
        if cut and now[0] != before[0]:
            log.warning("%s: revision %s is cut off: %s", route.name, cut.revision, cut.reason)
        elif before[0] and not cut:
            log.warning("%s: revision %s is no longer cut off", route.name, before[0])
        if now[1] != before[1]:
            log.warning("%s: %s", route.name, _EXPIRED if now[1] else "its weights are renewed")
