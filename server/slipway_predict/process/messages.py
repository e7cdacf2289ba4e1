"""Messages between the HTTP process and the process of a model: a head in msgpack, and the bytes of tensors behind it.

The other side may run a stranger's model: what comes from there is checked like what comes from a client.
"""

import struct
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from ..description import ModelDescription
from ..tensors import Tensor, from_bytes, to_bytes

SIZES = struct.Struct(">IQ")  # of the head and of the data behind it
MAX_HEAD_BYTES = 8 << 20
MAX_DATA_BYTES = 4 << 30


class LoadModel(msgspec.Struct, frozen=True, tag=True):
    """To the model: what to load."""

    path: str
    format: str
    threads: int
    memory_bytes: int
    max_batch_size: int
    log_level: str = "info"
    classifier: bool = False  # any other model is refused


class Head(msgspec.Struct, frozen=True):
    """The description of one tensor, whose bytes follow those of the tensor before it."""

    name: str
    datatype: str
    shape: list[int]
    size_bytes: int


class Compute(msgspec.Struct, frozen=True, tag=True):
    """To the model: a batch."""

    tensors: list[Head]
    outputs: list[str]


class ModelLoaded(msgspec.Struct, frozen=True, tag=True):
    """From the model: it is loaded. `measured`: rows and seconds of the batches of its warm-up."""

    description: ModelDescription
    seconds: float
    measured: list[tuple[int, float]]
    files_bounded: bool = True


class ModelUnusable(msgspec.Struct, frozen=True, tag=True):
    """From the model: it cannot be served, and why, in one sentence."""

    reason: str


class Computed(msgspec.Struct, frozen=True, tag=True):
    """From the model: the outputs of a batch."""

    tensors: list[Head]
    seconds: float


class BatchError(msgspec.Struct, frozen=True, tag=True):
    """From the model: it raised an error for this batch."""

    reason: str


ToModel: TypeAlias = LoadModel | Compute
FromModel: TypeAlias = ModelLoaded | ModelUnusable | Computed | BatchError

_encoder = msgspec.msgpack.Encoder()
to_model: msgspec.msgpack.Decoder[ToModel] = msgspec.msgpack.Decoder(ToModel)
from_model: msgspec.msgpack.Decoder[FromModel] = msgspec.msgpack.Decoder(FromModel)


class ProtocolError(ValueError):
    """The other side sent something that is no message."""


def encode(message: ToModel | FromModel, data: Sequence[bytes] = ()) -> list[bytes]:
    head = _encoder.encode(message)
    return [SIZES.pack(len(head), sum(map(len, data))) + head, *data]


def pack(tensors: Sequence[Tensor]) -> tuple[list[Head], list[bytes]]:
    data = [to_bytes(tensor) for tensor in tensors]
    heads = [
        Head(tensor.name, tensor.datatype, list(tensor.shape), len(one))
        for tensor, one in zip(tensors, data, strict=True)
    ]
    return heads, data


def unpack(heads: Sequence[Head], data: memoryview) -> list[Tensor]:
    """The tensors in `data`. Raises TensorError or ProtocolError for heads that contradict the data."""
    if sum(head.size_bytes for head in heads) != len(data) or any(head.size_bytes < 0 for head in heads):
        raise ProtocolError("sizes of tensors contradict their data")
    found, at = [], 0
    for head in heads:
        found.append(from_bytes(head.name, head.datatype, head.shape, data[at : at + head.size_bytes]))
        at += head.size_bytes
    return found


def check_sizes(head_bytes: int, data_bytes: int) -> None:
    if head_bytes > MAX_HEAD_BYTES or data_bytes > MAX_DATA_BYTES:
        raise ProtocolError(f"a message of {head_bytes} and {data_bytes} bytes")
