"""Routes of the Open Inference Protocol v2 over REST, with Triton's index, statistics and configuration."""

from typing import Any

from aiohttp import web

from slipway_server import __name__ as server_name

from ...predict.description import ModelDescription
from ...predict.tensors import TensorSpec
from ..responses.sse import json_response
from . import infer_message, infer_request
from .infer_answer import answer
from .service import PredictService, checked

MODEL = r"/v2/models/{name:.+}"
VERSIONED = MODEL + r"/versions/{version:[^/]+}"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]


class InferenceProtocol:
    def __init__(self, service: PredictService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """Names may contain slashes, so that a path is read from its end: longer endings come first."""
        found = [
            web.get("/v2", self.server),
            web.get("/v2/health/live", self.live),
            web.get("/v2/health/ready", self.ready),
            web.post("/v2/repository/index", self.index),
        ]
        for model in (VERSIONED, MODEL):
            found += [
                web.post(f"{model}/infer", self.infer),
                web.get(f"{model}/ready", self.model_ready),
                web.get(f"{model}/stats", self.statistics),
                web.get(f"{model}/config", self.configuration),
            ]
        return [
            *found,
            web.get("/v2/models/stats", self.all_statistics),
            web.get(VERSIONED, self.model),
            web.get(MODEL, self.model),
        ]

    # -- the server

    async def server(self, _: web.Request) -> web.Response:
        return json_response({"name": server_name, "version": self._service.identity.version, "extensions": EXTENSIONS})

    async def live(self, _: web.Request) -> web.Response:
        return json_response({"live": True})

    async def ready(self, _: web.Request) -> web.Response:
        self._service.check_open()
        return json_response({"ready": True, "live": True})

    async def index(self, _: web.Request) -> web.Response:
        identity, health = self._service.identity, self._service.health
        state = "READY" if health.loaded else "LOADING"
        return json_response([{"name": identity.name, "version": identity.version, "state": state, "reason": ""}])

    # -- the model

    async def infer(self, http: web.Request) -> web.Response:
        self._check(http)
        description = self._service.description
        if http.content_type == infer_message.CONTENT_TYPE:
            incoming, written = await infer_message.read(http), infer_message.answer
        else:
            incoming, written = await infer_request.read(http, description), answer
        request = checked(description, incoming.request)
        return written(self._service.identity, incoming, await self._service.infer(request))

    async def model_ready(self, http: web.Request) -> web.Response:
        self._check(http)
        self._service.check_open()
        return json_response({"name": self._service.identity.name, "ready": True})

    async def model(self, http: web.Request) -> web.Response:
        self._check(http)
        description, identity = self._service.description, self._service.identity
        return json_response(
            {
                "name": identity.name,
                "versions": [identity.version],
                "platform": description.platform,
                "inputs": [_tensor(spec) | self._images(spec) for spec in description.inputs],
                "outputs": [_tensor(spec, description) for spec in description.outputs],
            }
        )

    def _images(self, spec: TensorSpec) -> dict[str, Any]:
        """That the input takes images too, in place of its own datatype and shape."""
        images, image = self._service.images, self._service.description.image
        if images is None or image is None or image.name != spec.name:
            return {}
        return {"parameters": {"image": images.described()}}

    async def configuration(self, http: web.Request) -> web.Response:
        self._check(http)
        description, identity = self._service.description, self._service.identity
        rules = self._service.executor.batcher.rules
        return json_response(
            {
                "name": identity.name,
                "platform": description.platform,
                "backend": description.runtime,
                "max_batch_size": rules.max_size if description.batched else 0,
                "input": [_configured(spec, description) for spec in description.inputs],
                "output": [_configured(spec, description) for spec in description.outputs],
                "dynamic_batching": {"max_queue_delay_microseconds": round(rules.max_delay_s * 1e6)},
            }
        )

    async def statistics(self, http: web.Request) -> web.Response:
        self._check(http)
        return json_response({"model_stats": [self._counts()]})

    async def all_statistics(self, _: web.Request) -> web.Response:
        return json_response({"model_stats": [self._counts()]})

    def _counts(self) -> dict[str, Any]:
        identity = self._service.identity
        return {"name": identity.name, "version": identity.version, **self._service.metrics.statistics()}

    def _check(self, http: web.Request) -> None:
        self._service.check_model(http.match_info["name"], http.match_info.get("version"))


def _tensor(spec: TensorSpec, description: ModelDescription | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"features": list(spec.features)} if spec.features else {}
    if description and description.labels and spec.name == description.probabilities:
        parameters["labels"] = description.labels
    shown = {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
    return shown | ({"parameters": parameters} if parameters else {})


def _configured(spec: TensorSpec, description: ModelDescription) -> dict[str, Any]:
    """Triton leaves the dimension of rows out."""
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape[description.batched :])}
