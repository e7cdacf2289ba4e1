"""One served classic model: requests in, outputs out, with errors as answers and metrics."""

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import dataclass

from msgspec.structs import replace

from ...predict.batcher import BatchQueueFull, DeadlineMissed
from ...predict.description import ModelDescription
from ...predict.executor import Executor, InferRequest, ModelCrashed, ModelFailed, ModelLost
from ...predict.tensors import Tensor, TensorError, TensorSpec
from ...telemetry.predict_metrics import PredictMetrics
from ...telemetry.tracing import Tracing
from ..errors import HttpError, engine_crashed, invalid, lost, queue_full, too_late, unavailable
from ..probes import Health
from ..texts.rows import row_tokens
from .images import ImageInputs, Where, raise_for_shape, takes


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The name and version that clients see, and the revision that is served."""

    name: str
    version: str
    revision: str = ""

    def has_version(self, version: str) -> bool:
        return version in (self.version, self.revision) and bool(version)


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

    async def infer(self, request: InferRequest, where: Where | None = None) -> list[Tensor]:
        """The outputs of a request that `checked` has let through. `where`: the path of each of its images."""
        self.check_open()
        own = math.isfinite(request.timeout_s)
        try:
            if self.images and takes(self.description, request.inputs[0]):
                outputs = await self._infer_images(self.images, request, where)
            else:
                outputs = await self.executor.infer(request)
        except BatchQueueFull as error:
            raise queue_full(str(error)) from None
        except DeadlineMissed as error:
            raise too_late(str(error)) if own else _overloaded(str(error)) from None
        except ModelFailed as error:
            raise HttpError(
                500, f"The model failed on this request: {error}", code="model_error", outcome="error"
            ) from None
        except ModelCrashed as error:
            raise engine_crashed(str(error)) from None
        except ModelLost as error:
            raise lost(str(error)) from None
        return outputs

    async def _infer_images(self, images: ImageInputs, request: InferRequest, where: Where | None) -> list[Tensor]:
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
            return await self.executor.infer(replace(ready, timeout_s=max(0.0, ends_s - loop.time())))


def _overloaded(message: str) -> HttpError:
    """The request missed the deployment's timeout, not its own: another server may have less work."""
    return HttpError(429, message, code="would_be_late", retry_after_s=1, outcome="refused")


def checked(description: ModelDescription, request: InferRequest) -> InferRequest:
    """The request with its inputs in the model's order. Raises HttpError with the name of the input that is wrong."""
    given = {tensor.name: tensor for tensor in request.inputs}
    if len(given) != len(request.inputs):
        raise invalid("An input is there twice: send each one once.", "inputs")
    for name in given:
        if description.input(name) is None:
            known = ", ".join(spec.name for spec in description.inputs)
            raise invalid(f"The model has no input {name!r}; its inputs are {known}.", name)
    ordered = []
    for spec in description.inputs:
        tensor = given.get(spec.name)
        if tensor is None:
            raise invalid(
                f"The input {spec.name!r} is missing: {spec.datatype} of the shape {list(spec.shape)}.", spec.name
            )
        _check_input(description, spec, tensor)
        ordered.append(tensor)
    if description.batched:
        _check_rows(ordered)
    outputs = request.outputs or tuple(spec.name for spec in description.outputs)
    for name in outputs:
        if description.output(name) is None:
            known = ", ".join(spec.name for spec in description.outputs)
            raise invalid(f"The model has no output {name!r}; its outputs are {known}.", name)
    tokens = row_tokens(description.text, ordered) if description.text else 0
    return InferRequest(
        tuple(ordered), outputs, request.parameters, request.priority, request.timeout_s, row_tokens=tokens
    )


def _check_input(description: ModelDescription, spec: TensorSpec, tensor: Tensor) -> None:
    if takes(description, tensor):
        raise_for_shape(tensor, spec)
        return
    try:
        spec.check(tensor)
    except TensorError as error:
        raise invalid(f"The {error}.", spec.name) from None


def _check_rows(tensors: list[Tensor]) -> None:
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.rows != first.rows:
            raise invalid(
                f"The input {tensor.name!r} has {tensor.rows} rows, {first.name!r} {first.rows}: send equally many.",
                tensor.name,
            )
