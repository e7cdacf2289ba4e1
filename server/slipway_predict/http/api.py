"""KServe's V1 `:predict`, and Slipway's own endpoints: one row or several, as people write them."""

import time
import uuid
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from slipway_process.serving.bodies import ModelName, body_of, json_response

from . import json_body
from .bodies import rows
from .bodies.infer_answer import WrittenAnswer
from .bodies.reader import BodyReader, send
from .bodies.row_bodies import NAMED, SIMPLE, V1, PredictParams, RowsAnswer
from .served import ListedModel, ServedModels
from .service import PredictService

REQUEST_ID = "X-Request-Id"


class _Simple(Struct):
    """What chooses the model of /api/v1/predict; the rest of the body is read for that model."""

    model: ModelName


class _Named(Struct):
    """What chooses the version of a named model."""

    params: PredictParams | None = None


_simple, _named = msgspec.json.Decoder(_Simple), msgspec.json.Decoder(_Named)


class PredictApi:
    def __init__(self, models: ServedModels, bodies: BodyReader) -> None:
        self._models, self._bodies = models, bodies

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/v1/predict", self.predict),
            web.post("/api/v1/models/{name:.+}/predict", self.named),
            web.post("/v1/models/{name:.+}:predict", self.v1),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{name:.+}", self.model),
        ]

    async def predict(self, http: web.Request) -> web.StreamResponse:
        began, body = time.monotonic(), await body_of(http)
        request_id = http.headers.get(REQUEST_ID) or uuid.uuid4().hex
        async with self._models.use(json_body.read(body, _simple).model) as service:
            written = await self._written(SIMPLE, http, body, service, began, request_id=request_id)
        return await send(http, written)

    async def named(self, http: web.Request) -> web.StreamResponse:
        began, body = time.monotonic(), await body_of(http)
        params = json_body.read(body, _named).params
        async with self._models.use(http.match_info["name"], params.version if params else None) as service:
            written = await self._written(NAMED, http, body, service, began)
        return await send(http, written)

    async def v1(self, http: web.Request) -> web.StreamResponse:
        self._models.check(http.match_info["name"])
        began, body = time.monotonic(), await body_of(http)  # read first, so that a slow client holds no model
        async with self._models.use(http.match_info["name"]) as service:
            written = await self._written(V1, http, body, service, began)
        return await send(http, written)

    async def _written(
        self, kind: str, http: web.Request, body: bytes, service: PredictService, began_s: float, **shared: Any
    ) -> WrittenAnswer:
        found = await self._bodies.read(kind, http, body, service)
        assert isinstance(found.answer, RowsAnswer), "it has rows"
        param = found.answer.param
        outputs = await service.infer(
            found.request, self._bodies.tenant_of(http), lambda index: rows.path(param, index)
        )
        shared = {"latency_ms": round((time.monotonic() - began_s) * 1000, 3), **shared}
        return await self._bodies.write(found.answer, http, service, outputs, shared)

    async def models(self, _: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [_described(one) for one in self._models.listed()]})

    async def model(self, http: web.Request) -> web.Response:
        [listed] = self._models.listed(http.match_info["name"])[:1]
        return json_response(_described(listed))


def _described(one: ListedModel) -> dict[str, Any]:
    """A model as in OpenAI's list of models, with `name` and `ready` as in KServe's V1."""
    shown = {"id": one.identity.name, "object": "model", "created": 0, "owned_by": "slipway"}
    return shown | {"version": one.identity.version, "name": one.identity.name, "ready": one.ready}
