"""Requests of the Open Inference Protocol v2: JSON, with the data of tensors in it or as bytes behind it."""

import math
import re
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from slipway_process.byte_order_mark import without_mark
from slipway_process.serving.errors import HttpError, invalid
from slipway_process.serving.priority import priority_of

from ... import json_data
from ...description import ModelDescription
from ...executor import InferRequest
from ...tensors import MAX_DIMENSIONS, NUMPY, Tensor, TensorError, elements_of, from_bytes
from ..images import CONTENT_TYPES, one_image
from .infer_answer import HEADER_LENGTH, InferAnswer
from .limits import Limits, TooLarge

CONTENT_ENCODING = "Content-Encoding"
MAX_TENSORS = 1024
DEFAULT_LEVEL, LAST_LEVEL = 500, 1000  # of `priority`: 1 is the most urgent one, and 0 stands for the default
_SIZES = "binary_data_size"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

Shape = Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=MAX_DIMENSIONS)]
TensorName = Annotated[str, Meta(min_length=1, max_length=512)]


class InputParameters(Struct, forbid_unknown_fields=True):
    binary_data_size: int | None = None


class OutputParameters(Struct, forbid_unknown_fields=True):
    binary_data: bool | None = None


class RequestParameters(Struct, forbid_unknown_fields=True):
    binary_data_output: bool | None = None
    priority: int | None = None
    timeout: int | None = None


class InferInput(Struct, forbid_unknown_fields=True):
    """An input of the model; `data` is absent where its bytes are behind the JSON."""

    name: TensorName
    shape: Shape
    datatype: Annotated[str, Meta(max_length=32)]
    parameters: InputParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class InferOutput(Struct, forbid_unknown_fields=True):
    """An output that the client wants."""

    name: TensorName
    parameters: OutputParameters | None = None


class InferBody(Struct, forbid_unknown_fields=True):
    """The JSON of a request."""

    inputs: Annotated[list[InferInput], Meta(min_length=1, max_length=MAX_TENSORS)]
    id: Annotated[str, Meta(max_length=512)] | None = None
    parameters: RequestParameters | None = None
    outputs: Annotated[list[InferOutput], Meta(max_length=MAX_TENSORS)] | None = None
    # KServe's client repeats name and version here; those of the path count.
    model_name: str | None = None
    model_version: str | None = None


class Incoming(Struct, frozen=True):
    """A request, and how its client wants the answer."""

    request: InferRequest
    answer: InferAnswer


_decoder = msgspec.json.Decoder(InferBody)
_UNKNOWN_PARAMETER = re.compile(r"unknown field `(.*)` - at `\$\.(.*parameters)`$", re.DOTALL)


def read(
    raw: bytes,
    headers: Mapping[str, str],
    content_type: str,
    max_bytes: int,
    description: ModelDescription,
    limits: Limits,
) -> Incoming:
    """The request in a body.

    Raises:
        HttpError: the protocol or the description of the inputs forbids it.
        TooLarge: it is above the limits.
    """
    body = decompressed(raw, headers, max_bytes, limits)
    priority = priority_of(headers)
    if description.image and content_type.lower() in CONTENT_TYPES:
        return Incoming(InferRequest((one_image(description.image, body),), (), priority=priority), InferAnswer())
    length = headers.get(HEADER_LENGTH)
    try:
        if length is not None and length.strip() == "0":
            return _raw(body, description, priority)
        head, binary = _split(body, length)
        limits.check_json(head)
        return _incoming(_parsed(head), binary, headers, limits)
    except TensorError as error:
        raise invalid(f"{str(error)[:1].upper()}{str(error)[1:]}.", "inputs") from None


