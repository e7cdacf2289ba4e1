"""Requests and responses of the Open Inference Protocol in protobuf, as gRPC has them: ModelInferRequest and -Response.

A gateway terminates gRPC and posts the bytes of the message: in it, gRPC and REST requests take the same path.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from google.protobuf.message import DecodeError

from slipway_contracts import protobuf
from slipway_process.serving.errors import invalid
from slipway_process.serving.priority import priority_of

from ...executor import InferRequest
from ...json_data import dumps
from ...tensors import BINARY_ONLY, BOOL, BYTES, NUMPY, Tensor, TensorError, elements_of, from_bytes
from ..message_types import ModelInferRequest
from .infer_answer import InferAnswer
from .infer_request import CONTENT_ENCODING, MAX_TENSORS, Incoming, check_names, level, timeout_s
from .limits import Limits

# How long the client waits, as gRPC writes it; the gateway sends what is left of it.
TIMEOUT = "grpc-timeout"
_DURATION = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_NAME = 512
_RAW = 7  # the field of raw_input_contents
_LISTS = {5: "inputs", 6: "outputs", _RAW: "raw_input_contents"}

# The field of `contents` that has the elements of a datatype; FP16 and BF16 have none.
CONTENTS = {
    BOOL: "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


def read(body: bytes, headers: Mapping[str, str], limits: Limits) -> Incoming:
    """The request in the bytes of a ModelInferRequest.

    Raises:
        HttpError: the protocol does not allow it.
        TooLarge: it is above the limits.
    """
    if headers.get(CONTENT_ENCODING, "identity").strip().lower() != "identity":
        raise invalid("Send a protobuf message without Content-Encoding.", CONTENT_ENCODING)
    try:
        return _incoming(_parsed(body, limits), headers, limits)
    except TensorError as error:
        raise invalid(f"{str(error)[:1].upper()}{str(error)[1:]}.", "inputs") from None


def _parsed(body: bytes, limits: Limits) -> Any:
    """Decode the message. Its tensors are counted before: an empty one has two bytes, and hundreds as an object."""
    try:
        counts, raw_bytes = dict.fromkeys(_LISTS, 0), 0
        for field in protobuf.fields(body):
            if field.number in counts:
                counts[field.number] += 1
                raw_bytes += field.stop - field.start if field.number == _RAW else 0
        for number, name in _LISTS.items():
            if counts[number] > MAX_TENSORS:
                raise invalid(f"The request has {counts[number]} {name}; {MAX_TENSORS} is the limit.", name)
        limits.check_values(len(body) - raw_bytes)
        return ModelInferRequest.FromString(body)
    except (protobuf.WireError, DecodeError) as error:
        raise invalid(f"The body is no ModelInferRequest: {error}.") from None


def _incoming(message: Any, headers: Mapping[str, str], limits: Limits) -> Incoming:
    parameters = _parameters(message, "parameters", ("priority", "timeout"))
    raw = message.raw_input_contents
    if not message.inputs:
        raise invalid("The request has no inputs: send each input of the model.", "inputs")
    if raw and len(raw) != len(message.inputs):
        raise TensorError(
            f"the request has {len(message.inputs)} inputs and {len(raw)} raw_input_contents: send one for each input"
        )
    limits.check_texts(message.inputs)
    tensors = tuple(_tensor(one, raw[index] if raw else None) for index, one in enumerate(message.inputs))
    for output in message.outputs:
        _parameters(output, f"parameters of {_named(output)}", ())
    request = InferRequest(
        tensors,
        tuple(dict.fromkeys(output.name for output in message.outputs)),
        priority=priority_of(headers, level(parameters.get("priority", 0))),
        timeout_s=min(timeout_s(parameters.get("timeout", 0)), deadline_of(headers)),
    )
    if len(message.id) > _MAX_NAME:
        raise invalid(f"id has {len(message.id)} characters; {_MAX_NAME} is the limit.", "id")
    return Incoming(request, InferAnswer(message.id, protobuf=True))


def _named(one: Any) -> str:
    if not 0 < len(one.name) <= _MAX_NAME:
        raise TensorError(f"a tensor has a name of {len(one.name)} characters; write 1 to {_MAX_NAME}")
    return str(one.name)


def _parameters(message: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    check_names(message.parameters, known, where)
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()}
    return {name: getattr(value, choice) if choice else None for name, (value, choice) in chosen.items()}


def _tensor(one: Any, raw: bytes | None) -> Tensor:
    name = _named(one)
    _parameters(one, f"parameters of {name}", ())
    if one.datatype not in NUMPY:
        raise TensorError(f"input {name!r} has the datatype {one.datatype[:32]!r}, which the protocol does not have")
    filled = [field.name for field, _ in one.contents.ListFields()]
    if raw is not None:
        if filled:
            raise TensorError(f"input {name!r} has contents, and the request raw_input_contents: send one of them")
        return from_bytes(name, one.datatype, one.shape, raw)
    return _typed(name, one, filled)


def _typed(name: str, one: Any, filled: Sequence[str]) -> Tensor:
    datatype, shape = one.datatype, tuple(one.shape)
    if datatype in BINARY_ONLY:
        raise TensorError(f"input {name!r} is {datatype}, which contents cannot hold: send raw_input_contents")
    wanted = CONTENTS[datatype]
    if others := [field for field in filled if field != wanted]:
        raise TensorError(f"input {name!r} is {datatype} and has {others[0]}: send {wanted}")
    values, count = getattr(one.contents, wanted), elements_of(shape, name)
    if len(values) != count:
        raise TensorError(f"input {name!r} has {len(values)} elements; the shape {list(shape)} needs {count}")
    try:
        array = numpy.fromiter(values, NUMPY[datatype], count)
    except OverflowError:
        raise TensorError(f"input {name!r}: a number is out of the range of {datatype}") from None
    return Tensor(name, datatype, array.reshape(shape))


def deadline_of(headers: Mapping[str, str]) -> float:
    """Seconds that the client still waits; infinite where it sets no deadline. Raises HttpError."""
    given = headers.get(TIMEOUT)
    if given is None:
        return math.inf
    found = _DURATION.fullmatch(given)
    if found is None:
        raise invalid(f"{TIMEOUT} is {dumps(given)}: write a number and H, M, S, m, u or n.", TIMEOUT)
    return int(found[1]) * _UNITS_S[found[2]]
