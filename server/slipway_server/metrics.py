"""Every metric of the server: vLLM's names where the ecosystem scrapes them, slipway_server_* for our own."""

import contextlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway_process.serving.metrics import LABELS, ModelMetrics
from slipway_process.serving.tracing import Timing

from .engine.adapters.catalog import AdapterCatalog
from .engine.messages import Ready, Step

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
INTERVAL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
TOKENS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
# How kept streams ended, and where a resumed stream's tokens came from: this server's buffer, the request, or a new
# computation.
ADAPTER_LOADS = ("loaded", "refused")
REPLAY_ENDS = ("taken_up", "expired", "evicted", "stale", "drained")
REPLAY_SOURCES = ("running", "ended", "stopped", "told", "repeated")


class _LoraInfo(Collector):
    """vLLM's gauge, by which endpoint pickers route: names as labels, and the time as its value."""

    def __init__(self, catalog: AdapterCatalog, most: int) -> None:
        self._catalog, self._most = catalog, most

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        info = GaugeMetricFamily("vllm:lora_requests_info", "LoRA adapters with requests.", labels=labels)
        info.add_metric([str(self._most), ",".join(sorted(self._catalog.used)), ""], time.time())
        yield info


class ServerMetrics(ModelMetrics):
    def __init__(self, model_name: str) -> None:
        super().__init__(model_name)
        self._running = self._gauge("num_requests_running", "Requests that hold a slot.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for a slot.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Held share of the KV cache, 0 to 1.")
        self._gpu_usage = self._gauge("gpu_cache_usage_perc", "Legacy name of kv_cache_usage_perc.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of started requests.")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._preemptions = self._counter("num_preemptions", "Requests that lost their slot and came back.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Tokens that were looked for in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Tokens that were found there.")
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts of one or more tokens that steps verified.")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Tokens of these drafts.")
        self._accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Of these, tokens of responses.")
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", LATENCY_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Between two tokens of a request.", INTERVAL_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", LATENCY_S)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to slot.", LATENCY_S)
        self._prefill = self._histogram("request_prefill_time_seconds", "Slot to first token.", LATENCY_S)
        self._decode = self._histogram("request_decode_time_seconds", "First token to last token.", LATENCY_S)
        self._prompt_size = self._histogram("request_prompt_tokens", "Prompt tokens per request.", TOKENS)
        self._output_size = self._histogram("request_generation_tokens", "Generated tokens per request.", TOKENS)
        self._iteration = self._histogram("iteration_tokens_total", "Tokens of one engine step.", TOKENS)
        self._success = Counter(
            "vllm:request_success", "Ended requests.", (*LABELS, "finished_reason"), registry=self.registry
        )
        self._step_seconds = Histogram(
            "slipway_server_step_seconds", "One step of the engine.", registry=self.registry, buckets=INTERVAL_S
        )
        self._cache_info = Gauge(
            "vllm:cache_config_info",
            "The KV cache, as labels; always 1.",
            (*LABELS, "block_size", "num_gpu_blocks"),
            registry=self.registry,
        )
        self._step_errors = Counter(
            "slipway_server_engine_step_errors",
            "Requests that ended because computing them failed; the engine went on.",
            registry=self.registry,
        )
        self._evictions = Counter(
            "slipway_server_prefix_evictions",
            "Blocks of the prefix cache that other requests got, because no block was free.",
            registry=self.registry,
        )
        self._out_of_memory = Counter(
            "slipway_server_out_of_memory",
            "Steps, or parts of one, that had too little memory and were computed in smaller parts.",
            registry=self.registry,
        )
        self._declare_replays()
        self._declare_tenants()
        self._declare_adapters()
        self._declare_rounding()

    def _declare_rounding(self) -> None:
        self._perplexity_ratio = Gauge(
            "slipway_server_rounding_perplexity_ratio",
            "Perplexity of a short text with weights rounded at load, by that with plain weights.",
            ["quantization"],
            registry=self.registry,
        )
        self._top1_agreement = Gauge(
            "slipway_server_rounding_top1_agreement",
            "Share of the text's tokens whose likeliest next token is the same with rounded and with plain weights.",
            ["quantization"],
            registry=self.registry,
        )

    def _declare_adapters(self) -> None:
        registry = self.registry
        self._adapters_loaded = Gauge("slipway_adapters_loaded", "LoRA adapters in memory.", registry=registry)
        self._adapter_bytes = Gauge("slipway_adapters_bytes", "Memory of loaded LoRA adapters.", registry=registry)
        self._adapter_loads = Counter(
            "slipway_adapter_loads", "LoRA adapters that were read, by what came of it.", ["result"], registry=registry
        )
        for result in ADAPTER_LOADS:
            self._adapter_loads.labels(result)
        self._adapter_load_seconds = Histogram(
            "slipway_adapter_load_seconds",
            "To check, read and convert a LoRA adapter, while steps go on.",
            registry=registry,
            buckets=LATENCY_S,
        )
        self._adapter_requests = Counter(
            "slipway_adapter_requests",
            "Answers that a LoRA adapter began, by its name.",
            ["adapter"],
            registry=registry,
        )

    def observe_adapters(self, catalog: AdapterCatalog, most: int) -> None:
        """Registers the gauges of what is loaded. `most`: adapters at a time."""
        self._adapters_loaded.set_function(lambda: len(catalog.loaded))
        self._adapter_bytes.set_function(lambda: sum(entry.size_bytes for entry in catalog.loaded))
        if most:
            self.registry.register(_LoraInfo(catalog, most))

    def adapter_loaded(self, seconds: float | None) -> None:
        """Counts an adapter that was read; None: it was refused."""
        self._adapter_loads.labels(ADAPTER_LOADS[seconds is None]).inc()
        if seconds is not None:
            self._adapter_load_seconds.observe(seconds)

    def adapter_requested(self, name: str) -> None:
        """`name`: of an adapter that is loaded, of which there are a bounded number."""
        self._adapter_requests.labels(name).inc()

    def adapter_unloaded(self, name: str) -> None:
        with contextlib.suppress(KeyError):  # it had no request
            self._adapter_requests.remove(name)

    def _declare_tenants(self) -> None:
        self._unproved_tenants = Counter(
            "slipway_server_unproved_tenants",
            "Requests without a gateway's proof of their tenant: they count for no tenant.",
            registry=self.registry,
        )

    def _declare_replays(self) -> None:
        registry = self.registry
        self._replay_held = Gauge(
            "slipway_replay_streams", "Streams kept for clients that lost them.", registry=registry
        )
        self._replay_bytes = Gauge("slipway_replay_bytes", "Of all streams that can be taken up.", registry=registry)
        self._replay_ends = Counter(
            "slipway_replay_kept", "Streams that were kept; each ends once.", ["end"], registry=registry
        )
        self._replay_resumes = Counter(
            "slipway_replay_resumes", "Streams taken up, by where their tokens were.", ["source"], registry=registry
        )
        self._replay_tokens = Counter(
            "slipway_replay_tokens", "Sent from what was kept, not computed again.", registry=registry
        )
        for end in REPLAY_ENDS:
            self._replay_ends.labels(end)
        for source in REPLAY_SOURCES:
            self._replay_resumes.labels(source)

    def loaded(self, seconds: float, ready: Ready) -> None:
        self._load.set(seconds)
        blocks = ready.kv_tokens // ready.block_tokens
        self._cache_info.labels(**self._model, block_size=str(ready.block_tokens), num_gpu_blocks=str(blocks)).set(1)
        if rounding := ready.rounding:
            self._perplexity_ratio.labels(rounding.quantization).set(rounding.perplexity_ratio)
            self._top1_agreement.labels(rounding.quantization).set(rounding.top1_agreement)

    def crashed(self) -> None:
        """Counts a crash of the engine, and sets the gauges of its requests and KV cache to 0 until it is back."""
        super().crashed()
        for gauge in (self._running, self._waiting, self._kv_usage, self._gpu_usage):
            gauge.set(0)

    def step(self, step: Step) -> None:
        self._running.set(step.running)
        self._waiting.set(step.waiting)
        self._kv_usage.set(step.kv_usage)
        self._gpu_usage.set(step.kv_usage)
        self._preemptions.inc(step.preemptions)
        self._prefix_queries.inc(step.prefix_queries)
        self._prefix_hits.inc(step.prefix_hits)
        self._step_errors.inc(step.errors)
        self._evictions.inc(step.evictions)
        self._out_of_memory.inc(step.out_of_memory)
        self._drafts.inc(step.drafts)
        self._draft_tokens.inc(step.draft_tokens)
        self._accepted_tokens.inc(step.accepted_tokens)
        self._step_seconds.observe(step.seconds)
        self._iteration.observe(step.tokens)

    def started(self, timing: Timing) -> None:
        timing.started_s = time.monotonic()
        self._queue.observe(timing.started_s - timing.submitted_s)
        self._prompt_tokens.inc(timing.prompt_tokens)

    def token(self, timing: Timing) -> None:
        now = time.monotonic()
        if timing.first_s is None:
            timing.first_s = now
            self._ttft.observe(now - timing.submitted_s)
            self._prefill.observe(now - (timing.started_s or now))
        elif timing.last_s is not None:
            self._itl.observe(now - timing.last_s)
        timing.last_s = now
        timing.output_tokens += 1
        self._generation_tokens.inc()

    def ended(self, timing: Timing) -> None:
        now = time.monotonic()
        self._success.labels(**self._model, finished_reason=timing.finish).inc()
        self._e2e.observe(now - timing.submitted_s)
        self._prompt_size.observe(timing.prompt_tokens)
        if timing.first_s is not None:
            self._decode.observe(now - timing.first_s)
            self._output_size.observe(timing.output_tokens)

    def unproved_tenant(self) -> None:
        self._unproved_tenants.inc()

    def observe_replay(self, streams: Callable[[], float], size_bytes: Callable[[], float]) -> None:
        """Registers functions that are called when the page is rendered: their values change with every token."""
        self._replay_held.set_function(streams)
        self._replay_bytes.set_function(size_bytes)

    def replay_ended(self, end: str) -> None:
        self._replay_ends.labels(end).inc()

    def replay_resumed(self, source: str, tokens: int) -> None:
        self._replay_resumes.labels(source).inc()
        self._replay_tokens.inc(tokens)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(f"vllm:{name}", help_text, LABELS, registry=self.registry).labels(**self._model)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", help_text, LABELS, registry=self.registry, buckets=buckets).labels(
            **self._model
        )
