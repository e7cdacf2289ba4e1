"""What a server reports of its load is read by the gateway, and anything else in its place is not."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway_contracts.load_report import CACHE_USAGE, WAITING_REQUESTS, WAITING_TOKENS, read, written

NAMES = st.sampled_from((CACHE_USAGE, WAITING_REQUESTS, WAITING_TOKENS))


@given(metrics=st.dictionaries(NAMES, st.floats(0, 1e6, allow_nan=False).map(lambda value: float(f"{value:g}"))))
def test_what_is_written_is_read(metrics: dict[str, float]) -> None:
    assert read(written(metrics)) == metrics


@pytest.mark.parametrize(
    ("header", "metrics"),
    [
        # As vLLM and Triton write it.
        ("TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3",
         {CACHE_USAGE: 0.25, WAITING_REQUESTS: 3.0}),
        ("text named_metrics.a=1,cpu_utilization=0.3,named_metrics.b=2", {"a": 1.0, "b": 2.0}),
        ("TEXT named_metrics.a=nan,named_metrics.b=inf,named_metrics.c=-1,named_metrics.d=x,named_metrics.e", {}),
        ('JSON {"named_metrics":{"a":1}}', {}),
        ("TEXT " + ",".join(f"named_metrics.m{n}=1" for n in range(1000)), {}),
        ("", {}),
    ],
)  # fmt: skip
def test_a_workload_may_write_anything(header: str, metrics: dict[str, float]) -> None:
    assert read(header) == metrics


@given(header=st.text(max_size=300) | st.text(max_size=200).map("TEXT named_metrics.".__add__))
@example("TEXT named_metrics.waiting_prompt_tokens=1e999")
@example("TEXT named_metrics.waiting_prompt_tokens=٣")
def test_a_report_is_of_finite_numbers(header: str) -> None:
    assert all(math.isfinite(value) and value >= 0 for value in read(header).values())
