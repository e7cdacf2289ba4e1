"""Responses of the Open Inference Protocol v2: outputs in JSON, or as bytes behind it."""

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from ...predict import json_data
from ...predict.tensors import Tensor, TensorError, to_bytes
from ..errors import invalid
from .infer_request import HEADER_LENGTH, Incoming
from .service import ModelIdentity

_encoder = msgspec.json.Encoder()


def answer(identity: ModelIdentity, incoming: Incoming, outputs: Sequence[Tensor]) -> web.Response:
    """The response: each output in JSON or as bytes behind it. Raises HttpError for an output that JSON cannot hold."""
    described, binary = [], []
    for tensor in outputs:
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if incoming.wants_binary(tensor.name):
            data = to_bytes(tensor)
            one["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            one["data"] = _json(tensor)
        described.append(one)
    head: dict[str, Any] = {"model_name": identity.name, "model_version": identity.version, "outputs": described}
    if incoming.id:
        head["id"] = incoming.id
    body = _encoder.encode(head)
    if not binary:
        return web.Response(body=body, content_type="application/json")
    headers = {HEADER_LENGTH: str(len(body))}
    return web.Response(body=b"".join([body, *binary]), headers=headers, content_type="application/octet-stream")


def _json(tensor: Tensor) -> list[Any]:
    try:
        return json_data.write(tensor)
    except TensorError as error:
        raise invalid(f"The {error}.", tensor.name) from None
