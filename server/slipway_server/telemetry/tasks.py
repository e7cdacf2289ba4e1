"""Counts the tasks of this process that ended and were started again."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter


def count_restarts(registry: CollectorRegistry) -> Callable[[str], None]:
    """Registers the counter; call what is returned with the name of a task."""
    counter = Counter(
        "slipway_task_restarts", "Tasks of the process that ended and were started again.", ["task"], registry=registry
    )

    def restarted(task: str) -> None:
        counter.labels(task).inc()

    return restarted
