"""Metrics of a classic model's server: batches, waits, compute times; vLLM's names where autoscalers read them."""

from collections import Counter as Counts
from collections.abc import Callable
from typing import Any

from prometheus_client import Counter, Histogram

from slipway_process.serving.metrics import ModelMetrics

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class PredictMetrics(ModelMetrics):
    def __init__(self, model_name: str) -> None:
        super().__init__(model_name)
        registry = self.registry
        self._rows = Histogram("slipway_server_batch_rows", "Rows of a batch.", registry=registry, buckets=ROWS)
        self._wait = Histogram(
            "slipway_server_batch_wait_seconds",
            "Arrival of the oldest request of a batch to its start.",
            registry=registry,
            buckets=SECONDS,
        )
        self._service = Histogram(
            "slipway_server_batch_service_seconds", "Time of the model for a batch.", registry=registry, buckets=SECONDS
        )
        self._decoding = Histogram(
            "slipway_server_image_decode_seconds",
            "Time to decode an image and to make a tensor of it.",
            registry=registry,
            buckets=SECONDS,
        )
        self._errors = Counter(
            "slipway_server_model_errors", "Requests that the model raised an error for, alone.", registry=registry
        )
        self._not_finite = Counter(
            "slipway_server_non_finite", "Requests with a number that is not finite in an output.", registry=registry
        )
        self._batches: Counts[int] = Counts()  # by rows
        self._batch_seconds: Counts[int] = Counts()  # nanoseconds, by rows

    def observe_queue(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Registers functions that return how many requests run and wait; called whenever the page is rendered."""
        self._gauge("num_requests_running", "Requests of the batch that is computed.").set_function(running)
        self._gauge("num_requests_waiting", "Requests that wait for a batch.").set_function(waiting)

    def loaded(self, seconds: float) -> None:
        self._load.set(seconds)

    def failed(self) -> None:
        self._errors.inc()

    def decoded(self, seconds: float) -> None:
        self._decoding.observe(seconds)

    def non_finite(self) -> None:
        self._not_finite.inc()

    def batch(self, rows: int, wait_s: float, seconds: float) -> None:
        self._rows.observe(rows)
        self._wait.observe(wait_s)
        self._service.observe(seconds)
        self._batches[rows] += 1
        self._batch_seconds[rows] += round(seconds * 1e9)

    def statistics(self) -> dict[str, Any]:
        """The counts of rows, batches and nanoseconds, in the form of the Open Inference Protocol's statistics."""
        batches = [
            {"batch_size": rows, "compute_infer": {"count": count, "ns": self._batch_seconds[rows]}}
            for rows, count in sorted(self._batches.items())
        ]
        rows_done, count = sum(rows * count for rows, count in self._batches.items()), sum(self._batches.values())
        spent = {"count": count, "ns": sum(self._batch_seconds.values())}
        return {
            "inference_count": rows_done,
            "execution_count": count,
            "inference_stats": {"compute_infer": spent},
            "batch_stats": batches,
        }
