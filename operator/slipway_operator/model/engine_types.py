"""What is known of each engine type: the names of its metrics, and what it can do; pure.

A metric that an engine does not export is unknown, never 0: an idle and a silent engine must look different.
"""

from dataclasses import dataclass

from slipway_operator.api.inputs.pod_inputs import CustomEngine, EngineMetricNames
from slipway_operator.model.inputs.pod_inputs import SLIPWAY, Engine


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Names in the Prometheus format. Of several for one metric the first that is there counts; none: not exported."""

    path: str = "/metrics"
    waiting: tuple[str, ...] = ()  # gauge, requests
    running: tuple[str, ...] = ()  # gauge, requests
    tokens: tuple[str, ...] = ()  # counter of generated tokens
    prompt_tokens: tuple[str, ...] = ()  # counter of tokens of prompts
    kv_usage: tuple[str, ...] = ()  # gauge, 0 to 1
    ttft: str = ""  # histogram in seconds, without _bucket
    breakdown: str = ""  # label of samples that another one, without it, is the total of

    def of(self, field: str) -> tuple[str, ...]:
        """Return the names of one metric, by the name of its field here."""
        return {
            "waiting": self.waiting,
            "running": self.running,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "kv_usage": self.kv_usage,
            "ttft": (self.ttft,) if self.ttft else (),
        }[field]


SINGLE = ("waiting", "running", "tokens", "prompt_tokens", "kv_usage")  # all but the histogram
# vLLM's production metrics, which slipway-server exports too. The second name of the cache's is of 2025 and before.
VLLM = EngineMetrics(
    waiting=("vllm:num_requests_waiting",),
    running=("vllm:num_requests_running",),
    tokens=("vllm:generation_tokens_total",),
    prompt_tokens=("vllm:prompt_tokens_total",),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ttft="vllm:time_to_first_token_seconds",
)
# SGLang: observability/metrics_collector.py.
SGLANG = EngineMetrics(
    waiting=("sglang:num_queue_reqs",),
    running=("sglang:num_running_reqs",),
    tokens=("sglang:generation_tokens_total",),
    prompt_tokens=("sglang:prompt_tokens_total",),
    kv_usage=("sglang:token_usage",),
    ttft="sglang:time_to_first_token_seconds",
    breakdown="priority",
)


STREAM_RESUME = "StreamResume"  # a stream continues at another pod when its own ends
TENANT_FAIRNESS = "TenantFairness"  # a tenant gets its share of the engine, and no other one's cached prompts
MIRROR_TOKENS = "MirrorTokens"  # responses to mirrored requests are compared token by token
DRAIN = "Drain"  # SIGTERM lets running requests end
METRICS = "Metrics"  # the engine exports the requests that wait
_CAPABILITIES = {
    SLIPWAY: (DRAIN, METRICS, MIRROR_TOKENS, STREAM_RESUME, TENANT_FAIRNESS),
    "vllm": (DRAIN, METRICS),
    "sglang": (DRAIN, METRICS),
}


def capabilities_of(engine: Engine) -> tuple[str, ...]:
    """Return what an engine can do, sorted. docs/engines.md has what is lost without each."""
    if engine.type in _CAPABILITIES:
        return _CAPABILITIES[engine.type]
    return (METRICS,) if metrics_of(engine).waiting else ()


def metrics_of(engine: Engine) -> EngineMetrics:
    """Return the names of an engine's metrics."""
    match engine.type:
        case "sglang":
            return SGLANG
        case "custom":
            return _custom(custom_of(engine))
    return VLLM


def custom_of(engine: Engine) -> CustomEngine:
    """Return the description of a custom engine, with its defaults."""
    return CustomEngine.model_validate(engine.custom, strict=False)  # lists, as in JSON


def _custom(custom: CustomEngine) -> EngineMetrics:
    names = custom.metrics or EngineMetricNames()
    return EngineMetrics(
        custom.metrics_path,
        waiting=_one(names.queued),
        running=_one(names.running),
        tokens=_one(names.generated_tokens),
        prompt_tokens=_one(names.prompt_tokens),
        kv_usage=_one(names.kv_cache_usage),
        ttft=names.time_to_first_token or "",
    )


def _one(name: str | None) -> tuple[str, ...]:
    return (name,) if name else ()
