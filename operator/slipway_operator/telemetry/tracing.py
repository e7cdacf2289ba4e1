"""A span of each reconcile that OTEL_TRACES_SAMPLER chooses: whose it was, and when the next one is due."""

from collections.abc import Awaitable, Callable
from typing import Any

from slipway_operator.api.objects import ObjectKey
from slipway_process.spans import Exporter

SERVICE = "slipway-operator"
Reconcile = Callable[[ObjectKey, int], Awaitable[float | None]]


def traced(reconcile: Reconcile, exporter: Exporter) -> Reconcile:
    """`reconcile` with a span around it; itself where no spans are made."""
    tracer = exporter.tracer
    if tracer is None:
        return reconcile

    async def within_span(key: ObjectKey, failures: int) -> float | None:
        about: dict[str, Any] = {
            "k8s.namespace.name": key[0],
            "slipway.modeldeployment": key[1],
            "slipway.failures": failures,
        }
        with tracer.start_as_current_span("reconcile", attributes=about) as span:
            again_after_s = await reconcile(key, failures)
            if again_after_s is not None:
                span.set_attribute("slipway.again_after_seconds", again_after_s)
            return again_after_s

    return within_span
