"""Series of revisions: pods, cost and engine metrics. Each scrape makes them, so no series outlives its object."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway_operator.api.objects import ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.model.cluster.cost import RevisionPods, cost_per_hour, revision_pods
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan

# Limits of one page of metrics: it has a series for each pod with a node, and up to seven for each revision.
MOST_PODS, MOST_REVISIONS = 20_000, 5_000
EngineRow = tuple[str, str, str, Mapping[str, float]]  # namespace, name, revision, values by series name
_REVISION = ("namespace", "name", "revision")
GAUGES = {
    "slipway_engine_requests_running": "Requests that the engines run.",
    "slipway_engine_requests_waiting": "Requests that wait in the engines.",
    "slipway_engine_kv_cache_usage_ratio": "Mean used share of the KV caches, 0 to 1.",
    "slipway_engine_ttft_p95_seconds": "95th percentile of the time to the first token in the last minute.",
    "slipway_engine_unread_pods": "Ready pods whose metrics could not be read for 30 s.",
}
COUNTERS = {
    "slipway_engine_prompt_tokens": "Tokens of prompts since the operator follows the revision.",
    "slipway_engine_generation_tokens": "Generated tokens since the operator follows the revision.",
}


class RevisionCosts(Collector, Component):
    """The pods of every revision and what they cost; a forgotten ModelDeployment has no series any more."""

    def __init__(self, prices: Mapping[str, float]) -> None:
        self._prices = prices
        self._known: dict[ObjectKey, Sequence[RevisionPods]] = {}

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> None:
        """Show the revisions that were observed."""
        live = (planned.status.stable_revision, planned.status.canary_revision)
        self.show(deployment.key, revision_pods(observed, live))

    def show(self, key: ObjectKey, revisions: Sequence[RevisionPods]) -> None:
        """Store the revisions of a ModelDeployment that a reconcile observed."""
        self._known[key] = revisions

    def forget(self, key: ObjectKey) -> None:
        """Drop a ModelDeployment that is gone."""
        self._known.pop(key, None)

    def collect(self) -> Iterator[Any]:
        """Yield the series at each scrape."""
        info = GaugeMetricFamily(
            "slipway_pod_info", "1 for each model pod with a node.", labels=("namespace", "pod", "name", "revision")
        )
        cost = GaugeMetricFamily(
            "slipway_cost_per_hour", "Cost of the pods with a node, in the currency of the prices.", labels=_REVISION
        )
        restarts = GaugeMetricFamily(
            "slipway_pod_restarts", "Restarts of containers in the present pods of a revision.", labels=_REVISION
        )
        left_out = 0
        for (namespace, name), item in self._revisions():
            room = MOST_PODS - len(info.samples)
            left_out += max(0, len(item.pods) - room)
            for pod in item.pods[:room]:
                info.add_metric((namespace, pod, name, item.revision), 1.0)
            restarts.add_metric((namespace, name, item.revision), item.restarts)
            price = cost_per_hour(item.resources, len(item.pods), self._prices)
            if price is not None:
                cost.add_metric((namespace, name, item.revision), price)
        yield info
        yield restarts
        yield _left_out("slipway_pod_info", left_out)
        if self._prices:
            yield cost

    def _revisions(self) -> Iterator[tuple[ObjectKey, RevisionPods]]:
        return ((key, item) for key in sorted(self._known) for item in self._known[key])


class EngineMetricsCollector(Collector):
    """What the sampler has read from engines; a revision has no series for a number that its engine lacks."""

    def __init__(self, rows: Callable[[], Iterator[EngineRow]]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Any]:
        """Yield the series at each scrape."""
        gauges = {name: GaugeMetricFamily(name, text, labels=_REVISION) for name, text in GAUGES.items()}
        counters = {name: CounterMetricFamily(name, text, labels=_REVISION) for name, text in COUNTERS.items()}
        rows = self._rows()
        for namespace, name, revision, numbers in islice(rows, MOST_REVISIONS):
            for series, value in numbers.items():
                family = gauges[series] if series in gauges else counters[series]
                family.add_metric((namespace, name, revision), value)
        yield from gauges.values()
        yield from counters.values()
        yield _left_out("slipway_engine", sum(1 for _ in rows))


def _left_out(series: str, count: int) -> GaugeMetricFamily:
    text = "Pods or revisions without series, because there are too many."
    return GaugeMetricFamily(f"{series}_left_out", text, value=count)
