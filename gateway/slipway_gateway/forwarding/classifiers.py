"""Calls classifiers that rules of ModelRoutes name: ModelDeployments of this gateway, bounded in time and number."""

import asyncio
import os

import msgspec
from msgspec import Raw
from multidict import CIMultiDict

from slipway_contracts.model_routes.spec import RouteClassifier
from slipway_process.places import Places

from ..balancing.load_balancer import LoadBalancer
from ..limits.budget import Account
from ..telemetry.metrics import GatewayMetrics
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import headers, prompts
from ..wire.json_values import ABSENT, UNREADABLE, is_null, text_of
from ..wire.request_fields import RequestFields
from .sender import Sender

MOST_TEXT_BYTES = 8 << 10
_PATH = "/api/v1/predict"


class _Prediction(msgspec.Struct):
    prediction: Raw
    confidence: Raw = ABSENT


_PREDICTION = msgspec.json.Decoder(_Prediction)
_NUMBER = msgspec.json.Decoder(float)


class Classifiers:
    """Classifiers of one gateway. `places`: bound their calls."""

    def __init__(self, balancer: LoadBalancer, sender: Sender, metrics: GatewayMetrics, places: Places) -> None:
        self._balancer, self._sender, self._metrics, self._places = balancer, sender, metrics, places

    async def fits(self, namespace: str, classifier: RouteClassifier, fields: RequestFields, account: Account) -> bool:
        """Whether a request fits by a classifier of this namespace; its default where there is no prediction."""
        name = f"{namespace}/{classifier.deployment_ref.name}"
        table = self._balancer.published.current
        route = table.routes.get(name) if table else None
        if table is None or route is None:
            return classifier.default
        fits: bool | None = None
        text = prompts.last_text(fields, MOST_TEXT_BYTES)
        if not text:
            result = "no_text"
        elif self._places.take(account.client):
            result = "busy"
        else:
            activity = self._balancer.enter(name)
            try:
                async with asyncio.timeout(classifier.timeout_milliseconds / 1000):
                    body = await self._predict(name, route.model, text, account)
                fits = None if body is None else read(body, classifier)
                result = "failed" if fits is None else "fits" if fits else "does_not_fit"
            except TimeoutError:
                result = "timeout"
            finally:
                self._balancer.activity.leave(activity)
                self._places.leave(account.client)
        self._metrics.classified(table.id_of(route), result)
        return classifier.default if fits is None else fits

    async def _predict(self, name: str, model: str, text: str, account: Account) -> bytes | None:
        """The response to one attempt at a ready pod; None without one, or with an error."""
        id_ = os.urandom(16).hex()
        endpoint = self._balancer.pick(name, id_, ())
        if endpoint is None:
            return None
        sent = CIMultiDict({"Content-Type": "application/json", headers.REQUEST_ID: id_})
        body = msgspec.json.encode({"model": model, "input": {"text": text}})
        call = UpstreamRequest(model, id_, _PATH, sent, body, client=account.client, route=name, account=account)
        result = await self._sender.attempt(call, endpoint, None)
        if not isinstance(result, UpstreamResponse):
            return None
        try:
            return result.start if result.status == 200 and result.rest is None else None
        finally:
            result.close()


def read(body: bytes, classifier: RouteClassifier) -> bool | None:
    """Whether a response predicts the label with enough confidence; None where it is no prediction of a label."""
    try:
        found = _PREDICTION.decode(body)
        confidence = 1.0 if is_null(found.confidence) else _NUMBER.decode(found.confidence)
    except UNREADABLE:
        return None
    label = text_of(found.prediction)
    return None if label is None else label == classifier.label and confidence >= classifier.threshold
