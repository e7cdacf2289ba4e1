"""The server of a classic model: its routes, the life of its process, and what it runs on."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from slipway_predict.settings import PredictSettings
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
from slipway_process.supervisor import OnFailure, Supervisor

from ..batcher import BatchRules, QueueMemory
from ..description import ImageInput
from ..executor import Executor, Observer
from ..metrics import PredictMetrics
from ..process.image_decoders import MAX_DECODERS, DecoderRules, ImageDecoders
from ..process.messages import LoadModel, ModelLoaded
from .api import PredictApi
from .bodies.reader import BodyReader
from .identity import ModelIdentity
from .images import ImageInputs
from .protocol import InferenceProtocol
from .served import OneModel, ServedModels
from .service import PredictService
from .texts.api import TextApi

log = logging.getLogger("slipway.predict")

MEMORY_SHARE = 0.8  # of what is free at the start, for the process of the model
MoreRoutes = Callable[[Sequence[web.RouteDef]], Sequence[web.RouteDef]]

LAST_WORDS = "The server is shutting down and the time for its last requests is over."


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


@dataclass(slots=True)
class _Life:
    """What to do when the process of the model is ready, has crashed, or is to be started again."""

    service: PredictService
    restarts: Restarts
    started_s: float
    settings: PredictSettings
    tasks: Supervisor

    def ready(self, ready: ModelLoaded) -> None:
        if ready.description.image and self.service.images is None:
            self._take_images(ready.description.image)
        self.service.health.engine_is_ready()
        seconds = round(time.monotonic() - self.started_s, 2)
        self.service.metrics.loaded(seconds)
        if not ready.files_bounded:
            log.warning("the kernel has no Landlock: the process of the model can read this server's files")
        fields = {"model": self.service.identity.name, "seconds": seconds, "runtime": ready.description.runtime}
        log.info("ready", extra=fields | {"batched": ready.description.batched, "task": ready.description.task})

    def _take_images(self, image: ImageInput) -> None:
        settings = self.settings
        rules = DecoderRules(
            image.config, min(MAX_DECODERS, machine.cores()), settings.max_image_pixels, settings.log_level
        )
        decoders = ImageDecoders(rules, self.service.metrics.decoded)
        self.service.images = ImageInputs(image, decoders, settings.max_queue_size)
        self.tasks.start("warm-up", decoders.warm_up, OnFailure.SHOW, ends=True)

    async def end(self) -> None:
        if self.service.images:
            await self.service.images.close()

    def crashed(self) -> None:
        self.service.health.engine_has_crashed()
        self.service.metrics.crashed()

    def restart_in_s(self, _: EngineCrashed) -> float | None:
        """Seconds until the process is restarted; None: never. Waiting requests fail unless it is restarted at once."""
        delay_s = None if self.service.health.draining else self.restarts.delay_s(time.monotonic())
        self.started_s = time.monotonic()
        if delay_s != 0.0:
            self.service.executor.fail_waiting("The process of the model ended while this request waited for it.")
        return delay_s


class _Backend:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def end_streams(self, reason: str) -> None:
        self._executor.fail_waiting(reason)

    def stop(self) -> None:
        self._executor.fail_waiting(LAST_WORDS)


def rules_of(settings: PredictSettings) -> BatchRules:
    timeout_s = settings.request_timeout_ms / 1000 if settings.request_timeout_ms else float("inf")
    return BatchRules(
        settings.max_batch_size, settings.max_queue_delay_microseconds / 1e6, settings.max_queue_size, timeout_s
    )


async def serve(settings: PredictSettings, file: ModelFile) -> None:
    """Serve until SIGTERM and the end of the drain; raise EngineError when the model cannot be served (any more)."""
    hide_memory()
    metrics = PredictMetrics(settings.served_model_name)
    observer = Observer(metrics.batch, metrics.failed, metrics.non_finite)
    memory = QueueMemory.of_free(machine.free_memory_bytes())
    executor = Executor(rules_of(settings), settings.max_batch_s, observer, memory)
    metrics.observe_queue(lambda: executor.running, lambda: executor.batcher.waiting)
    health = Health(Heartbeat.create(), settings.stall_timeout_s)
    identity = ModelIdentity(settings.served_model_name, settings.model_version, settings.model_revision)
    spans = tracing(settings.spans_endpoint, identity.name, settings.spans_service)
    service = PredictService(identity, executor, metrics, health, spans)
    tasks = Supervisor(count_restarts(metrics.registry))
    life = _Life(service, Restarts(settings.max_engine_restarts), time.monotonic(), settings, tasks)
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
        keep_running(lambda: executor.run(start, life.ready, life.crashed), life.restart_in_s, metrics.restarted)
    )
    app, guard = build(service, OneModel(service), settings)
    try:
        await run_server(settings, app, guard, _Backend(executor), task, tasks)
    finally:
        await life.end()
