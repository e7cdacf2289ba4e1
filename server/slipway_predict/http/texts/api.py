"""Routes of rerankers (`/v1/rerank`, Cohere's `/v2/rerank`, `/v1/score`) and of classifiers of texts (`/classify`)."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy
from aiohttp import web

from slipway_process.serving.bodies import body_of, json_response
from slipway_process.serving.errors import HttpError, invalid
from slipway_process.serving.priority import priority_of
from slipway_process.serving.tenant import Tenants

from ...description import INDEPENDENT
from ...executor import InferRequest
from ...tensors import Array
from ..bodies.rows import probabilities_of
from ..checking import checked
from ..json_body import counted
from ..served import ServedModels
from ..service import PredictService
from .bodies import ClassifyRequest, RerankDocument, RerankRequest, ScoreRequest
from .rows import MAX_BYTES, OUTPUTS, Scored, check, column, scored

_RERANK, _SCORE = msgspec.json.Decoder(RerankRequest), msgspec.json.Decoder(ScoreRequest)
_CLASSIFY = msgspec.json.Decoder(ClassifyRequest)


class TextApi:
    def __init__(self, models: ServedModels, tenants: Tenants) -> None:
        self._models, self._tenants = models, tenants

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/rerank", self.rerank),
            web.post("/v2/rerank", self.rerank),
            web.post("/rerank", self.rerank),
            web.post("/v1/score", self.score),
            web.post("/score", self.score),
            web.post("/classify", self.classify),
        ]

    async def rerank(self, http: web.Request) -> web.Response:
        body = counted(await body_of(http), _RERANK)
        texts = [one.text if isinstance(one, RerankDocument) else one for one in body.documents]
        check(body.query, "query")
        for index, text in enumerate(texts):
            check(text, f"documents[{index}]")
        async with self._models.use(body.model) as service:
            found = await self._pairs(service, http, [body.query] * len(texts), texts, "documents")
        scores = _scores(found, body.activates)
        best = numpy.argsort(-scores, kind="stable").tolist()[: body.top_n or len(texts)]
        results = [_result(found, index, float(scores[index])) for index in best]
        if body.return_documents:
            results = [one | {"document": {"text": texts[one["index"]]}} for one in results]
        return json_response({"id": _id("rerank"), "model": body.model, "results": results, "usage": found.usage})

    async def score(self, http: web.Request) -> web.Response:
        body = counted(await body_of(http), _SCORE)
        first, second = _checked(body.text_1, "text_1"), _checked(body.text_2, "text_2")
        if len(first) not in (1, len(second)):
            raise invalid(
                f"text_1 has {len(first)} texts and text_2 {len(second)}: send one text in text_1, or equally many.",
                "text_1",
            )
        pairs = first * len(second) if len(first) == 1 else first
        async with self._models.use(body.model) as service:
            found = await self._pairs(service, http, pairs, second, "text_2")
        scores = _scores(found, body.activates)
        data = [
            {"index": index, "object": "score", "score": float(value)} | _cut(found, index)
            for index, value in enumerate(scores)
        ]
        return json_response(_list("score", body.model, data, found))

    async def classify(self, http: web.Request) -> web.Response:
        body = counted(await body_of(http), _CLASSIFY)
        texts = _checked(body.input, "input")
        async with self._models.use(body.model) as service:
            description = service.description
            if description.text is None or not description.labels:
                raise _not_for(body.model, "classifies no texts", "a model with spec.model.task: classify")
            found = await self._infer(service, http, [texts], "input")
        activated = (
            [probabilities_of(row, description.scores) for row in found.logits] if body.activates else found.logits
        )
        data = [
            {
                "index": index,
                "label": description.labels[int(row.argmax())],
                "probs": row.tolist(),
                "num_classes": len(description.labels),
            }
            | _cut(found, index)
            for index, row in enumerate(activated)
        ]
        return json_response({"labels": description.labels} | _list("classify", body.model, data, found))

    async def _pairs(
        self, service: PredictService, http: web.Request, first: Sequence[str], second: Sequence[str], param: str
    ) -> Scored:
        text = service.description.text
        if text is None or not text.pairs:
            raise _not_for(service.identity.name, "is no reranker", "a model with spec.model.task: rerank")
        return await self._infer(service, http, [first, second], param)

    async def _infer(
        self, service: PredictService, http: web.Request, columns: Sequence[Sequence[str]], param: str
    ) -> Scored:
        description = service.description
        tensors = tuple(column(spec.name, texts) for spec, texts in zip(description.inputs, columns, strict=True))
        if (total := sum(len(item) for one in tensors for item in one.array)) > MAX_BYTES:
            raise invalid(f"{param} has rows of {total} bytes together; {MAX_BYTES} is the limit.", param)
        request = checked(description, InferRequest(tensors, OUTPUTS, priority=priority_of(http.headers)))
        return scored(await service.infer(request, self._tenants.of(http.headers)))


def _checked(given: str | list[str], param: str) -> list[str]:
    if isinstance(given, str):
        return [check(given, param)]
    return [check(text, f"{param}[{index}]") for index, text in enumerate(given)]


def _scores(found: Scored, activate: bool) -> Array:
    """The one score of each row: between 0 and 1, or the model's own number."""
    numbers = found.logits[:, 0]
    return probabilities_of(numbers, INDEPENDENT) if activate else numbers


def _result(found: Scored, index: int, score: float) -> dict[str, Any]:
    return {"index": index, "relevance_score": score} | _cut(found, index)


def _cut(found: Scored, index: int) -> dict[str, Any]:
    return {"truncated": True} if found.truncated[index] else {}


def _list(kind: str, model: str, data: list[dict[str, Any]], found: Scored) -> dict[str, Any]:
    shown = {"id": _id(kind), "object": "list", "created": int(time.time()), "model": model}
    return shown | {"data": data, "usage": found.usage | {"completion_tokens": 0}}


def _id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _not_for(name: str, what: str, advice: str) -> HttpError:
    return invalid(f"The model {name!r} {what}: ask {advice}.", "model")
