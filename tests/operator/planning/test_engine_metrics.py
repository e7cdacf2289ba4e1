"""The condition EngineMetricsAvailable: from a pod's page of metrics to the sentence in the status."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.metrics_api.exposition import parse
from slipway_operator.metrics_api.series import Followed, PodTarget, Series
from slipway_operator.model.cluster.observed import Autoscaler, MetricsPage
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.model.deployment.spec import parse as parse_spec
from slipway_operator.model.engine_types import metrics_of
from tests.support.engine_pages import LLAMA_CPP, LLAMA_CPP_NAMES, SGLANG, SGLANG_IDLE, VLLM
from tests.support.model_cluster import SETTINGS, START, ModelCluster, healthy
from tests.support.planned import plan

ENGINES: dict[str, dict[str, Any]] = {
    "vllm": {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"},
    "sglang": {"type": "sglang", "image": "lmsysorg/sglang:v0.6.0"},
    "llama.cpp": {"type": "custom", "image": "llama.cpp:server", "custom": {"metrics": LLAMA_CPP_NAMES}},
    "silent": {"type": "custom", "image": "other:1"},
}


def scaled(engine: str, *kinds: str, **autoscaling: Any) -> ModelCluster:
    metrics = [{"type": kind, "target": "4"} for kind in kinds]
    return healthy(engine=ENGINES[engine], autoscaling={"maxReplicas": 8, "metrics": metrics, **autoscaling})


def pages(world: ModelCluster, page: str, after_s: float = 40) -> tuple[MetricsPage, ...]:
    """What the sampler knows after it has read this page, or failed with this message, for `after_s`."""
    spec = parse_spec(world.obj())
    assert isinstance(spec, Spec)
    names, revision = metrics_of(spec.inputs.engine), str(world.parsed().stable_revision)
    series = Series(Followed("u1", (PodTarget("chat-1", "10.0.0.1", revision, names),), 1, True), 0)
    series.add_reading("chat-1", page if page.startswith("/metrics") else parse(page, names), after_s)
    return series.pages(after_s)


def found(world: ModelCluster, known: tuple[MetricsPage, ...] | None) -> Condition | None:
    observed = replace(world.observed(), pages=known)
    conditions = plan(world.obj(), world.parsed(), observed, SETTINGS, world.now).status.conditions
    return next((item for item in conditions if item.type == "EngineMetricsAvailable"), None)


def shown(world: ModelCluster, page: str, after_s: float = 40) -> tuple[str, str, str]:
    condition = found(world, pages(world, page, after_s))
    assert condition
    return condition.status, condition.reason, condition.message


@pytest.mark.parametrize(
    ("engine", "page", "kinds"),
    [
        ("vllm", VLLM, ("QueueDepth", "TTFT", "TokensPerSecond", "KVCacheUsage")),
        ("sglang", SGLANG, ("QueueDepth", "TTFT", "TokensPerSecond", "KVCacheUsage")),
        ("sglang", SGLANG_IDLE, ("QueueDepth", "KVCacheUsage", "TTFT")),
        ("llama.cpp", LLAMA_CPP, ("QueueDepth", "TokensPerSecond")),
    ],
    ids=("vllm", "sglang", "sglang before its first request", "llama.cpp"),
)
def test_true_while_the_pages_have_what_autoscalers_need(engine: str, page: str, kinds: tuple[str, ...]) -> None:
    status, reason, message = shown(scaled(engine, *kinds), page)
    assert (status, reason) == ("True", "MetricsRead")
    assert (
        message.startswith("every ready pod exports what is needed: ") and f"{kinds[0]} of spec.autoscaling" in message
    )


@pytest.mark.parametrize(
    ("engine", "page", "kind", "message"),
    [
        (
            "vllm",
            VLLM.replace("vllm:num_requests_waiting{", "vllm:requests_waiting{"),
            "QueueDepth",
            "pod chat-1 has no vllm:num_requests_waiting on /metrics, for QueueDepth of spec.autoscaling: remove "
            "--disable-log-stats from spec.engine.args, or use a version that exports it",
        ),
        (
            "sglang",
            SGLANG_IDLE,
            "TokensPerSecond",
            "pod chat-1 has no sglang:generation_tokens_total on /metrics, for TokensPerSecond of spec.autoscaling: "
            "it is there from the first request on; if not, use a version that exports it",
        ),
        (
            "llama.cpp",
            LLAMA_CPP.replace("requests_deferred", "requests_queued"),
            "QueueDepth",
            "pod chat-1 has no llamacpp:requests_deferred on /metrics, for QueueDepth of spec.autoscaling: correct "
            "spec.engine.custom.metrics.queued",
        ),
        (
            "llama.cpp",
            LLAMA_CPP,
            "KVCacheUsage",
            "KVCacheUsage of spec.autoscaling needs a metric that revision {revision} does not name: write "
            "spec.engine.custom.metrics.kvCacheUsage, or scale on InFlight, which gateways count",
        ),
    ],
    ids=("vllm", "sglang", "renamed", "not named"),
)
def test_a_missing_metric_is_named_with_its_pod_and_a_remedy(engine: str, page: str, kind: str, message: str) -> None:
    world = scaled(engine, kind)
    expected = message.format(revision=world.parsed().stable_revision)
    assert shown(world, page) == ("False", "MetricMissing", expected)


def test_a_page_that_cannot_be_read_is_reported_with_its_reason() -> None:
    status, reason, message = shown(scaled("llama.cpp", "QueueDepth"), "/metrics answers 501")
    assert (status, reason) == ("False", "ScrapeFailed")
    remedy = "correct spec.engine.custom.metricsPath, or let the operator connect to port 8000 of the pod"
    assert message == f"pod chat-1: /metrics answers 501; {remedy}"
    assert "metricsPath" not in shown(scaled("vllm", "QueueDepth"), "/metrics answers 404")[2]


def test_what_a_pod_answers_cannot_fill_the_status_or_control_a_terminal() -> None:
    message = shown(scaled("vllm", "QueueDepth"), "/metrics: \x1b[2J" + "x" * 5000)[2]
    assert len(message) < 400 and message.isprintable()


def test_all_problems_are_counted() -> None:
    world = scaled("silent", "QueueDepth", "TokensPerSecond")
    status, reason, message = shown(world, "anything 1\n")
    assert (status, reason) == ("False", "MetricMissing")
    assert message.endswith(
        "spec.engine.custom.metrics.queued, or scale on InFlight, which gateways count; and 1 more such problems"
    )


def test_a_new_pod_has_time_to_answer() -> None:
    world = scaled("vllm", "QueueDepth")
    for known in (pages(world, "/metrics answers 503", after_s=10), ()):
        condition = found(world, known)
        assert condition and (condition.status, condition.reason) == ("Unknown", "Starting")
    assert world.parsed().reason is None


@pytest.mark.parametrize("kinds", [("InFlight",), ("CPU",)])
def test_absent_where_no_metric_of_an_engine_is_needed(kinds: tuple[str, ...]) -> None:
    """Sleep neither: gateways count requests."""
    world = scaled("silent", *kinds, minReplicas=0, idleSeconds=60)
    assert found(world, pages(world, "anything 1\n")) is None


def test_absent_where_no_sampler_reads_pages() -> None:
    assert found(scaled("silent", "QueueDepth"), None) is None


def test_an_autoscaler_of_the_user_needs_its_metrics_too() -> None:
    world = healthy(engine=ENGINES["silent"])
    metric = {"type": "Object", "object": {"metric": {"name": "slipway_queue_depth"}}}
    world.autoscalers["theirs"] = Autoscaler("theirs", False, True, START, {"metrics": [metric, {"type": "Resource"}]})
    assert shown(world, "anything 1\n")[2].startswith(
        "slipway_queue_depth of HorizontalPodAutoscaler theirs needs a metric"
    )


def test_the_problem_is_the_reason_of_the_status() -> None:
    world = scaled("llama.cpp", "KVCacheUsage")
    observed = replace(world.observed(), pages=pages(world, LLAMA_CPP))
    assert plan(world.obj(), world.parsed(), observed, SETTINGS, world.now).status.reason == "MetricMissing"
