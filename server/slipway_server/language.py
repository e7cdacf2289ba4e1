"""The server of a language model: its folder, the engine process, the tokenizer, and the HTTP server before them.

`__main__` checks first that the packages of language models are installed.
"""

import asyncio
import logging
import sys
import time
from pathlib import Path

from slipway_process import machine
from slipway_process.model_folder.checkpoint import Checkpoint, CheckpointError, read, source_uri
from slipway_process.serving import program
from slipway_process.serving.probes import Health
from slipway_process.serving.restarts import EngineCrashed, Restarts, keep_running
from slipway_process.serving.tenant import Tenants
from slipway_process.serving.tracing import tracing

from . import environment
from .engine.adapters.catalog import AdapterCatalog
from .engine.client import EngineClient, QueueLimits
from .engine.messages import Ready, Start
from .http.app import serve
from .http.requests.prompts import ServedModel
from .http.service import ModelService
from .metrics import ServerMetrics
from .settings import ServerSettings
from .text.answers.selection import select_formats
from .text.template_source import TemplateSource
from .text.tokenizer import Tokenizer, TokenizerError

log = logging.getLogger("slipway")

ACCURACY_TEXT = Path(__file__).parent / "models" / "accuracy.txt"


def main() -> None:
    settings = ServerSettings.parse(sys.argv[1:])
    program.run(settings, lambda: serve_language(settings))


def serve_language(settings: ServerSettings) -> None:
    """Serves the model of a folder until SIGTERM.

    Raises:
        CheckpointError: what the folder has cannot be served.
        EngineError: the engine ended first.
    """
    checkpoint = read(settings.model, task=settings.task)
    try:
        asyncio.run(run(settings, checkpoint, context_length(settings, checkpoint)))
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error


def context_length(settings: ServerSettings, checkpoint: Checkpoint) -> int:
    longest = max(checkpoint.context_tokens, checkpoint.longest_context_tokens)
    requested = settings.max_model_len
    if requested and requested > longest:
        raise CheckpointError(
            f"--max-model-len {requested} is more than the {longest} tokens that the model was made for."
        )
    return requested or checkpoint.context_tokens


class EngineLifecycle:
    """Reports the engine's starts and crashes to health and metrics, and decides on restarts of its process."""

    def __init__(self, name: str, health: Health, metrics: ServerMetrics, most: int) -> None:
        """`most`: restarts within the window of `Restarts`."""
        self._name, self._health, self._metrics = name, health, metrics
        self._restarts = Restarts(most)
        self._started_s = time.monotonic()

    def ready(self, engine: Ready) -> None:
        self._health.engine_is_ready()
        seconds = round(time.monotonic() - self._started_s, 2)
        self._metrics.loaded(seconds, engine)
        fields = {"model": self._name, "seconds": seconds, "kernels": engine.kernels}
        if rounding := engine.rounding:
            ratio, same = round(rounding.perplexity_ratio, 4), round(rounding.top1_agreement, 4)
            fields |= {"perplexity_ratio": ratio, "top1_agreement": same}
        log.info("ready", extra=fields | {"dtype": engine.dtype, "kv_tokens": engine.kv_tokens})

    def crashed(self) -> None:
        """Called as soon as the engine closes its socket: readiness fails while its process may still be ending."""
        self._health.engine_has_crashed()
        self._metrics.crashed()

    def restart_in_s(self, _: EngineCrashed) -> float | None:
        """Seconds until the restart after a crash; None: no restart, during a drain or after too many crashes."""
        if self._health.draining:
            return None
        self._started_s = time.monotonic()
        return self._restarts.delay_s(self._started_s)


async def _accuracy_tokens(settings: ServerSettings, checkpoint: Checkpoint) -> tuple[int, ...]:
    """The text on which the engine measures what rounding costs; empty where it does not."""
    if settings.quantization == "none" or not settings.max_perplexity_ratio or checkpoint.task != "generate":
        return ()
    tokenizer = await asyncio.to_thread(Tokenizer, checkpoint.folder)
    return tuple(tokenizer.encode_now(ACCURACY_TEXT.read_text()))


