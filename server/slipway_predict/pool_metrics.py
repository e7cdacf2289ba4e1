"""Metrics of a pool: of each model, with its name and version as labels, and of the pool itself."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slipway_process.serving.metrics import RequestMetrics

from .metrics import PredictMetrics

LABELS = ("model_name", "model_version")  # as many values as the pool's file has entries
SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
# Model states, as in the repository index of the Open Inference Protocol.
STATES = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")

Key = tuple[str, str]


class PoolMetrics(RequestMetrics):
    def __init__(self) -> None:
        super().__init__("slipway_server_pool", "API requests to the pool, also those for no model")
        self._models: dict[Key, PredictMetrics] = {}
        self._failed: set[Key] = set()
        self._listed: Callable[[], Mapping[Key, float]] = dict
        registry = self.registry
        registry.register(_EachModel(self._models))
        self._loads = Histogram(
            "slipway_server_pool_load_seconds",
            "Time to load a model, with the time until there was room for it.",
            registry=registry,
            buckets=SECONDS,
        )
        self._failures = Counter("slipway_server_pool_load_failures", "Loads that failed.", LABELS, registry=registry)
        self._evictions = Counter(
            "slipway_server_pool_evictions",
            "Models that left the memory, by reason: room, unload, changed, removed, grown, crashed, shutdown.",
            ["reason"],
            registry=registry,
        )

    def observe_pool(
        self,
        *,
        used: Callable[[], float],
        limit: float,
        queue: Callable[[], float],
        file_errors: Callable[[], float],
        states: Mapping[str, Callable[[], float]],
        models: Callable[[], Mapping[Key, float]],
    ) -> None:
        """Registers functions that are called whenever the page is rendered.

        `models` returns the models in the pool's file, each with its memory in bytes.
        """
        for name, text, read in (
            ("memory_bytes", "Memory of all models: measured, or reserved while they load.", used),
            ("memory_limit_bytes", "What that may be.", lambda: limit),
            ("waiting_loads", "Models that wait to be loaded.", queue),
            ("file_errors", "Times that the pool's file was wrong and the former one counted.", file_errors),
        ):
            Gauge(f"slipway_server_pool_{name}", text, registry=self.registry).set_function(read)
        gauge = Gauge("slipway_server_pool_models", "Models by state.", ["state"], registry=self.registry)
        for state, count in states.items():
            gauge.labels(state).set_function(count)
        self.registry.register(_Sizes(models))
        self._listed = models

    def model(self, key: Key) -> PredictMetrics:
        """The metrics of one model. They are kept when it is evicted."""
        if key not in self._models:
            self._models[key] = PredictMetrics(key[0])
        return self._models[key]

    def loaded(self, key: Key, seconds: float) -> None:
        self._loads.observe(seconds)

    def failed(self, key: Key) -> None:
        self._failed.add(key)
        self._failures.labels(*key).inc()

    def evicted(self, key: Key, reason: str) -> None:
        self._evictions.labels(reason).inc()

    def render(self) -> bytes:
        """The page of metrics. First drops the metrics of models that are no longer in the pool's file."""
        listed = self._listed()
        for key in [key for key in self._models if key not in listed]:
            del self._models[key]
        for key in self._failed - set(listed):
            self._failures.remove(*key)
        self._failed &= set(listed)
        return super().render()


class _EachModel(Collector):
    """Merges the metrics of all models: each family once, with the model's labels on each of its samples."""

    def __init__(self, models: Mapping[Key, PredictMetrics]) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for key, metrics in self._models.items():
            labels = dict(zip(LABELS, key, strict=True))
            for family in metrics.registry.collect():
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                whole.samples += [one._replace(labels=labels | one.labels) for one in family.samples]
        return families.values()


class _Sizes(Collector):
    """The memory of each model in the pool's file."""

    def __init__(self, models: Callable[[], Mapping[Key, float]]) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        sizes = GaugeMetricFamily(
            "slipway_server_pool_model_memory_bytes",
            "The most memory that the processes of a model have had; 0 where it is not loaded.",
            labels=LABELS,
        )
        for key, size in self._models().items():
            sizes.add_metric(key, size)
        return [sizes]
