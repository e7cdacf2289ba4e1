"""Routes of the Open Inference Protocol v2 over REST, with Triton's index, statistics and configuration."""

import math
import time
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from slipway_process.serving.bodies import body_of, json_response

from ..description import ModelDescription
from ..tensors import TensorSpec
from .bodies.questions import INFER
from .bodies.reader import BodyReader, send
from .served import ListedModel, ServedModels
from .service import PredictService

MODEL = r"/v2/models/{name:.+}"
VERSIONED = MODEL + r"/versions/{version:[^/]+}"
SERVER_NAME = "slipway_server"  # as clients of the protocol have always seen it
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]


class InferenceProtocol:
    def __init__(self, models: ServedModels, bodies: BodyReader) -> None:
        self._models, self._bodies = models, bodies

    def routes(self) -> list[web.RouteDef]:
        """Names may contain slashes, so that a path is read from its end: longer endings come first."""
        found: list[web.RouteDef] = []
        # Routes are tried one after the other: the one that takes the load is the first.
        for ending, method, handler in (
            ("infer", web.post, self.infer),
            ("ready", web.get, self.model_ready),
            ("stats", web.get, self.statistics),
            ("config", web.get, self.configuration),
        ):
            found += [method(f"{model}/{ending}", handler) for model in (VERSIONED, MODEL)]
        return [
            *found,
            web.get("/v2", self.server),
            web.get("/v2/health/live", self.live),
            web.get("/v2/health/ready", self.ready),
            web.post("/v2/repository/index", self.index),
            web.get("/v2/models/stats", self.all_statistics),
            web.get(VERSIONED, self.model),
            web.get(MODEL, self.model),
        ]

    # -- the server

    async def server(self, _: web.Request) -> web.Response:
        return json_response({"name": SERVER_NAME, "version": self._models.version, "extensions": EXTENSIONS})

    async def live(self, _: web.Request) -> web.Response:
        return json_response({"live": True})

    async def ready(self, _: web.Request) -> web.Response:
        self._models.check_open()
        return json_response({"ready": True, "live": True})

    async def index(self, _: web.Request) -> web.Response:
        return json_response(
            [
                {"name": one.identity.name, "version": one.identity.version, "state": one.state, "reason": one.reason}
                | ({"revision": one.revision} if one.revision else {})
                for one in self._models.listed()
            ]
        )

    # -- the model

    async def infer(self, http: web.Request) -> web.StreamResponse:
        name, version = _path(http)
        self._models.check(name, version)
        body = await body_of(http)  # read first, so that a slow client holds no model
        began = time.monotonic()
        async with self._models.use(name, version) as service:
            found = await self._bodies.read(INFER, http, body, service)
            request = found.request
            if math.isfinite(request.timeout_s):
                waited_s = time.monotonic() - began  # for a pool to load the model, and for the body to be read
                request = replace(request, timeout_s=max(0.0, request.timeout_s - waited_s))
            outputs = await service.infer(request, self._bodies.tenant_of(http))
            written = await self._bodies.write(found.answer, http, service, outputs)
        return await send(http, written)  # a slow client holds no model

    async def model_ready(self, http: web.Request) -> web.Response:
        name, version = _path(http)
        self._models.check_ready(name, version)
        return json_response({"name": name, "ready": True})

    async def model(self, http: web.Request) -> web.Response:
        name, version = _path(http)
        async with self._models.use(name, version, metadata=True) as service:
            description = service.description
            return json_response(
                {
                    "name": name,
                    "versions": [one.identity.version for one in self._models.listed(name)],
                    "platform": description.platform,
                    "inputs": [_tensor(spec) | _images(service, spec) for spec in description.inputs],
                    "outputs": [_tensor(spec, description) for spec in description.outputs],
                }
            )

    async def configuration(self, http: web.Request) -> web.Response:
        name, version = _path(http)
        async with self._models.use(name, version, metadata=True) as service:
            description, rules = service.description, service.executor.batcher.rules
            return json_response(
                {
                    "name": name,
                    "platform": description.platform,
                    "backend": description.runtime,
                    "max_batch_size": rules.max_size if description.batched else 0,
                    "input": [_configured(spec, description) for spec in description.inputs],
                    "output": [_configured(spec, description) for spec in description.outputs],
                    "dynamic_batching": {"max_queue_delay_microseconds": round(rules.max_delay_s * 1e6)},
                }
            )

    async def statistics(self, http: web.Request) -> web.Response:
        return json_response({"model_stats": [_counts(one) for one in self._models.listed(*_path(http))]})

    async def all_statistics(self, _: web.Request) -> web.Response:
        return json_response({"model_stats": [_counts(one) for one in self._models.listed()]})


def _path(http: web.Request) -> tuple[str, str | None]:
    return http.match_info["name"], http.match_info.get("version")


def _counts(one: ListedModel) -> dict[str, Any]:
    return {"name": one.identity.name, "version": one.identity.version, **one.statistics()}


def _images(service: PredictService, spec: TensorSpec) -> dict[str, Any]:
    """The metadata of an input that also takes images, beside its datatype and shape; empty for other inputs."""
    images, image = service.images, service.description.image
    if images is None or image is None or image.name != spec.name:
        return {}
    return {"parameters": {"image": images.described()}}


def _tensor(spec: TensorSpec, description: ModelDescription | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"features": list(spec.features)} if spec.features else {}
    if description and description.labels and spec.name == description.probabilities:
        parameters["labels"] = description.labels
    shown = {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
    return shown | ({"parameters": parameters} if parameters else {})


def _configured(spec: TensorSpec, description: ModelDescription) -> dict[str, Any]:
    """An input or output as in Triton's configuration, which leaves the batch dimension out."""
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape[description.batched :])}
