"""The server of a pool: its routes, the life of its process, and what it runs on."""

import asyncio
import functools
import logging
from dataclasses import dataclass
from pathlib import Path

from slipway_process import machine
from slipway_process.isolation import hide_memory
from slipway_process.model_folder.catalog import PoolEntry
from slipway_process.serving.heartbeat import Heartbeat
from slipway_process.serving.metrics import count_restarts
from slipway_process.serving.probes import Health
from slipway_process.serving.server import run_server
from slipway_process.serving.tracing import Tracing, tracing
from slipway_process.supervisor import Supervisor

from ...batcher import QueueMemory
from ...pool.eviction import PoolLimits
from ...pool.loading import PoolRules
from ...pool.pool import ProcessPool
from ...pool_metrics import STATES, PoolMetrics
from ...settings import PredictSettings
from ..app import MEMORY_SHARE, ModelBackend, build
from ..host import HostedModel, service_of
from ..identity import ModelIdentity
from .models import PooledModels, choosing
from .repository import ModelRepository

log = logging.getLogger("slipway.pool")


@dataclass(slots=True)
class PoolService:
    """What the guard of all requests needs of the pool."""

    metrics: PoolMetrics
    health: Health
    tracing: Tracing


def pool_rules(settings: PredictSettings) -> PoolRules:
    memory_bytes = settings.pool_memory_bytes or int(machine.free_memory_bytes() * MEMORY_SHARE)
    return PoolRules(
        root=settings.model,
        limits=PoolLimits(memory_bytes, settings.pool_max_loaded, settings.pool_min_residency_s),
        load_timeout_s=settings.pool_load_timeout_s,
        max_load_s=settings.pool_max_load_s,
        parallel_loads=settings.pool_parallel_loads,
        max_waiting_loads=settings.pool_max_waiting_loads,
        model_memory_bytes=settings.max_model_memory_bytes or memory_bytes,
        max_restarts=settings.max_engine_restarts,
        max_batch_size=settings.max_batch_size,
        log_level=settings.log_level,
    )


def observe(pool: ProcessPool, metrics: PoolMetrics, limit_bytes: int) -> None:
    """Register the pool's gauges, which are read whenever the page of metrics is rendered."""
    metrics.observe_pool(
        used=lambda: pool.loader.used_bytes,
        limit=limit_bytes,
        queue=lambda: pool.loader.waiting,
        file_errors=lambda: pool.file_errors,
        states={state: functools.partial(pool.count, state) for state in STATES},
        models=pool.sizes,
    )


async def serve(settings: PredictSettings) -> None:
    """Serve until SIGTERM and the end of the drain; raise CatalogError for a pool's file that is wrong at the start."""
    hide_memory()
    metrics = PoolMetrics()
    health = Health(Heartbeat.create(), settings.stall_timeout_s)
    spans = tracing(settings.spans_endpoint, settings.served_model_name, settings.spans_service)
    tasks = Supervisor(count_restarts(metrics.registry))
    rules, memory = pool_rules(settings), QueueMemory.of_free(machine.free_memory_bytes())

    def hosted(entry: PoolEntry) -> HostedModel:
        """The health of a model is its own, with the heartbeat of the server."""
        identity = ModelIdentity(entry.name, entry.shown_version or entry.version, entry.version)
        own = Health(health.heartbeat, settings.stall_timeout_s)
        service = service_of(settings, identity, metrics.model(entry.key), own, spans, memory)
        return HostedModel(settings, service, tasks, 1, log, "loaded")

    pool = ProcessPool(
        Path(settings.pool_config),
        rules,
        hosted,
        metrics,
        tasks,
    )
    observe(pool, metrics, rules.limits.memory_bytes)
    models = PooledModels(pool, metrics, health, settings.model_version)

    def ready() -> None:
        health.engine_is_ready()
        log.info("ready", extra={"models": len(pool.slots), "memory_bytes": rules.limits.memory_bytes})

    life = asyncio.create_task(pool.run(ready))
    own = ModelRepository(models).routes()
    app, guard = build(
        PoolService(metrics, health, spans),
        models,
        settings,
        lambda routes: [*own, *map(choosing, [*own, *routes])],
    )
    await run_server(settings, app, guard, ModelBackend(pool.fail_waiting), life, tasks)
