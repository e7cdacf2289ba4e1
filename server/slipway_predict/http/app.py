"""The server of a classic model: its routes, the life of its process, and what it runs on."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from slipway_process import machine
from slipway_process.isolation import hide_memory
from slipway_process.model_folder.classic import ModelFile
from slipway_process.serving.heartbeat import Heartbeat
from slipway_process.serving.metrics import count_restarts
from slipway_process.serving.probes import Health
from slipway_process.serving.restarts import EngineCrashed, Restarts, keep_running
from slipway_process.serving.server import Guard, GuardedService, complete_routes, run_server, shared_routes
from slipway_process.serving.tenant import Tenants
from slipway_process.serving.tracing import tracing
from slipway_process.supervisor import Supervisor

from ..batcher import QueueMemory
from ..metrics import PredictMetrics
from ..process.image_decoders import MAX_DECODERS
from ..process.messages import LoadModel
from ..settings import PredictSettings
from .api import PredictApi
from .bodies.reader import BodyReader
from .host import HostedModel, service_of
from .identity import ModelIdentity
from .protocol import InferenceProtocol
from .served import OneModel, ServedModels
from .texts.api import TextApi

log = logging.getLogger("slipway.predict")

MEMORY_SHARE = 0.8  # of what is free at the start, for the process of the model
MoreRoutes = Callable[[Sequence[web.RouteDef]], Sequence[web.RouteDef]]


def build(
    service: GuardedService, models: ServedModels, settings: PredictSettings, more: MoreRoutes = lambda routes: ()
) -> tuple[web.Application, Guard]:
    """The application and its guard. `more`: given the routes that models have, those that come before them."""
    guard = Guard(service)
    app = web.Application(middlewares=[guard.handle], client_max_size=settings.max_body_bytes)
    tenants = Tenants(settings.tenant_keys_file, settings.deployment, trust=settings.trust_tenant_header)
    bodies = BodyReader(settings.max_body_bytes, tenants, settings.log_level)

    async def close(_: web.Application) -> None:
        await bodies.close()

    app.on_cleanup.append(close)
    apis = (InferenceProtocol(models, bodies), PredictApi(models, bodies), TextApi(models, tenants))
    routes = [route for api in apis for route in api.routes()]
    app.add_routes(complete_routes([*more(routes), *shared_routes(service), *routes]))
    return app, guard


@dataclass(frozen=True, slots=True)
class ModelBackend:
    """What computes, as `run_server` ends it: requests that wait or run fail. `end_streams` gets the reason."""

    end_streams: Callable[[str], None]

    def stop(self) -> None:
        self.end_streams("The server is shutting down and the time for its last requests is over.")


async def serve(settings: PredictSettings, file: ModelFile) -> None:
    """Serve until SIGTERM and the end of the drain; raise EngineError when the model cannot be served (any more)."""
    hide_memory()
    metrics = PredictMetrics(settings.served_model_name)
    health = Health(Heartbeat.create(), settings.stall_timeout_s)
    identity = ModelIdentity(settings.served_model_name, settings.model_version, settings.model_revision)
    spans = tracing(settings.spans_endpoint, identity.name, settings.spans_service)
    memory = QueueMemory.of_free(machine.free_memory_bytes())
    service = service_of(settings, identity, metrics, health, spans, memory)
    executor = service.executor
    metrics.observe_queue(lambda: executor.running, lambda: executor.batcher.waiting)
    tasks = Supervisor(count_restarts(metrics.registry))
    host = HostedModel(settings, service, tasks, min(MAX_DECODERS, machine.cores()), log, "ready")
    restarts = Restarts(settings.max_engine_restarts)

    def restart_in_s(_: EngineCrashed) -> float | None:
        """Seconds until the process is restarted; None: never. Waiting requests fail unless it is restarted at once."""
        delay_s = None if health.draining else restarts.delay_s(time.monotonic())
        if delay_s != 0.0:
            executor.fail_waiting("The process of the model ended while this request waited for it.")
        return delay_s

    memory_bytes = settings.max_model_memory_bytes or int(machine.free_memory_bytes() * MEMORY_SHARE)
    start = LoadModel(
        str(file.path),
        file.format,
        machine.cores(),
        memory_bytes,
        settings.max_batch_size,
        settings.log_level,
        settings.task == "classify",
    )
    task = asyncio.create_task(
        keep_running(lambda: executor.run(start, host.ready, host.crashed), restart_in_s, host.restarted)
    )
    app, guard = build(service, OneModel(service), settings)
    try:
        await run_server(settings, app, guard, ModelBackend(executor.fail_waiting), task, tasks)
    finally:
        await host.end()
