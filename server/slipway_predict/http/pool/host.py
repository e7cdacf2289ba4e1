"""One model of a pool while it is in memory: its executor, its images, and the service that answers its requests."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from slipway_predict.settings import PredictSettings
from slipway_process.model_folder.catalog import PoolEntry
from slipway_process.serving.probes import Health
from slipway_process.serving.tracing import Tracing
from slipway_process.supervisor import OnFailure, Supervisor

from ...batcher import QueueMemory
from ...executor import Executor, Observer
from ...metrics import PredictMetrics
from ...process.image_decoders import DecoderRules, ImageDecoders
from ...process.messages import ModelLoaded
from ..app import rules_of
from ..identity import ModelIdentity
from ..images import ImageInputs
from ..service import PredictService

log = logging.getLogger("slipway.pool")


@dataclass(slots=True)
class PooledModel:
    """A model of a pool in memory. The health of `service` is the model's own, with the heartbeat of the server."""

    settings: PredictSettings
    service: PredictService
    tasks: Supervisor
    decoders: ImageDecoders | None = None
    warm_up: "asyncio.Task[None] | None" = None
    started_s: float = field(default_factory=time.monotonic)

    @property
    def executor(self) -> Executor:
        return self.service.executor

    def ready(self, loaded: ModelLoaded) -> None:
        image = loaded.description.image
        if image and self.decoders is None:
            rules = DecoderRules(image.config, 1, self.settings.max_image_pixels, self.settings.log_level)
            self.decoders = ImageDecoders(rules, self.service.metrics.decoded)
            self.service.images = ImageInputs(image, self.decoders, self.settings.max_queue_size)
            self.warm_up = self.tasks.start("warm-up", self.decoders.warm_up, OnFailure.SHOW, ends=True)
        self.service.health.engine_is_ready()
        seconds = round(time.monotonic() - self.started_s, 2)
        self.service.metrics.loaded(seconds)
        if not loaded.files_bounded:
            log.warning("the kernel has no Landlock: the process of the model can read this server's files")
        identity = self.service.identity
        log.info("loaded", extra={"model": identity.name, "version": identity.version, "seconds": seconds})

    def crashed(self) -> None:
        self.service.health.engine_has_crashed()
        self.service.metrics.crashed()

    def restarted(self) -> None:
        self.started_s = time.monotonic()
        self.service.metrics.restarted()

    def peak_bytes(self) -> int:
        return self.executor.peak_bytes() + (self.decoders.peak_bytes() if self.decoders else 0)

    async def end(self) -> None:
        if self.warm_up:
            self.warm_up.cancel()
        if self.service.images:
            await self.service.images.close()


def host_model(
    settings: PredictSettings,
    entry: PoolEntry,
    metrics: PredictMetrics,
    health: Health,
    tracing: Tracing,
    memory: QueueMemory,
    tasks: Supervisor,
) -> PooledModel:
    """`memory`: of the inputs that wait, which all models share. `tasks`: of the process."""
    executor = Executor(
        rules_of(settings), settings.max_batch_s, Observer(metrics.batch, metrics.failed, metrics.non_finite), memory
    )
    own = Health(health.heartbeat, settings.stall_timeout_s)
    service = PredictService(
        ModelIdentity(entry.name, entry.shown_version or entry.version, entry.version), executor, metrics, own, tracing
    )
    return PooledModel(settings, service, tasks)
