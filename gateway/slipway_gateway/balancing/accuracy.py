"""Counts for spec.accuracy: labels of clients by revision, and what the serving revision predicts, in common bins.

They belong to no generation of weights, unlike those of an analysis: a label that comes weeks later counts for the
revision that its token names. What is counted, and when, is in docs/contracts.md.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway_contracts.accuracy import OUTCOMES, AccuracyCounting, PublishedBins
from slipway_contracts.counters import BINS
from slipway_process.fair_memory import FairMemory

from ..judging.predictions import LEARNED, MAX_LABEL, CommonBins, bins_to_publish
from ..routing.table import Route, base_revision
from ..wire.predictions import Value
from .objectives import MOST_PAIRS, MOST_REVISIONS, parts

# Labels, and predictions, of one conversation or user are seldom independent: one of each in this time counts.
SPACING_S = 3600
MAX_REMEMBERED = 65_536  # conversations and users of all routes
_LABEL, _PREDICTION = b"label", b"prediction"
# A client has at most as many observations as all others together, or so many in a day if that is more. One that is
# alone has no bound.
FREE_A_DAY = 200
MAX_CLIENTS = 1024  # of a route that are distinguished in a day
_DAY_S = 86_400


@dataclass(slots=True)
class _Shares:
    """Observations of one day by client. The rule looks at numbers alone, and never at what was observed."""

    day: int = -1
    by_client: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def admit(self, client: int, at_s: float) -> bool:
        """Counts an observation of a client, if it has a place."""
        if int(at_s // _DAY_S) != self.day:
            self.day, self.by_client, self.total = int(at_s // _DAY_S), {}, 0
        if client not in self.by_client and len(self.by_client) >= MAX_CLIENTS:
            client = next(iter(self.by_client))  # further ones share the place of the first
        own = self.by_client.get(client, 0)
        others = len(self.by_client) - (client in self.by_client)
        if others and own >= max(FREE_A_DAY, self.total - own):
            return False
        self.by_client[client] = own + 1
        self.total += 1
        return True


@dataclass(slots=True)
class _RouteCounts:
    """Counts of one route. `predictions`: by REVISION/BINS. `first`: predictions of which bins are to be made."""

    counting: AccuracyCounting
    labels: dict[str, list[int]] = field(default_factory=dict)
    predictions: dict[str, list[int]] = field(default_factory=dict)
    first: list[Value] = field(default_factory=list)
    bins: dict[str, PublishedBins] = field(default_factory=dict)
    shares: dict[bytes, _Shares] = field(default_factory=lambda: {_LABEL: _Shares(), _PREDICTION: _Shares()})
    _common: CommonBins | None = None

    def follow(self, counting: AccuracyCounting) -> None:
        """Adopts what is to be counted."""
        if counting.revision != self.counting.revision:
            self.first, self.bins = [], {}
        self.counting = counting
        self._common = CommonBins(counting.bins) if counting.bins else None

    def predict(self, revision: str, prediction: Value) -> None:
        """One prediction of the revision that is watched."""
        if self._common and self.counting.bins:
            counts = _of(self.predictions, f"{revision}/{self.counting.bins.id}", BINS)
            counts[self._common.place(prediction)] += 1
        elif revision not in self.bins:
            self.first.append(prediction[:MAX_LABEL] if isinstance(prediction, str) else prediction)
            if len(self.first) >= LEARNED:
                self.bins[revision], self.first = bins_to_publish(self.first), []

    def report(self) -> dict[str, Any]:
        """The counts, as `accuracy.read` reads them."""
        bins = {name: {"cuts": one.cuts, "labels": one.labels} for name, one in self.bins.items()}
        return {"labels": self.labels, "predictions": self.predictions, "bins": bins}


class Accuracy(Collector):
    """The counts of one gateway process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns Unix time."""
        self._routes: dict[tuple[str, str], _RouteCounts] = {}  # by name and uid
        self._clock = clock
        self._counted: FairMemory[str, int, int] = FairMemory(MAX_REMEMBERED)

    def follow(self, routes: Mapping[str, Route]) -> None:
        """Adopts a new table. Without spec.accuracy, and as a new object of a name, a route has no counts."""
        former, self._routes = self._routes, {}
        for name, route in routes.items():
            if route.accuracy is not None:
                counts = former.get((name, route.uid)) or _RouteCounts(route.accuracy)
                counts.follow(route.accuracy)
                self._routes[name, route.uid] = counts

    def rated(
        self, route: Route, revision: str, client: bytes, person: bytes, answered_s: float, *, wrong: bool
    ) -> None:
        """A label of a response that `revision` gave at `answered_s`, in Unix time. `person`: b"" without one."""
        counts = self._routes.get((route.name, route.uid))
        if counts is None or not self._is_first(route, _LABEL, person, answered_s):
            return
        if counts.shares[_LABEL].admit(hash(client), self._clock()):
            _of(counts.labels, base_revision(revision), len(OUTCOMES))[wrong] += 1

    def predicted(self, route: Route, revision: str, client: str, person: str, prediction: Value | None) -> None:
        """A response of a revision; `prediction` None: none was read. `person`: "" without one."""
        counts = self._routes.get((route.name, route.uid))
        runs = base_revision(revision)
        if counts is None or prediction is None or runs != counts.counting.revision:
            return
        now_s, name = self._clock(), person.encode("utf-8", "surrogatepass")
        if self._is_first(route, _PREDICTION, name, now_s) and counts.shares[_PREDICTION].admit(hash(client), now_s):
            counts.predict(runs, prediction)

    def _is_first(self, route: Route, kind: bytes, person: bytes, at_s: float) -> bool:
        """Whether no other observation of a conversation or user counted at about this time."""
        if not person:
            return True
        name, place = hash((kind, person)), int(at_s // SPACING_S)
        known = self._counted.get(route.name, name)
        if known != place:
            self._counted.put(route.name, name, place)
        return known != place

    def report(self, route: Route) -> dict[str, Any] | None:
        """`accuracy` of the route in `/internal/routes`; None where it has none."""
        counts = self._routes.get((route.name, route.uid))
        return counts.report() if counts else None

    def collect(self) -> Iterator[Any]:
        """Yield the series at each scrape."""
        names = ("namespace", "name", "revision", "outcome")
        labels = CounterMetricFamily(
            "slipway_accuracy_labels", "Labels that count for spec.accuracy, by outcome.", labels=names
        )
        by_namespace: dict[str, list[tuple[str, str, list[int]]]] = {}
        for (name, _), counts in self._routes.items():
            namespace, _, deployment = name.partition("/")
            rows = by_namespace.setdefault(namespace, [])
            rows.extend((deployment, revision, tally) for revision, tally in counts.labels.items())
        left_out, shares = 0, parts({namespace: len(rows) for namespace, rows in by_namespace.items()}, MOST_PAIRS)
        for namespace, rows in by_namespace.items():
            left_out += len(rows) - shares[namespace]
            for deployment, revision, tally in rows[: shares[namespace]]:
                for outcome, number in zip(OUTCOMES, tally, strict=True):
                    labels.add_metric((namespace, deployment, revision, outcome), number)
        yield labels
        text = "Revisions without series of labels, because there are too many."
        yield GaugeMetricFamily("slipway_accuracy_left_out", text, value=left_out)


def _of(tallies: dict[str, list[int]], name: str, size: int) -> list[int]:
    """The tally of a name. Of too many names the one that came first is forgotten."""
    if name not in tallies:
        if len(tallies) >= MOST_REVISIONS:
            del tallies[next(iter(tallies))]
        tallies[name] = [0] * size
    return tallies[name]
