"""Responses of the Open Inference Protocol v2: outputs in JSON or as bytes behind it, and in protobuf."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from slipway_process.serving.errors import invalid

from ... import json_data
from ...tensors import Tensor, TensorError, to_bytes
from ..identity import ModelIdentity
from ..message_types import ModelInferResponse
from .limits import Limits

HEADER_LENGTH = "Inference-Header-Content-Length"
PROTOBUF = "application/x-protobuf"
_encoder = msgspec.json.Encoder()


class WrittenAnswer(Struct, frozen=True):
    """A response without its status. `headers`: beside the type of its content."""

    body: bytes | memoryview
    content_type: str = "application/json"
    headers: dict[str, str] = {}


class InferAnswer(Struct, frozen=True, tag=True):
    """How a client of the protocol wants its answer. `binary`: outputs as bytes; `named` overrides it for some."""

    id: str = ""
    binary: bool = False
    named: Mapping[str, bool] = {}
    protobuf: bool = False

    def wants_binary(self, name: str) -> bool:
        return self.protobuf or self.named.get(name, self.binary)

    def check(self, outputs: Sequence[Tensor], limits: Limits) -> None:
        """Raises TooLarge for outputs above the limits. Numbers as bytes cost a copy, whatever their number."""
        limits.check_texts(outputs)
        values = 0
        for one in outputs:
            if not self.wants_binary(one.name):
                values += one.array.size
        limits.check_values(values)

    def written(self, identity: ModelIdentity, outputs: Sequence[Tensor]) -> WrittenAnswer:
        """The response. Raises HttpError for an output that JSON cannot hold."""
        return _message(identity, self, outputs) if self.protobuf else _json_and_bytes(identity, self, outputs)


def _message(identity: ModelIdentity, answer: InferAnswer, outputs: Sequence[Tensor]) -> WrittenAnswer:
    """The response with all outputs as raw bytes, because clients read only some of the typed contents."""
    message = ModelInferResponse(model_name=identity.name, model_version=identity.version, id=answer.id)
    for tensor in outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(to_bytes(tensor))
    return WrittenAnswer(message.SerializeToString(), PROTOBUF)


def _json_and_bytes(identity: ModelIdentity, answer: InferAnswer, outputs: Sequence[Tensor]) -> WrittenAnswer:
    described, binary = [], []
    for tensor in outputs:
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if answer.wants_binary(tensor.name):
            data = to_bytes(tensor)
            one["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            one["data"] = _json(tensor)
        described.append(one)
    head: dict[str, Any] = {"model_name": identity.name, "model_version": identity.version, "outputs": described}
    if answer.id:
        head["id"] = answer.id
    body = _encoder.encode(head)
    if not binary:
        return WrittenAnswer(body)
    headers = {HEADER_LENGTH: str(len(body))}
    return WrittenAnswer(b"".join([body, *binary]), "application/octet-stream", headers)


def _json(tensor: Tensor) -> list[Any] | msgspec.Raw:
    try:
        return json_data.write(tensor)
    except TensorError as error:
        raise invalid(f"The {error}.", tensor.name) from None
