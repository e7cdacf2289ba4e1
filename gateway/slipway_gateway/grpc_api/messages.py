"""Messages of the protocol, without a library: names out of requests, and the server's JSON as responses (pure)."""

from dataclasses import dataclass
from typing import Any

import msgspec

from slipway_process import protobuf

from ..wire.errors import RequestError, invalid

MAX_NAME = 512


@dataclass(frozen=True, slots=True)
class ModelName:
    """What a request names; "" where it does not. `request_id`: of its inference."""

    name: str
    version: str
    request_id: str = ""


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Model(msgspec.Struct):
    name: str
    versions: list[str] = []
    platform: str = ""
    inputs: list[_Tensor] = []
    outputs: list[_Tensor] = []


_MODEL = msgspec.json.Decoder(_Model)


def model_of(message: bytes) -> ModelName:
    """Of ModelInferRequest, ModelReadyRequest and ModelMetadataRequest, whose first two fields are the same.

    Raises:
        RequestError: it is no message.
    """
    try:
        found = protobuf.texts(message, 1, 2, 3)
    except protobuf.WireError as error:
        raise invalid("invalid_message", f"The message cannot be read: {error}.") from None
    name, version = found.get(1, ""), found.get(2, "")
    if max(len(name), len(version)) > MAX_NAME:
        raise invalid("invalid_message", f"The name of a model has more than {MAX_NAME} characters.")
    return ModelName(name, version, found.get(3, "")[:MAX_NAME])


def truth(value: bool) -> bytes:
    """ServerLiveResponse, ServerReadyResponse and ModelReadyResponse."""
    return protobuf.number_field(1, value)


def server_metadata(server: dict[str, Any]) -> bytes:
    extensions = b"".join(protobuf.text_field(3, name) for name in server["extensions"])
    return protobuf.text_field(1, server["name"]) + protobuf.text_field(2, server["version"]) + extensions


def repository_index(models: list[dict[str, str]]) -> bytes:
    fields = ("name", "version", "state", "reason")
    return b"".join(
        protobuf.bytes_field(1, *(protobuf.text_field(number, model[name]) for number, name in enumerate(fields, 1)))
        for model in models
    )


def wants_ready_alone(message: bytes) -> bool:
    """Of a RepositoryIndexRequest. Raises RequestError."""
    try:
        return any(field.number == 2 and field.value for field in protobuf.fields(message))
    except protobuf.WireError as error:
        raise invalid("invalid_message", f"The message cannot be read: {error}.") from None


def model_metadata(body: bytes) -> bytes:
    """Raises RequestError 502 where the server's description is none."""
    try:
        model = _MODEL.decode(body)
        return b"".join(
            [
                protobuf.text_field(1, model.name),
                *(protobuf.text_field(2, version) for version in model.versions),
                protobuf.text_field(3, model.platform),
                *(protobuf.bytes_field(4, _tensor(one)) for one in model.inputs),
                *(protobuf.bytes_field(5, _tensor(one)) for one in model.outputs),
            ]
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RequestError(502, "bad_response", "The server's description of the model cannot be read.") from None


def _tensor(tensor: _Tensor) -> bytes:
    named = protobuf.text_field(1, tensor.name) + protobuf.text_field(2, tensor.datatype)
    return named + protobuf.packed_field(3, tensor.shape)


def stream_answer(response: bytes) -> bytes:
    """ModelStreamInferResponse with a ModelInferResponse."""
    return protobuf.bytes_field(2, response)


def stream_error(text: str, request_id: str) -> bytes:
    """The same with an error; the response beside it has the id alone, as Triton sends it."""
    return protobuf.text_field(1, text) + protobuf.bytes_field(2, protobuf.text_field(3, request_id))
