"""Counts requests against the objectives of spec.slo: exactly, by revision, at the moment when a response ends.

A request counts once, as its client saw it: retries and resumed streams are part of it. What is counted, and when, is
in docs/contracts.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway_contracts.service_levels import AVAILABILITY, ITL, LATENCY, TTFT, Counted, ServiceLevels, key

from ..routing.table import Route
from ..telemetry.metrics import RequestRecord

MOST_REVISIONS = 16  # of a route, of which at most eight have weight: the one that came first is forgotten
MOST_PAIRS = 1000  # of routes and revisions, on a page of metrics; each namespace has an equal part of them
# How a request ends for which the service is to blame. The other outcomes are the client's, a limit's or a departure.
FAILED = frozenset({"no_endpoint", "upstream_error", "timeout", "internal", "drained", "guard_failed"})
_NOTHING: Mapping[str, float] = {}


@dataclass(slots=True)
class _Counts:
    """Requests that met an objective, and those that missed it."""

    met: int = 0
    missed: int = 0


# An objective, its limit, and the counts that a request adds to: those of the route, and those of the revision.
_Slot = tuple[str, int, _Counts, _Counts]


@dataclass(slots=True)
class _RouteCounts:
    """Counts of one route: by key since its limit is in force, and by revision and objective for metrics."""

    levels: ServiceLevels
    by_key: dict[str, _Counts] = field(default_factory=dict)
    by_revision: dict[str, dict[str, _Counts]] = field(default_factory=dict)
    _slots: dict[str, tuple[_Slot, ...]] = field(default_factory=dict)  # by revision: found once, used by each request

    def follow(self, levels: ServiceLevels, revisions: Iterable[str]) -> None:
        """Adopts new limits: an objective that stays as it is goes on, any other one begins.

        `revisions`: they have series before their first request, so that the first increase is seen.
        """
        self.levels, former = levels, self.by_key
        self.by_key = {name: former.get(name) or _Counts() for name in levels.by_key()}
        self._slots = {}
        kept = {objective for objective, _ in levels.limits_ms()}
        for own in self.by_revision.values():
            for gone in own.keys() - kept:
                del own[gone]
        for revision in revisions:
            self.by_revision[revision] = self.by_revision.pop(revision, {})  # the last to be forgotten
            self.slots(revision)

    def slots(self, revision: str) -> tuple[_Slot, ...]:
        """What a request of a revision counts for. Of too many revisions the one that came first is forgotten."""
        found = self._slots.get(revision)
        if found is None:
            own = self.by_revision.setdefault(revision, {})
            found = self._slots[revision] = tuple(
                (objective, limit_ms, self.by_key[key(objective, limit_ms)], own.setdefault(objective, _Counts()))
                for objective, limit_ms in self.levels.limits_ms()
            )
            if len(self.by_revision) > MOST_REVISIONS:
                oldest = next(iter(self.by_revision))
                del self.by_revision[oldest]
                self._slots.pop(oldest, None)
        return found


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
            counts.follow(route.slo, [backend.revision for backend in route.backends])
            self._routes[name, route.uid], self._uids[name] = counts, route.uid

    def ended(self, record: RequestRecord, now_s: float) -> None:
        """A request is over. One without a `route` counts nowhere: no model ran for it, or it is part of a batch."""
        uid = self._uids.get(record.route)
        failed = record.outcome in FAILED
        if uid is None or not (failed or record.outcome == "ok"):
            return
        measured = _NOTHING if failed else _measured_ms(record, now_s)
        for objective, limit_ms, of_route, own in self._routes[record.route, uid].slots(record.revision):
            if objective == AVAILABILITY:
                met = not failed
            elif (took_ms := measured.get(objective)) is not None:
                met = took_ms <= limit_ms
            else:
                continue
            if met:
                of_route.met += 1
                own.met += 1
            else:
                of_route.missed += 1
                own.missed += 1

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
        left_out, by_namespace = 0, self._by_namespace()
        shares = parts({namespace: len(rows) for namespace, rows in by_namespace.items()}, MOST_PAIRS)
        for namespace, rows in by_namespace.items():
            left_out += len(rows) - shares[namespace]
            for deployment, revision, own in rows[: shares[namespace]]:
                for objective, one in own.items():
                    for outcome, number in (("good", one.met), ("bad", one.missed)):
                        requests.add_metric((namespace, deployment, revision, objective, outcome), number)
        yield requests
        text = "Revisions without series of objectives, because there are too many."
        yield GaugeMetricFamily("slipway_slo_left_out", text, value=left_out)

    def _by_namespace(self) -> dict[str, list[tuple[str, str, dict[str, _Counts]]]]:
        """Deployment, revision and counts of every pair, by namespace."""
        found: dict[str, list[tuple[str, str, dict[str, _Counts]]]] = {}
        for (name, _), counts in self._routes.items():
            namespace, _, deployment = name.partition("/")
            rows = found.setdefault(namespace, [])
            rows.extend((deployment, revision, own) for revision, own in counts.by_revision.items())
        return found


def parts(sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of `most` each namespace gets: all of its own, or as many as any other one that does not get all."""
    shares: dict[str, int] = {}
    for number, (namespace, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        shares[namespace] = min(size, most // (len(sizes) - number))
        most -= shares[namespace]
    return shares


def _measured_ms(record: RequestRecord, now_s: float) -> dict[str, float]:
    """What a request that went well took, by objective. Only a stream has a first token and times between tokens.

    Without the time that its client took to send and to read: by it any client would spend the owner's budget.
    """
    began_s = record.started + record.body_s
    found = {LATENCY: (now_s - began_s - record.stalled_s) * 1000}
    if record.stream and record.first_byte is not None:
        found[TTFT] = (record.first_byte - began_s) * 1000
        if record.itl_s is not None:
            found[ITL] = record.itl_s * 1000
    return found
