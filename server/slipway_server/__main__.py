"""The composition root: settings, model folder, engine process, HTTP server."""

import asyncio
import logging
import sys
import time

from . import machine
from .engine.client import EngineClient, EngineError, QueueLimits
from .engine.messages import Start
from .http.app import serve
from .http.probes import Health
from .http.service import Model, Service
from .models.checkpoint import Checkpoint, CheckpointError, read
from .settings import Settings, parse
from .telemetry import logs
from .telemetry.metrics import Metrics
from .telemetry.termination import last_words
from .text.chat_template import ChatTemplate, ChatTemplateError
from .text.tokenizer import Tokenizer, TokenizerError

log = logging.getLogger("slipway")


def main() -> None:
    settings = parse()
    logs.configure(settings.log_level)
    try:
        checkpoint = read(settings.model, task=settings.task)
        asyncio.run(run(settings, checkpoint, context_of(settings, checkpoint)))
    except (CheckpointError, TokenizerError, ChatTemplateError, EngineError) as error:
        last_words(str(error))
        sys.exit(1)
    except OSError as error:
        last_words(f"The server cannot start: {error}.")
        sys.exit(1)


def context_of(settings: Settings, checkpoint: Checkpoint) -> int:
    longest, asked = checkpoint.context_tokens, settings.max_model_len
    if asked and asked > longest:
        raise CheckpointError(f"--max-model-len {asked} is more than the {longest} tokens that the model was made for.")
    return asked or longest


async def run(settings: Settings, checkpoint: Checkpoint, context_tokens: int) -> None:
    began = time.monotonic()
    metrics = Metrics(settings.served_model_name)
    queue = QueueLimits(settings.max_queue_requests, settings.max_queue_tokens)
    engine = EngineClient(queue, settings.max_num_seqs, metrics.step)
    health = Health(engine.heartbeat, settings.stall_timeout_s)

    def on_ready() -> None:
        health.loaded = True
        assert engine.ready is not None, "the engine says so"
        seconds = round(time.monotonic() - began, 2)
        metrics.loaded(seconds, engine.ready)
        told = {"model": settings.served_model_name, "seconds": seconds, "kernels": engine.ready.kernels}
        log.info("ready", extra=told | {"dtype": engine.ready.dtype, "kv_tokens": engine.ready.kv_tokens})

    start = Start(
        model=str(checkpoint.folder),
        task=checkpoint.task,
        dtype=settings.dtype,
        quantization=settings.quantization,
        device=settings.device,
        context_tokens=context_tokens,
        slots=settings.max_num_seqs,
        step_tokens=settings.max_num_batched_tokens,
        step_s=settings.max_step_s,
        kv_tokens=settings.max_kv_tokens,
        prefix_cache=settings.prefix_caching == "on",
        revision=settings.model_version,
        trace=settings.step_trace,
    )
    # The engine loads for seconds: it begins before anything else, and the tokenizer is read meanwhile.
    engine_life = asyncio.create_task(engine.run(start, machine.cores(), on_ready))
    await asyncio.sleep(0)
    model = Model(
        name=settings.served_model_name,
        version=settings.model_version,
        checkpoint=checkpoint,
        context_tokens=context_tokens,
        tokenizer=await asyncio.to_thread(Tokenizer, checkpoint.folder),
        template=ChatTemplate.read(checkpoint.folder),
    )
    await serve(settings, Service(model, engine, metrics, health), engine, engine_life)


if __name__ == "__main__":
    main()
