"""Every metric of the operator is declared here."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway_operator.model.cluster.plan import Event
from slipway_operator.telemetry.revisions import EngineMetricsCollector, EngineRow, RevisionCosts
from slipway_operator.telemetry.rollouts import Rollouts
from slipway_operator.telemetry.tenant_budgets import TenantBudgets

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Queue(Protocol):
    """The part of a work queue that metrics show; this module does not import the queue."""

    retries: int

    def depth(self) -> int:
        """Return the number of keys that are due and wait."""

    def oldest_wait_s(self) -> float:
        """Return for how many seconds the oldest of them has waited."""

    def longest_run_s(self) -> float:
        """Return for how many seconds the slowest reconcile has been running."""


class Metrics:
    """One set of metrics with its own registry, so that tests and processes do not share any."""

    def __init__(self, version: str, prices: Mapping[str, float] | None = None) -> None:
        self.registry = CollectorRegistry()
        self.rollouts = Rollouts()
        self.registry.register(self.rollouts)
        self.tenants = TenantBudgets()
        self.registry.register(self.tenants)
        self.costs = RevisionCosts(prices or {})
        self.registry.register(self.costs)
        self._restarts = Counter(
            "slipway_task_restarts", "Tasks that ended and were started again.", ["task"], registry=self.registry
        )
        self._reconciles = Counter(
            "slipway_operator_reconcile", "Reconciles by result.", ["result"], registry=self.registry
        )
        self._seconds = Histogram(
            "slipway_operator_reconcile_seconds", "Time of a reconcile.", buckets=_BUCKETS_S, registry=self.registry
        )
        self._applies = Counter(
            "slipway_operator_apply", "Writes to the API server, tried.", ["kind", "result"], registry=self.registry
        )
        self._calls = Counter(
            "slipway_operator_api_calls", "Calls of the API server.", ["verb", "resource"], registry=self.registry
        )
        self._last_event = Gauge(
            "slipway_operator_watch_last_event_timestamp_seconds",
            "Time of the last event of a watch, lists included.",
            ["kind"],
            registry=self.registry,
        )
        self._declare_work()
        self._holds_lease = Gauge(
            "slipway_operator_holds_lease", "1 in the operator that may write.", registry=self.registry
        )
        self._metrics_api = Gauge(
            "slipway_operator_metrics_api_provider",
            "1 for who serves a group of the metrics API.",
            ["group", "provider"],
            registry=self.registry,
        )
        Info("slipway_operator_build", "Version of the operator.", registry=self.registry).info({"version": version})

    def _declare_work(self) -> None:
        """What reconciles cause: webhooks, Events, measurements."""
        self._hook_calls = Counter(
            "slipway_operator_hook_calls", "Calls of webhooks, each try.", ["type", "outcome"], registry=self.registry
        )
        self._hook_seconds = Histogram(
            "slipway_operator_hook_seconds",
            "Time of a call of a webhook.",
            ["type"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._events = Counter(
            "slipway_operator_events", "Events that reconciles caused.", ["type", "reason"], registry=self.registry
        )
        self._control_requests = Counter(
            "slipway_operator_control_requests",
            "Requests of the control API.",
            ["route", "status"],
            registry=self.registry,
        )
        self._conversion_reviews = Counter(
            "slipway_operator_conversion_reviews",
            "Requests of the conversion webhook of v1beta1.",
            ["status"],
            registry=self.registry,
        )
        self._measurements = Counter(
            "slipway_operator_measurements", "Measurements.", ["provider", "outcome"], registry=self.registry
        )
        self._measurement_seconds = Histogram(
            "slipway_operator_measurement_seconds",
            "Time until a measurement was there.",
            ["provider"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    def task_restarted(self, task: str) -> None:
        """Count a task that ended and was started again."""
        self._restarts.labels(task).inc()

    def reconciled(self, result: str, seconds: float) -> None:
        """Count a reconcile and its duration; `result` is ok, stale, error or the name of an ApiError."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def wrote(self, kind: str, result: str) -> None:
        """Count an attempted write to the API server; `result` is ok or the name of an ApiError."""
        self._applies.labels(kind, result).inc()

    def api_called(self, verb: str, resource: str) -> None:
        """Count a call of the API server; retries do not count."""
        self._calls.labels(verb, resource).inc()

    def called(self, hook_type: str, outcome: str, seconds: float) -> None:
        """Count a call of a webhook, or a dropped one."""
        self._hook_calls.labels(hook_type, outcome).inc()
        if outcome != "dropped":
            self._hook_seconds.labels(hook_type).observe(seconds)

    def measured(self, provider: str, outcome: str, seconds: float) -> None:
        """Count a measurement by a provider of an analysis: `outcome` is ok or error."""
        self._measurements.labels(provider, outcome).inc()
        self._measurement_seconds.labels(provider).observe(seconds)

    def control_called(self, route: str, status: int) -> None:
        """Count a request of the control API: `route` is list, create, get, traffic or other."""
        self._control_requests.labels(route, status).inc()

    def converted(self, status: int) -> None:
        """Count a request of the conversion webhook."""
        self._conversion_reviews.labels(status).inc()

    def happened(self, events: Iterable[Event]) -> None:
        """Count Events, such as a veto (CanaryVetoed) or an end of a rollout."""
        for event in events:
            self._events.labels(event.type, event.reason).inc()

    def event_received(self, kind: str) -> None:
        """Store the current time as that of the last watch event of a kind."""
        self._last_event.labels(kind).set(time.time())

    def leads(self, held: bool) -> None:
        """Show whether this operator holds the lease."""
        self._holds_lease.set(held)

    def serves(self, providers: Mapping[str, str]) -> None:
        """Show the provider of each group of the metrics API; "" is this operator."""
        self._metrics_api.clear()
        for group, provider in providers.items():
            self._metrics_api.labels(group, provider or "slipway").set(1)

    def follow_queue(self, queue: Queue) -> None:
        """Register the series of a work queue, which each scrape reads."""
        self.registry.register(_Queue(queue))

    def follow_engines(self, rows: Callable[[], Iterator[EngineRow]]) -> None:
        """Register the series of engines; each scrape calls `rows`."""
        self.registry.register(EngineMetricsCollector(rows))


class _Queue(Collector):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def collect(self) -> Iterator[Any]:
        yield _gauge("slipway_operator_queue_depth", "Keys that are due and not being handled.", self._queue.depth())
        yield _gauge(
            "slipway_operator_queue_oldest_seconds",
            "How long the oldest of them has waited.",
            self._queue.oldest_wait_s(),
        )
        yield _gauge(
            "slipway_operator_queue_longest_run_seconds",
            "How long the slowest reconcile has been running.",
            self._queue.longest_run_s(),
        )
        yield CounterMetricFamily(
            "slipway_operator_queue_retries", "Reconciles repeated after a failure.", value=self._queue.retries
        )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
