"""Calls a ModelDeployment with a classifier of texts: one request for all texts of a call, to one of its pods."""

import math
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from slipway_contracts.guards import GuardDeployment
from slipway_process.network.guarded import read_body

from ..balancing.load_balancer import LoadBalancer
from ..wire.headers import REQUEST_ID
from ..wire.inference import PREDICT
from ..wire.json_values import UNREADABLE
from .protocol import GuardFailed, sanitized
from .verdict import BLOCKED, Verdict

MAX_RESPONSE_BYTES = 256 << 10


class _Prediction(msgspec.Struct):
    prediction: Any
    confidence: float | None = None


_RESPONSE = msgspec.json.Decoder(list[_Prediction] | _Prediction)


class ClassifierClient:
    """Calls pods of this cluster. `session`: the gateway's own for pods."""

    def __init__(self, session: aiohttp.ClientSession, balancer: LoadBalancer) -> None:
        self._session, self._balancer = session, balancer

    async def verdict(
        self, deployment: GuardDeployment, namespace: str, texts: Mapping[str, str], request_id: str
    ) -> Verdict:
        """The decision about texts. The caller limits its time.

        Raises:
            GuardFailed: no pod predicts a label for each of them.
        """
        name = f"{namespace}/{deployment.name}"
        route = self._balancer.published.find(name)
        endpoint = self._balancer.pick(name, f"request:{request_id}", ()) if route is not None else None
        if route is None or endpoint is None:
            self._balancer.request_wake(name)
            raise GuardFailed(f"the ModelDeployment {deployment.name} has no ready pod")
        body = msgspec.json.encode({"model": route.model, "inputs": list(texts.values())})
        counts = self._balancer.in_flight.add(endpoint, first=False)
        try:
            received = await self._post(endpoint.url, body, request_id)
        except (aiohttp.ClientError, OSError, ValueError):
            raise GuardFailed(f"no pod of the ModelDeployment {deployment.name} can be reached") from None
        finally:
            self._balancer.in_flight.remove(endpoint, counts)
        return _verdict(deployment, _read(received, len(texts)))

    async def _post(self, url: str, body: bytes, request_id: str) -> bytes:
        target = URL(url + PREDICT, encoded=True)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", REQUEST_ID: request_id}
        async with self._session.post(target, data=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise GuardFailed(f"the response of its classifier has status {response.status}")
            received = await read_body(response, MAX_RESPONSE_BYTES)
            if len(received) > MAX_RESPONSE_BYTES:
                raise GuardFailed(f"the response of its classifier has more than {MAX_RESPONSE_BYTES >> 10} KiB")
            return received


def _read(response: bytes, texts: int) -> list[_Prediction]:
    try:
        found = _RESPONSE.decode(response)
    except UNREADABLE:
        raise GuardFailed("the response of its classifier has no predictions") from None
    predictions = found if isinstance(found, list) else [found]
    if len(predictions) != texts:
        raise GuardFailed("the response of its classifier has not one prediction for each text")
    return predictions


def _verdict(deployment: GuardDeployment, predictions: list[_Prediction]) -> Verdict:
    for one in predictions:
        if not isinstance(one.prediction, str | int | float):
            raise GuardFailed("the response of its classifier has a prediction that is no label")
        label = one.prediction if isinstance(one.prediction, str) else msgspec.json.encode(one.prediction).decode()
        confidence = 1.0 if one.confidence is None or not math.isfinite(one.confidence) else one.confidence
        if label in deployment.block_labels and confidence * 100 >= deployment.min_confidence:
            return Verdict(BLOCKED, sanitized(f"it was classified as {label}"))
    return Verdict()
