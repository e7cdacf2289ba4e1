"""Counts for spec.accuracy: labels of clients by revision, and what the serving revision predicts, in common bins.

They belong to no generation of weights, unlike those of an analysis: a label that comes weeks later counts for the
revision that its token names. What is counted, and when, is in docs/contracts.md.
"""

from collections.abc import Iterator, Mapping
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


@dataclass(slots=True)
class _RouteCounts:
    """Counts of one route. `predictions`: by REVISION/BINS. `first`: predictions of which bins are to be made."""

    counting: AccuracyCounting
    labels: dict[str, list[int]] = field(default_factory=dict)
    predictions: dict[str, list[int]] = field(default_factory=dict)
    first: list[Value] = field(default_factory=list)
    bins: dict[str, PublishedBins] = field(default_factory=dict)
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

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], _RouteCounts] = {}  # by name and uid
        self._counted: FairMemory[str, int, int] = FairMemory(MAX_REMEMBERED)

    def follow(self, routes: Mapping[str, Route]) -> None:
        """Adopts a new table. Without spec.accuracy, and as a new object of a name, a route has no counts."""
        former, self._routes = self._routes, {}
        for name, route in routes.items():
            if route.accuracy is not None:
                counts = former.get((name, route.uid)) or _RouteCounts(route.accuracy)
                counts.follow(route.accuracy)
                self._routes[name, route.uid] = counts

    def rated(self, route: Route, revision: str, person: bytes, answered_s: float, *, wrong: bool) -> None:
        """A label of a response that `revision` gave at `answered_s`, in Unix time. `person`: b"" without one."""
        counts = self._routes.get((route.name, route.uid))
        if counts is not None and self._is_first(route, _LABEL, person, answered_s):
            _of(counts.labels, base_revision(revision), len(OUTCOMES))[wrong] += 1

    def predicted(self, route: Route, revision: str, person: str, prediction: Value | None, now_s: float) -> None:
        """A response of a revision; `prediction` None: none was read. `person`: "" without one."""
        counts = self._routes.get((route.name, route.uid))
        runs = base_revision(revision)
        if counts is None or prediction is None or runs != counts.counting.revision:
            return
        if self._is_first(route, _PREDICTION, person.encode("utf-8", "surrogatepass"), now_s):
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
