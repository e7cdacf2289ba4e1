"""What is known of each engine type: the names of its metrics, and what it can do; pure.

A metric that an engine does not export is unknown, never 0: an idle and a silent engine must look different.
"""

from dataclasses import dataclass

from slipway_operator.api.inputs.pod_inputs import CustomEngine, EngineMetricNames
from slipway_operator.model.inputs.pod_inputs import SLIPWAY, Engine


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Prometheus names of an engine's metrics. The first name that the page has counts; no name: not exported."""

    path: str = "/metrics"
    waiting: tuple[str, ...] = ()  # gauge: waiting requests
    running: tuple[str, ...] = ()  # gauge: running requests
    tokens: tuple[str, ...] = ()  # counter of generated tokens
    prompt_tokens: tuple[str, ...] = ()  # counter of prompt tokens
    kv_usage: tuple[str, ...] = ()  # gauge: used share of the KV cache, 0 to 1
    ttft: str = ""  # histogram of the time to first token in seconds; name without _bucket
    breakdown: str = ""  # label that splits a metric; the total is a sample of its own without this label

    def of(self, field: str) -> tuple[str, ...]:
        """Return the Prometheus names of one metric; `field` is the name of its field in this class."""
        return {
            "waiting": self.waiting,
            "running": self.running,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "kv_usage": self.kv_usage,
            "ttft": (self.ttft,) if self.ttft else (),
        }[field]


SINGLE = ("waiting", "running", "tokens", "prompt_tokens", "kv_usage")  # all metrics but the histogram
# vLLM's production metrics, which slipway-server exports too. The second name of kv_usage is that of 2025 and before.
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
TENANT_FAIRNESS = "TenantFairness"  # tenants get fair shares of the engine
TENANT_CACHE = "TenantCache"  # no tenant gets, or can notice, cached prompts of another
MIRROR_TOKENS = "MirrorTokens"  # responses to mirrored requests are compared token by token
DRAIN = "Drain"  # after SIGTERM, running requests end normally
METRICS = "Metrics"  # the engine exports its number of waiting requests
# Types of engines that know no tenants, and keep apart the cached prompts of requests with different salts, which
# gateways add.
SALTED_ENGINES = ("vllm", "sglang")
# slipway-server separates the cache by the tenant that a gateway proves, vLLM by the salt. SGLang is given a salt too,
# but no test has run against it.
_CAPABILITIES = {
    SLIPWAY: (DRAIN, METRICS, MIRROR_TOKENS, STREAM_RESUME, TENANT_CACHE, TENANT_FAIRNESS),
    "vllm": (DRAIN, METRICS, TENANT_CACHE),
    "sglang": (DRAIN, METRICS),
}
# The argument with which SGLang keeps no prompts for later requests.
WITHOUT_CACHE = "--disable-radix-cache"


def capabilities_of(engine: Engine) -> tuple[str, ...]:
    """Return the sorted capabilities of an engine. docs/engines.md describes what does not work without each."""
    if engine.type == "sglang" and WITHOUT_CACHE in engine.args:
        return (*_CAPABILITIES[engine.type], TENANT_CACHE)
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
    return CustomEngine.model_validate(engine.custom, strict=False)  # not strict: JSON has lists for tuples


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
