"""Metrics of the jobs process."""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from .states import COMPLETED, ENDED_BATCHES, FAILED


class JobsMetrics:
    """The registry of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        name = "slipway_jobs_"
        self.requests = Counter(f"{name}requests", "Requests of gateways by status", ("code",), registry=self.registry)
        self.lines = Counter(f"{name}lines", "Lines by what became of a claim", ("result",), registry=self.registry)
        self.batches = Counter(f"{name}batches", "Batches by how they ended", ("status",), registry=self.registry)
        self.in_flight = Gauge(f"{name}in_flight", "Lines in flight at the gateway", registry=self.registry)
        self.waiting = Gauge(f"{name}waiting", "Lines in the database that wait", registry=self.registry)
        self.short = Gauge(
            f"{name}short_of_places",
            "Lines in the database that wait while this process lacks places for them",
            registry=self.registry,
        )
        self.short.set(math.nan)  # until the first count: 0 would say that nothing waits
        self.seconds = Histogram(
            f"{name}line_seconds",
            "Seconds of a call of a line",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
            registry=self.registry,
        )
        self.database_failures = Counter(
            f"{name}database_failures", "Turns that the database did not take", registry=self.registry
        )
        self.webhooks = Counter(
            f"{name}webhooks", "Webhooks by what became of an attempt", ("result",), registry=self.registry
        )
        self.conversation_items = Counter(
            f"{name}conversation_items", "Items of conversations that were stored", registry=self.registry
        )
        self.conversation_bytes = Counter(
            f"{name}conversation_bytes", "Bytes of turns of conversations that were stored", registry=self.registry
        )
        self.conversation_failures = Counter(
            f"{name}conversation_failures",
            "Turns of conversations that were not stored",
            ("reason",),
            registry=self.registry,
        )
        self.uploads = Gauge(f"{name}uploads", "Files that are received now", registry=self.registry)

        self._restarts = Counter(
            "slipway_task_restarts",
            "Tasks of the process that ended and were started again",
            ("task",),
            registry=self.registry,
        )

        # A series is there before its first increase, which alerts would not see otherwise.
        for status in ENDED_BATCHES:
            self.batches.labels(status)
        for result in (COMPLETED, FAILED):
            self.lines.labels(result)

    def task_restarted(self, task: str) -> None:
        self._restarts.labels(task).inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)
