"""Messages of the protocol, without generated code: reads names in requests, encodes JSON as responses (pure)."""

from dataclasses import dataclass
from typing import Any

import msgspec

from slipway_contracts import protobuf

from ..wire.errors import RequestError, invalid

MAX_NAME = 512
MAX_DESCRIPTION_BYTES = 256 << 10  # of a model: more than thousands of tensors need


@dataclass(frozen=True, slots=True)
class ModelName:
    """The model, version and id of inference that a request names; "" for each that it does not name."""

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
    """The model that a ModelInferRequest, ModelReadyRequest or ModelMetadataRequest names: fields 1 and 2 of each.

    Raises:
        RequestError: the message cannot be read, or a name is too long (400).
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
    """Encodes ServerLiveResponse, ServerReadyResponse or ModelReadyResponse: each one has one bool, in field 1."""
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
    """Whether a RepositoryIndexRequest has `ready` set. Raises RequestError 400: the message cannot be read."""
    try:
        return any(field.number == 2 and field.value for field in protobuf.fields(message))
    except protobuf.WireError as error:
        raise invalid("invalid_message", f"The message cannot be read: {error}.") from None


def model_metadata(body: bytes) -> bytes:
    """Encodes a server's JSON as ModelMetadataResponse. Raises RequestError 502: it is no description of a model."""
    try:
        if len(body) > MAX_DESCRIPTION_BYTES:
            raise msgspec.ValidationError(f"it has more than {MAX_DESCRIPTION_BYTES} bytes")
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
    """Encodes a ModelStreamInferResponse. `response`: an encoded ModelInferResponse."""
    return protobuf.bytes_field(2, response)


def stream_error(text: str, request_id: str) -> bytes:
    """Encodes a ModelStreamInferResponse with an error; its `infer_response` has the id alone, as Triton sends it."""
    return protobuf.text_field(1, text) + protobuf.bytes_field(2, protobuf.text_field(3, request_id))
