"""One served classic model: requests in, outputs out, with errors as answers and metrics."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack

import numpy
from msgspec.structs import replace

from slipway_process.serving.errors import HttpError, engine_crashed, invalid, lost, queue_full, too_late, unavailable
from slipway_process.serving.probes import Health
from slipway_process.serving.tracing import Tracing

from ..batcher import BatchQueueFull, DeadlineMissed
from ..description import ModelDescription
from ..executor import Executor, InferRequest, ModelCrashed, ModelFailed, ModelLost
from ..metrics import PredictMetrics
from ..tensors import NUMPY, Tensor, finite
from .identity import ModelIdentity
from .images import ImageInputs, Where, takes


class PredictService:
    def __init__(
        self, identity: ModelIdentity, executor: Executor, metrics: PredictMetrics, health: Health, tracing: Tracing
    ) -> None:
        self.identity, self.executor = identity, executor
        self.metrics, self.health, self.tracing = metrics, health, tracing
        self.images: ImageInputs | None = None  # of a model that takes images, once it is loaded

    def check_open(self) -> None:
        if self.health.draining:
            raise unavailable("draining", "This server is shutting down: ask another one.")
        if not self.health.loaded:
            raise unavailable(*self.health.why_not_loaded)

    def check_model(self, name: str, version: str | None = None) -> None:
        """Raises HttpError 404 for another model or version."""
        if name != self.identity.name:
            message = f"The model {name!r} does not exist here; this server has {self.identity.name!r}."
            raise HttpError(404, message, param="model", code="model_not_found")
        if version is not None and not self.identity.has_version(version):
            message = f"Version {version!r} of {name!r} is not served here; this server has {self.identity.version!r}."
            raise HttpError(404, message, param="version", code="version_not_found")

    @property
    def description(self) -> ModelDescription:
        self.check_open()
        assert self.executor.description, "it is loaded"
        return self.executor.description

    async def infer(self, request: InferRequest, tenant: str, where: Where | None = None) -> list[Tensor]:
        """The outputs of a request that was `checked`. `tenant`: "" for none. `where`: the path of each image."""
        self.check_open()
        own = math.isfinite(request.timeout_s)
        if self.description.batched and not request.inputs[0].rows:
            return _without_rows(self.description, request.outputs)
        try:
            if self.images and takes(self.description, request.inputs[0]):
                outputs = await self._infer_images(self.images, request, tenant, where)
            else:
                outputs = await self.executor.infer(request, tenant)
        except BatchQueueFull as error:
            raise queue_full(str(error)) from None
        except DeadlineMissed as error:
            raise too_late(str(error)) if own else _overloaded(str(error)) from None
        except ModelFailed as error:
            if name := _not_finite(request):
                message = f"The model failed on this request, whose input {name!r} has NaN or infinite numbers: {error}"
                raise invalid(message, name, "not_finite") from None
            raise HttpError(
                500, f"The model failed on this request: {error}", code="model_error", outcome="error"
            ) from None
        except ModelCrashed as error:
            raise engine_crashed(str(error)) from None
        except ModelLost as error:
            raise lost(str(error)) from None
        return outputs

    async def _infer_images(
        self, images: ImageInputs, request: InferRequest, tenant: str, where: Where | None
    ) -> list[Tensor]:
        """As `infer`, for a request with images: its timeout covers decoding and model together."""
        loop = asyncio.get_running_loop()
        timeout_s = min(request.timeout_s, self.executor.batcher.rules.timeout_s)
        ends_s = loop.time() + timeout_s
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(timeout_s if math.isfinite(timeout_s) else None):
                    ready = await stack.enter_async_context(images.tensors(request, where))
            except TimeoutError:
                raise DeadlineMissed(f"The images of the request were not decoded within {timeout_s:g} s.") from None
            return await self.executor.infer(replace(ready, timeout_s=max(0.0, ends_s - loop.time())), tenant)


def _not_finite(request: InferRequest) -> str | None:
    """The input with numbers that not every model takes. They are the client's: the model is not to blame."""
    return next((tensor.name for tensor in request.inputs if not finite(tensor)), None)


def _without_rows(description: ModelDescription, outputs: Sequence[str]) -> list[Tensor]:
    """The outputs for no row. Many libraries fail where there is none."""
    specs = [spec for name in outputs if (spec := description.output(name)) is not None]
    shapes = [(0, *(max(0, size) for size in spec.shape[1:])) for spec in specs]
    return [
        Tensor(spec.name, spec.datatype, numpy.empty(shape, NUMPY[spec.datatype]))
        for spec, shape in zip(specs, shapes, strict=True)
    ]


def _overloaded(message: str) -> HttpError:
    """The request missed the deployment's timeout, not its own: another server may have less work."""
    return HttpError(429, message, code="would_be_late", retry_after_s=1, outcome="refused")
