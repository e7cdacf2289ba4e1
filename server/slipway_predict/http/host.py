"""One model and what answers its requests: its executor, its images, and the service."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from slipway_process.serving.probes import Health
from slipway_process.serving.tracing import Tracing
from slipway_process.supervisor import OnFailure, Supervisor

from ..batcher import BatchRules, QueueMemory
from ..executor import Executor, Observer
from ..metrics import PredictMetrics
from ..process.image_decoders import DecoderRules, ImageDecoders
from ..process.messages import ModelLoaded
from ..settings import PredictSettings
from .identity import ModelIdentity
from .images import ImageInputs
from .service import PredictService


@dataclass(slots=True)
class HostedModel:
    """A model in memory. `decoders`: most processes that decode its images. `event`: of the log when it is ready."""

    settings: PredictSettings
    service: PredictService
    tasks: Supervisor
    decoders: int
    log: logging.Logger
    event: str
    _images: ImageDecoders | None = None
    _warm_up: "asyncio.Task[None] | None" = None
    _started_s: float = field(default_factory=time.monotonic)

    @property
    def executor(self) -> Executor:
        return self.service.executor

    def ready(self, loaded: ModelLoaded) -> None:
        described, identity = loaded.description, self.service.identity
        if described.image and self._images is None:
            settings = self.settings
            rules = DecoderRules(described.image.config, self.decoders, settings.max_image_pixels, settings.log_level)
            self._images = ImageDecoders(rules, self.service.metrics.decoded)
            self.service.images = ImageInputs(described.image, self._images, settings.max_queue_size)
            self._warm_up = self.tasks.start("warm-up", self._images.warm_up, OnFailure.SHOW, ends=True)
        self.service.health.engine_is_ready()
        seconds = round(time.monotonic() - self._started_s, 2)
        self.service.metrics.loaded(seconds)
        if not loaded.files_bounded:
            self.log.warning("the kernel has no Landlock: the process of the model can read this server's files")
        fields = {"model": identity.name, "version": identity.version, "seconds": seconds}
        kind = {"runtime": described.runtime, "batched": described.batched, "task": described.task}
        self.log.info(self.event, extra=fields | kind)

    def crashed(self) -> None:
        self.service.health.engine_has_crashed()
        self.service.metrics.crashed()

    def restarted(self) -> None:
        self._started_s = time.monotonic()
        self.service.metrics.restarted()

    def peak_bytes(self) -> int:
        return self.executor.peak_bytes() + (self._images.peak_bytes() if self._images else 0)

    async def end(self) -> None:
        if self._warm_up:
            self._warm_up.cancel()
        if self.service.images:
            await self.service.images.close()


def service_of(
    settings: PredictSettings,
    identity: ModelIdentity,
    metrics: PredictMetrics,
    health: Health,
    tracing: Tracing,
    memory: QueueMemory,
) -> PredictService:
    """What answers requests for a model. `memory`: of the inputs that wait, which all models of a server share."""
    observer = Observer(metrics.batch, metrics.failed, metrics.non_finite)
    executor = Executor(_rules_of(settings), settings.max_batch_s, observer, memory)
    return PredictService(identity, executor, metrics, health, tracing)


def _rules_of(settings: PredictSettings) -> BatchRules:
    timeout_s = settings.request_timeout_ms / 1000 if settings.request_timeout_ms else float("inf")
    return BatchRules(
        settings.max_batch_size, settings.max_queue_delay_microseconds / 1e6, settings.max_queue_size, timeout_s
    )
