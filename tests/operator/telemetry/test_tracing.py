"""Spans of reconciles: none without a receiver; with one, each with its object and its end."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slipway_operator.api.objects import ObjectKey
from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.telemetry.tracing import traced
from slipway_process.spans import Exporter

KEY = ("team", "chat")


async def reconcile(key: ObjectKey, failures: int) -> float | None:
    if failures:
        raise NotFound("gone", 404)
    return 5.0


async def test_without_a_receiver_nothing_is_between() -> None:
    assert traced(reconcile, Exporter()) is reconcile


async def test_each_reconcile_is_a_span_and_one_that_fails_says_why() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    within_spans = traced(reconcile, Exporter(provider, "test"))
    assert await within_spans(KEY, 0) == 5.0
    with pytest.raises(ApiError):
        await within_spans(KEY, 3)
    good, failed = kept.get_finished_spans()
    assert dict(good.attributes or {}) == {
        "k8s.namespace.name": "team",
        "slipway.modeldeployment": "chat",
        "slipway.failures": 0,
        "slipway.again_after_seconds": 5.0,
    }
    assert good.status.is_ok and not failed.status.is_ok
    assert [event.name for event in failed.events] == ["exception"]
