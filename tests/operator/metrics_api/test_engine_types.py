"""Metrics and capabilities of other engines: what an engine does not export is unknown, and never 0."""

from typing import Any

import pytest

from slipway_operator.metrics_api.exposition import ExposedSample, parse
from slipway_operator.metrics_api.series import OF_POD, Followed, PodTarget, Series, Unknown
from slipway_operator.model.engine_types import SGLANG, VLLM, capabilities_of, metrics_of
from slipway_operator.model.inputs.pod_inputs import Engine

SGLANG_PAGE = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0"} 3.0
sglang:num_queue_reqs{tp_rank="0"} 2.0
sglang:token_usage{tp_rank="0"} 0.25
sglang:generation_tokens_total{tp_rank="0"} 100
sglang:time_to_first_token_seconds_bucket{le="+Inf"} 4
"""
LLAMA_PAGE = """\
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 5
llamacpp:requests_processing 1
llamacpp:tokens_predicted_total 40
"""


def custom(**metrics: str) -> Engine:
    return Engine("llama.cpp:server", type="custom", custom={"metricsPath": "/load", "metrics": metrics})


LLAMA = custom(queued="llamacpp:requests_deferred", running="llamacpp:requests_processing")


def series(sample: ExposedSample | str) -> Series:
    made = Series(Followed("u1", (PodTarget("a", "10.0.0.1", "r1"),), 1, True), 0)
    made.add_reading("a", sample, 100)
    return made


def test_each_type_has_its_names() -> None:
    assert metrics_of(Engine()) is metrics_of(Engine("i", type="vllm")) is VLLM
    assert metrics_of(Engine("i", type="sglang")) is SGLANG
    assert metrics_of(LLAMA).path == "/load"
    assert metrics_of(Engine("i", type="custom")).waiting == ()


def test_a_page_of_sglang_is_read() -> None:
    sample = parse(SGLANG_PAGE, SGLANG)
    assert (sample.waiting, sample.running, sample.kv_usage, sample.tokens) == (2, 3, 0.25, 100)
    assert sample.ttft is not None and sample.ttft[-1][1] == 4


def test_requests_of_sglang_by_priority_are_not_added_to_their_total() -> None:
    """With --enable-priority-scheduling the total has an empty priority, and each priority has a sample of its own."""
    queue = 'sglang:num_queue_reqs{tp_rank="0"'
    by_priority = "".join(f'{queue},priority="{number}"}} 1.0\n' for number in (0, 7))
    page = SGLANG_PAGE.replace(f"{queue}}}", f'{queue},priority=""}}') + by_priority
    assert parse(page, SGLANG).waiting == 2


def test_of_a_custom_engine_the_named_metrics_are_read() -> None:
    assert parse(LLAMA_PAGE, metrics_of(LLAMA)) == ExposedSample(5, 1, None, None, None)
    assert parse(LLAMA_PAGE, metrics_of(Engine("i", type="custom"))) == ExposedSample(None, None, None, None, None)


def test_a_named_metric_that_is_missing_is_unknown_with_its_name() -> None:
    found = series(parse(LLAMA_PAGE, SGLANG))
    with pytest.raises(Unknown, match="sglang:num_queue_reqs is missing"):
        found.of_pod("slipway_queue_depth", "a", 100)


@pytest.mark.parametrize("metric", [name for name in OF_POD if name != "slipway_queue_depth"])
def test_what_an_engine_does_not_export_is_unknown(metric: str) -> None:
    found = series(ExposedSample(5, None, None, None, None))
    with pytest.raises(Unknown, match="does not export"):
        found.of_pod(metric, "a", 100)


def test_the_queue_of_an_engine_that_exports_nothing_else_is_known() -> None:
    found = series(ExposedSample(5, None, None, None, None))
    found.add_gateways(0, 100)
    assert found.number("slipway_queue_depth", 100).value == 5
    with pytest.raises(Unknown, match="pod a: its engine does not export this metric"):
        found.number("slipway_tokens_per_second", 100)
    with pytest.raises(Unknown, match="does not export"):
        found.number("slipway_ttft_p95_seconds", 100)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (Engine(), ("Drain", "Metrics", "MirrorTokens", "StreamResume", "TenantCache", "TenantFairness")),
        (Engine("i", type="vllm"), ("Drain", "Metrics", "TenantCache")),
        (Engine("i", type="sglang"), ("Drain", "Metrics")),
        (Engine("i", type="sglang", args=("--disable-radix-cache",)), ("Drain", "Metrics", "TenantCache")),
        (LLAMA, ("Metrics",)),
        (Engine("i", type="custom"), ()),
    ],
    ids=lambda value: value.type if isinstance(value, Engine) else None,
)
def test_capabilities_follow_the_engine(engine: Any, expected: tuple[str, ...]) -> None:
    assert capabilities_of(engine) == expected
