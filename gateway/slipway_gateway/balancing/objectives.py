"""Counts requests against the objectives of spec.slo: exactly, by revision, at the moment when a response ends.

A request counts once, as its client saw it: retries and resumed streams are part of it. What is counted, and when, is
in docs/contracts.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway_contracts.service_levels import AVAILABILITY, ITL, LATENCY, TTFT, Counted, ServiceLevels, key

from ..routing.table import Route
from ..telemetry.metrics import RequestRecord

MOST_REVISIONS = 8  # of a route: the one that counted longest ago is forgotten
MOST_PAIRS = 1000  # of routes and revisions, on a page of metrics
# How a request ends for which the service is to blame. The other outcomes are the client's, a limit's or a departure.
FAILED = frozenset({"no_endpoint", "upstream_error", "timeout", "internal", "drained"})


@dataclass(slots=True)
class _Counts:
    """Requests that met an objective, and those that missed it."""

    met: int = 0
    missed: int = 0


@dataclass(slots=True)
class _RouteCounts:
    """Counts of one route: by key since its limit is in force, and by revision and objective for metrics."""

    levels: ServiceLevels
    by_key: dict[str, _Counts] = field(default_factory=dict)
    by_revision: dict[str, dict[str, _Counts]] = field(default_factory=dict)

    def follow(self, levels: ServiceLevels) -> None:
        """Adopts new limits: an objective that stays as it is goes on, any other one begins."""
        self.levels, former = levels, self.by_key
        self.by_key = {name: former.get(name) or _Counts() for name in levels.by_key()}
        kept = {objective for objective, _ in levels.limits_ms()}
        for own in self.by_revision.values():
            for gone in own.keys() - kept:
                del own[gone]

    def add(self, revision: str, objective: str, limit_ms: int, *, met: bool) -> None:
        own = self.by_revision.pop(revision, None)
        if own is None:
            own = {}
            if len(self.by_revision) >= MOST_REVISIONS:
                del self.by_revision[next(iter(self.by_revision))]
        self.by_revision[revision] = own
        of_route = self.by_key.setdefault(key(objective, limit_ms), _Counts())
        for counts in (of_route, own.setdefault(objective, _Counts())):
            counts.met += met
            counts.missed += not met


class Objectives(Collector):
    """The counts of one gateway process."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], _RouteCounts] = {}  # by name and uid
        self._uids: dict[str, str] = {}  # of the routes with objectives

    def follow(self, routes: Mapping[str, Route]) -> None:
        """Adopts a new table. Without objectives, and as a new object of a name, a route has no counts."""
        former, self._routes, self._uids = self._routes, {}, {}
        for name, route in routes.items():
            if route.slo is None:
                continue
            counts = former.get((name, route.uid)) or _RouteCounts(route.slo)
            counts.follow(route.slo)
            for backend in route.backends:
                # From the first moment a series is there, so that its first increase is seen.
                own = counts.by_revision.setdefault(backend.revision, {})
                for objective, _ in route.slo.limits_ms():
                    own.setdefault(objective, _Counts())
            self._routes[name, route.uid], self._uids[name] = counts, route.uid

    def ended(self, record: RequestRecord, now_s: float) -> None:
        """A request is over. One without a `route` counts nowhere: no model ran for it, or it is part of a batch."""
        counts = self._routes.get((record.route, self._uids[record.route])) if record.route in self._uids else None
        if counts is None:
            return
        failed = record.outcome in FAILED
        if not failed and record.outcome != "ok":
            return
        measured = {} if failed else _measured_ms(record, now_s)
        for objective, limit_ms in counts.levels.limits_ms():
            if objective == AVAILABILITY:
                counts.add(record.revision, objective, limit_ms, met=not failed)
            elif (took_ms := measured.get(objective)) is not None:
                counts.add(record.revision, objective, limit_ms, met=took_ms <= limit_ms)

    def report(self, route: Route) -> dict[str, Counted] | None:
        """`objectives` of the route in `/internal/routes`; None where it has none."""
        counts = self._routes.get((route.name, route.uid))
        if counts is None:
            return None
        return {name: (one.met + one.missed, one.missed) for name, one in counts.by_key.items()}

    def collect(self) -> Iterator[Any]:
        """Yield the series at each scrape."""
        labels = ("namespace", "name", "revision", "objective", "outcome")
        requests = CounterMetricFamily(
            "slipway_slo_requests", "Requests that count against an objective of spec.slo, by outcome.", labels=labels
        )
        rows = (
            (name.partition("/"), revision, own)
            for (name, _), counts in self._routes.items()
            for revision, own in counts.by_revision.items()
        )
        for (namespace, _, deployment), revision, own in islice(rows, MOST_PAIRS):
            for objective, one in own.items():
                for outcome, number in (("good", one.met), ("bad", one.missed)):
                    requests.add_metric((namespace, deployment, revision, objective, outcome), number)
        yield requests
        text = "Revisions without series of objectives, because there are too many."
        yield GaugeMetricFamily("slipway_slo_left_out", text, value=sum(1 for _ in rows))


def _measured_ms(record: RequestRecord, now_s: float) -> dict[str, float]:
    """What a request that went well took, by objective. Only a stream has a first token and times between tokens."""
    found = {LATENCY: (now_s - record.started) * 1000}
    if record.stream and record.first_byte is not None:
        found[TTFT] = (record.first_byte - record.started) * 1000
        if record.itl_s is not None:
            found[ITL] = record.itl_s * 1000
    return found