def decompressed(body: bytes, headers: Mapping[str, str], max_bytes: int, limits: Limits) -> bytes:
    """The body without gzip or deflate.

    Raises:
        HttpError: it would have more than `max_bytes`, which is noticed before they are decompressed.
        TooLarge: it is above the limits.
    """
    encoding = headers.get(CONTENT_ENCODING, "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW_BITS:
        raise HttpError(415, "Send the body as it is, or with gzip or deflate.", param=CONTENT_ENCODING)
    stream, most = zlib.decompressobj(_WINDOW_BITS[encoding]), min(max_bytes, limits.plain_bytes)
    try:
        made = stream.decompress(body, most + 1)
    except zlib.error:
        raise invalid(f"The body is not {encoding}, as its headers declare.", CONTENT_ENCODING) from None
    if len(made) > most or stream.unconsumed_tail:
        if most < max_bytes:
            raise TooLarge(f"The body has more than {most} bytes when it is decompressed.")
        raise HttpError(413, f"The body has more than {max_bytes} bytes when it is decompressed.")
    if not stream.eof:
        raise invalid(f"The body ends inside of its {encoding} data.", CONTENT_ENCODING)
    return made


def _split(body: bytes, length: str | None) -> tuple[bytes, memoryview]:
    if length is None:
        return body, memoryview(b"")
    if not (length.isascii() and length.isdecimal() and len(length) < 12):
        raise invalid(f"{HEADER_LENGTH} must be the number of bytes of the JSON.", HEADER_LENGTH)
    size = int(length)
    if size > len(body):
        raise invalid(f"{HEADER_LENGTH} is {size}, and the body has {len(body)} bytes.", HEADER_LENGTH)
    return body[:size], memoryview(body)[size:]


def _parsed(head: bytes) -> InferBody:
    try:
        return _decoder.decode(without_mark(head))
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise _refusal(str(error)) from None


def _refusal(reason: str) -> HttpError:
    """The error for JSON of another shape. A parameter that this server does not know would change the answer."""
    if found := _UNKNOWN_PARAMETER.search(reason):
        name = found[1][:64]
        message = f"{found[2]}: {name!r} is not supported by this server."
        return HttpError(400, message, param=name, code="unsupported_parameter")
    return invalid(f"The body is no request of the Open Inference Protocol: {reason}.")


def _incoming(body: InferBody, binary: memoryview, headers: Mapping[str, str], limits: Limits) -> Incoming:
    limits.check_texts(body.inputs)
    tensors, at = [], 0
    for one in body.inputs:
        tensor, at = _tensor(one, binary, at)
        tensors.append(tensor)
    if at != len(binary):
        raise invalid(f"{len(binary) - at} bytes are left behind the binary data of the inputs.", "inputs")
    parameters = body.parameters or RequestParameters()
    named = {one.name: one.parameters.binary_data if one.parameters else None for one in body.outputs or ()}
    found = {name: value for name, value in named.items() if value is not None}
    request = InferRequest(
        tuple(tensors),
        tuple(named),
        priority=priority_of(headers, level(parameters.priority or 0)),
        timeout_s=timeout_s(parameters.timeout or 0),
    )
    return Incoming(request, InferAnswer(body.id or "", bool(parameters.binary_data_output), found))


def _tensor(one: InferInput, binary: memoryview, at: int) -> tuple[Tensor, int]:
    size = one.parameters.binary_data_size if one.parameters else None
    if one.datatype not in NUMPY:
        raise TensorError(f"input {one.name!r} has the datatype {one.datatype!r}, which the protocol does not have")
    data = bytes(one.data) if bytes(one.data) != b"null" else b""
    if size is None:
        if not data:
            raise TensorError(f"input {one.name!r} has no data: write data, or send bytes with {_SIZES}")
        return json_data.read(one.name, one.datatype, tuple(one.shape), data), at
    if data:
        raise TensorError(f"input {one.name!r} has data and {_SIZES}: send one of them")
    if not 0 <= size <= len(binary) - at:
        raise TensorError(f"input {one.name!r}: {_SIZES} is {size}, and {len(binary) - at} bytes are left")
    return from_bytes(one.name, one.datatype, one.shape, binary[at : at + size]), at + size


def _raw(body: bytes, description: ModelDescription, priority: int) -> Incoming:
    """The whole body is the data of the only input; the size of its open dimension follows from the number of bytes."""
    if len(description.inputs) != 1:
        raise invalid(f"{HEADER_LENGTH} 0 is for models with one input.", HEADER_LENGTH)
    spec = description.inputs[0]
    open_sizes = [index for index, size in enumerate(spec.shape) if size == -1]
    if spec.datatype == "BYTES" or len(open_sizes) > 1:
        raise invalid(f"The shape of {spec.name!r} does not follow from bytes alone: send JSON before them.", spec.name)
    row = elements_of([size for size in spec.shape if size != -1], spec.name) * NUMPY[spec.datatype].itemsize
    rows = len(body) // row if row else 0
    shape = [rows if size == -1 else size for size in spec.shape]
    tensor = from_bytes(spec.name, spec.datatype, shape, body)
    return Incoming(InferRequest((tensor,), (), priority=priority), InferAnswer())


def check_names(parameters: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in parameters:
        if name not in known:
            raise HttpError(
                400,
                f"{where}: {name[:64]!r} is not supported by this server.",
                param=name[:64],
                code="unsupported_parameter",
            )


def level(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LAST_LEVEL:
        raise invalid(f"priority is {json_data.dumps(value)}: write 1 (urgent) to {LAST_LEVEL}, or 0.", "priority")
    return value - DEFAULT_LEVEL if value else 0


def timeout_s(value: Any) -> float:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10**12:
        raise invalid(f"timeout is {json_data.dumps(value)}: write microseconds, or 0 for none.", "timeout")
    return value / 1e6 if value else math.inf
