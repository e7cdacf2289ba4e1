"""KServe's V1 `:predict`, and Slipway's own endpoints: one row or several, as people write them."""

import time
import uuid
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta, Struct

from ...predict.executor import InferRequest
from ..errors import invalid
from ..requests.bodies import body_of, checked, decoded
from ..requests.fields import ModelName
from ..requests.shadow import priority_of
from ..responses.sse import json_response
from . import rows
from .infer_request import decompressed
from .served import ListedModel, ServedModels
from .service import PredictService
from .service import checked as checked_tensors

MAX_ROWS = 65_536
MAX_TOP_K = 1000
REQUEST_ID = "X-Request-Id"

Rows = Annotated[list[Any], Meta(min_length=1, max_length=MAX_ROWS)]
Input = dict[str, Any] | str
TopK = Annotated[int, Meta(ge=1, le=MAX_TOP_K)]  # labels of each row, the most likely one first


class PredictRequest(Struct, forbid_unknown_fields=True):
    """The body of /api/v1/predict: one row in `input`, or several in `inputs`."""

    model: ModelName
    input: Input | None = None
    inputs: Rows | None = None
    top_k: TopK | None = None


class PredictParams(Struct, forbid_unknown_fields=True):
    """`version`: a served version, or its revision."""

    version: str | None = None
    top_k: TopK | None = None


class NamedPredictRequest(Struct, forbid_unknown_fields=True):
    """The body of /api/v1/models/{name}/predict."""

    inputs: Rows
    params: PredictParams | None = None


class V1Request(Struct, forbid_unknown_fields=True):
    """The body of KServe's V1 `:predict`."""

    instances: Rows
    parameters: dict[str, Any] | None = None


class PredictApi:
    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/v1/predict", self.predict),
            web.post("/api/v1/models/{name:.+}/predict", self.named),
            web.post("/v1/models/{name:.+}:predict", self.v1),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{name:.+}", self.model),
        ]

    async def predict(self, http: web.Request) -> web.Response:
        began = time.monotonic()
        body = checked(decoded(await body_of(http)), PredictRequest)
        async with self._models.use(body.model) as service:
            if (body.input is None) == (body.inputs is None):
                raise invalid("Write input for one row, or inputs for several.", "input")
            several = body.inputs is not None
            param, given = ("inputs", body.inputs) if several else ("input", [body.input])
            found = await _predict(service, http, given or [], param, body.top_k)
            shared = {
                "latency_ms": _since_ms(began),
                "model_version": service.identity.version,
                "request_id": http.headers.get(REQUEST_ID) or uuid.uuid4().hex,
            }
        shown = [_shown(one) | shared for one in found]
        return json_response(shown if several else shown[0])

    async def named(self, http: web.Request) -> web.Response:
        began = time.monotonic()
        body = checked(decoded(await body_of(http)), NamedPredictRequest)
        version = body.params.version if body.params else None
        top_k = body.params.top_k if body.params else None
        async with self._models.use(http.match_info["name"], version) as service:
            found = await _predict(service, http, body.inputs, "inputs", top_k)
            shown = {
                "predictions": [one.value for one in found],
                "model_version": service.identity.version,
                "latency_ms": _since_ms(began),
            }
        return json_response(shown | ({"top_k": [one.top for one in found]} if top_k else {}))

    async def v1(self, http: web.Request) -> web.Response:
        self._models.check(http.match_info["name"])
        given = await body_of(http)  # read first, so that a slow client holds no model
        async with self._models.use(http.match_info["name"]) as service:
            raw = decompressed(given, http.headers.get("Content-Encoding", ""), http.client_max_size)
            body = checked(decoded(raw), V1Request)
            if body.parameters:
                raise invalid("parameters are not supported by this model.", "parameters")
            found = await _predict(service, http, body.instances, "instances")
        return json_response({"predictions": [one.value for one in found]})

    async def models(self, _: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [_described(one) for one in self._models.listed()]})

    async def model(self, http: web.Request) -> web.Response:
        [listed] = self._models.listed(http.match_info["name"])[:1]
        return json_response(_described(listed))


def _described(one: ListedModel) -> dict[str, Any]:
    """A model as in OpenAI's list of models, with `name` and `ready` as in KServe's V1."""
    shown = {"id": one.identity.name, "object": "model", "created": 0, "owned_by": "slipway"}
    return shown | {"version": one.identity.version, "name": one.identity.name, "ready": one.ready}


async def _predict(
    service: PredictService, http: web.Request, given: list[Any], param: str, top_k: int | None = None
) -> list[rows.Prediction]:
    description = service.description
    if top_k and not (description.labels and description.probabilities):
        raise invalid("top_k is for classifiers that return a probability of each label.", "top_k")
    request = rows.to_request(description, given, param)
    request = InferRequest(request.inputs, request.outputs, priority=priority_of(http.headers))
    outputs = await service.infer(checked_tensors(description, request), lambda index: rows.path(param, index))
    return rows.predictions(description, outputs, len(given), top_k or 0)


def _shown(prediction: rows.Prediction) -> dict[str, Any]:
    found: dict[str, Any] = {"prediction": prediction.value}
    if prediction.confidence is not None:
        found["confidence"] = prediction.confidence
    if prediction.top:
        found["top_k"] = prediction.top
    return found


def _since_ms(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)
