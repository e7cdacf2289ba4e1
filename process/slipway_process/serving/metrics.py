"""Metrics that both servers have: API requests by outcome, the process that computes, and tasks that were restarted."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

LABELS = ("model_name", "engine")  # of the metrics with vLLM's names
OUTCOMES = ("completed", "invalid", "refused", "draining", "loading", "engine_restarting", "cancelled", "error")


class RequestMetrics:
    """A page of metrics, on which each API request arrives once and ends in exactly one outcome."""

    def __init__(self, prefix: str = "slipway_server", requests: str = "API requests") -> None:
        """`prefix`: of the names. `requests`: which they are, for the help text."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the size of the page
        self.registry = CollectorRegistry()
        ends = f"{requests}; each ends in exactly one outcome."
        counter = Counter(f"{prefix}_requests", ends, ["outcome"], registry=self.registry)
        self._outcomes = {outcome: counter.labels(outcome) for outcome in OUTCOMES}
        name = f"{prefix}_requests_in_flight"
        self._in_flight = Gauge(name, "API requests not answered yet.", registry=self.registry)

    def arrived(self) -> None:
        self._in_flight.inc()

    def outcome(self, outcome: str) -> None:
        self._in_flight.dec()
        self._outcomes[outcome].inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


class ModelMetrics(RequestMetrics):
    """Those of one model too: the process that computes it, and gauges with vLLM's names."""

    def __init__(self, model_name: str) -> None:
        super().__init__()
        self._model = {"model_name": model_name, "engine": "0"}
        registry = self.registry
        self._crashes = Counter(
            "slipway_server_engine_crashes", "Ends of the engine process while it served.", registry=registry
        )
        self._restarts = Counter(
            "slipway_server_engine_restarts", "Starts of the engine process after a crash.", registry=registry
        )
        self._load = Gauge("slipway_server_load_seconds", "Start to ready of the engine.", registry=registry)

    def crashed(self) -> None:
        self._crashes.inc()

    def restarted(self) -> None:
        self._restarts.inc()

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"vllm:{name}", help_text, LABELS, registry=self.registry).labels(**self._model)


def count_restarts(registry: CollectorRegistry) -> Callable[[str], None]:
    """Registers the counter; call what is returned with the name of a task."""
    counter = Counter(
        "slipway_task_restarts", "Tasks of the process that ended and were started again.", ["task"], registry=registry
    )

    def restarted(task: str) -> None:
        counter.labels(task).inc()

    return restarted