def _start(
    settings: ServerSettings,
    checkpoint: Checkpoint,
    context_tokens: int,
    accuracy_tokens: tuple[int, ...] = (),
    draft: Checkpoint | None = None,
) -> Start:
    """What the engine's process is started with."""
    return Start(
        model=str(checkpoint.folder),
        task=checkpoint.task,
        dtype=settings.dtype,
        quantization=settings.quantization,
        device=settings.device,
        context_tokens=context_tokens,
        slots=settings.max_num_seqs,
        step_tokens=settings.max_num_batched_tokens,
        step_s=settings.max_step_s,
        inter_token_s=settings.max_inter_token_s,
        kv_tokens=settings.max_kv_tokens,
        prefix_cache=settings.prefix_caching,
        revision=settings.model_version,
        kv_cache_dtype=settings.kv_cache_dtype,
        trace=settings.step_trace,
        gpu_memory=settings.gpu_memory_utilization,
        kernels=settings.kernels,
        cpu_threads_bind=settings.cpu_threads_bind,
        numa=settings.numa,
        allow_slow=settings.allow_slow,
        eager=settings.enforce_eager,
        async_scheduling=settings.async_scheduling,
        log_level=settings.log_level,
        stop_token_ids=checkpoint.stop_token_ids,
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
        max_lora_bytes=settings.max_lora_bytes,
        lora_root=settings.lora_root,
        lora_base_names=base_names(settings, checkpoint),
        max_perplexity_ratio=settings.max_perplexity_ratio,
        accuracy_tokens=accuracy_tokens,
        speculation=settings.speculation,
        num_speculative_tokens=settings.num_speculative_tokens,
        prompt_lookup_min=settings.prompt_lookup_min,
        prompt_lookup_max=settings.prompt_lookup_max,
        draft_model=str(draft.folder) if draft else "",
        draft_context_tokens=draft.context_tokens if draft else 0,
    )


def draft_checkpoint(settings: ServerSettings) -> Checkpoint | None:
    """That of the draft model; None without one. Raises CheckpointError."""
    if settings.speculation != "draft":
        return None
    try:
        return read(Path(settings.speculative_draft_model), task="generate")
    except CheckpointError as error:
        raise CheckpointError(f"--speculative-draft-model: {error}") from None


def check_same_tokenizer(tokenizer: Tokenizer, draft: Checkpoint) -> None:
    """Raises CheckpointError where the draft model's tokens are not the model's."""
    if difference := tokenizer.difference_to(Tokenizer(draft.folder)):
        raise CheckpointError(
            f"--speculative-draft-model: {draft.folder.name} has another tokenizer than the model: {difference}. "
            "Take a draft model of the same tokenizer."
        )


def base_names(settings: ServerSettings, checkpoint: Checkpoint) -> tuple[str, ...]:
    """What adapters may call the model: names of the settings, its folder, its source and its config.json.

    Empty: anything.
    """
    if "*" in settings.lora_base_names:
        return ()
    written = checkpoint.config.get("_name_or_path")
    sources = (checkpoint.folder.name, source_uri(settings.model), written)
    names = (settings.served_model_name, *sources, *settings.lora_base_names)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))


async def run(settings: ServerSettings, checkpoint: Checkpoint, context_tokens: int) -> None:
    metrics = ServerMetrics(settings.served_model_name)
    queue = QueueLimits(settings.max_queue_requests, settings.max_queue_tokens)
    adapters = AdapterCatalog(settings.served_model_name)
    engine = EngineClient(queue, settings.max_num_seqs, metrics.step, adapters)
    metrics.observe_adapters(adapters, settings.max_loras)
    health = Health(engine.heartbeat, settings.stall_timeout_s)
    lifecycle = EngineLifecycle(settings.served_model_name, health, metrics, settings.max_engine_restarts)
    draft = draft_checkpoint(settings)
    start = _start(settings, checkpoint, context_tokens, await _accuracy_tokens(settings, checkpoint), draft)
    # The engine loads for seconds: it begins before anything else, and the tokenizer is read meanwhile.
    engine_task = asyncio.create_task(
        keep_running(
            lambda: engine.run(start, machine.cores(), lifecycle.ready, lifecycle.crashed),
            lifecycle.restart_in_s,
            metrics.restarted,
        )
    )
    await asyncio.sleep(0)
    environment.one_tokenizer_thread()
    tokenizer = await asyncio.to_thread(Tokenizer, checkpoint.folder)
    if draft:
        await asyncio.to_thread(check_same_tokenizer, tokenizer, draft)
    template = TemplateSource.of(checkpoint.tokenizer_files)
    if template.missing:
        log.warning("no chat completions", extra={"reason": template.missing})
    model = ServedModel(
        name=settings.served_model_name,
        version=settings.model_version,
        checkpoint=checkpoint,
        context_tokens=context_tokens,
        tokenizer=tokenizer,
        template=template,
        speculates=settings.speculation != "none",
        formats=select_formats(template.text, calls=settings.tool_call_parser, reasoning=settings.reasoning_parser),
    )
    tenants = Tenants(
        settings.tenant_keys_file,
        settings.deployment,
        trust=settings.trust_tenant_header,
        unproved=metrics.unproved_tenant,
    )
    spans = tracing(settings.spans_endpoint, model.name, settings.spans_service)
    service = ModelService(model, engine, metrics, health, spans, tenants, log_level=settings.log_level)
    await serve(settings, service, engine, engine_task)
