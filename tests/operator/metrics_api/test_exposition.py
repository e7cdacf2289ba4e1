"""Pages of model servers, ours and vLLM's, and invalid pages."""

import math

import pytest

from slipway_operator.metrics_api.exposition import ExposedSample, Malformed, parse
from slipway_process.serving.tracing import Timing
from slipway_server.engine.messages import Step
from slipway_server.metrics import ServerMetrics

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/a{b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="org/a{b} c"} 1.0
vllm:num_requests_waiting{engine="0",model_name="org/a{b} c"} 7.0 1700000000000
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:generation_tokens_total{engine="0"} 1.25e+06
vllm:prompt_tokens_total{engine="0"} 10
vllm:prompt_tokens_total{engine="1"} 20
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 5
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1"} 1
vllm:time_to_first_token_seconds_bucket{le="+Inf",engine="0"} 9
vllm:time_to_first_token_seconds_count{engine="0"} 9
vllm:something_odd{a="b"} NaN
process_cpu_seconds_total 12
"""


def test_engines_of_one_pod_count_together() -> None:
    assert parse(VLLM) == ExposedSample(7, 4, 1.25e6, 0.375, ((0.1, 6), (math.inf, 9)), 30)


def test_page_of_our_own_server_is_parsed() -> None:
    metrics = ServerMetrics("chat")
    metrics.step(
        Step(
            started=[],
            events=[],
            running=2,
            waiting=5,
            kv_usage=0.5,
            tokens=3,
            seconds=0.01,
            preemptions=0,
            prefix_queries=0,
            prefix_hits=0,
        )
    )
    timing = Timing(prompt_tokens=3)
    metrics.started(timing)
    metrics.token(timing)
    reading = parse(metrics.render().decode())
    assert (reading.waiting, reading.running, reading.tokens, reading.kv_usage) == (5, 2, 1, 0.5)
    assert (reading.prompt_tokens, reading.missing) == (3, ())
    assert reading.ttft[-1] == (math.inf, 1)


def test_the_former_name_of_the_cache_is_known() -> None:
    page = VLLM.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert parse(page).kv_usage == 0.375


def test_escaped_quotes_do_not_end_a_label() -> None:
    page = VLLM.replace("org/a{b} c", 'a\\",le=\\"7')
    assert parse(page) == parse(VLLM)


@pytest.mark.parametrize("page", ["", "<html>login</html>"])
def test_a_page_of_something_else_lacks_every_metric(page: str) -> None:
    sample = parse(page)
    assert (sample.waiting, sample.running, sample.tokens, sample.kv_usage) == (None, None, None, None)
    assert sample.missing_name("waiting") == "vllm:num_requests_waiting"
    assert sample.missing_name("kv_usage") == "vllm:kv_cache_usage_perc"


def test_a_missing_metric_makes_no_other_one_unknown() -> None:
    page = "\n".join(line for line in VLLM.splitlines() if "num_requests_running" not in line)
    sample = parse(page)
    assert (sample.waiting, sample.running, sample.tokens) == (7, None, 1.25e6)
    assert sample.missing == (("running", "vllm:num_requests_running"),)


def test_without_buckets_an_engine_that_generated_tokens_has_no_histogram() -> None:
    """Before the first request it has none either, and nothing is wrong."""
    page = "\n".join(line for line in VLLM.splitlines() if "time_to_first_token" not in line)
    sample = parse(page)
    assert (sample.ttft, sample.missing) == (None, (("ttft", "vllm:time_to_first_token_seconds_bucket"),))
    idle = parse(page.replace("1.25e+06", "0"))
    assert (idle.ttft, idle.missing) == ((), ())


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (VLLM.replace(" 7.0 ", " NaN "), "vllm:num_requests_waiting is nan"),
        (VLLM.replace(" 7.0 ", " -1 "), "is -1"),
        (VLLM.replace(" 7.0 ", " 1e308 "), "is 1e.308"),  # no quantity holds it
        (VLLM.replace('le="0.1"', 'le="fast"'), "a bucket without a bound"),
        (VLLM.replace('le="0.1",', "").replace(',le="0.1"', ""), "a bucket without a bound"),
        (VLLM.replace(" 7.0 ", " many "), "a line cannot be read"),
        (VLLM.replace('{engine="0",model', '{engine="0" model'), "a line cannot be read"),
        (VLLM.replace("org/a", "a" * 1024), "more labels than any model server has"),
        ((VLLM.split("\n")[2] + "\n") * 5000, "more labels than any"),
        # A page of 128 KiB of short lines took 0.2 s of the operator's event loop, every ten seconds for each pod.
        ("vllm:num_requests_waiting 1\n" * 1025, "more labels than any"),
        ("\n" * 20_001, "more than 20000 lines"),
    ],
)
def test_malformed_page_is_refused_with_the_reason(page: str, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        parse(page)


@pytest.mark.finding("F3")
def test_the_sum_of_many_engines_is_still_a_quantity() -> None:
    """Each number is within its bound; a quantity of Kubernetes ends at 2^63."""
    found = parse("vllm:num_requests_waiting 1e15\n" * 1000)
    assert found.waiting == 1e15
