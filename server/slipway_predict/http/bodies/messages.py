"""What crosses to a process that reads bodies and writes answers, and back: heads in msgpack, tensors behind them.

They travel as tensors of bytes, so that one protocol serves all processes beside this one.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy
from msgspec import Struct

from slipway_process.serving.errors import Refusal

from ...description import ModelDescription
from ...executor import InferRequest
from ...tensors import Array, Tensor
from ..identity import ModelIdentity
from .infer_answer import WrittenAnswer
from .questions import Answer, Question, ReadBody

MODULE: Final = "slipway_predict.http.bodies.child"


class Read(Struct, frozen=True, tag=True):
    """To the process: the body behind it is to be read. The answer is RequestRead, with the inputs behind it."""

    question: Question
    description: ModelDescription


class Write(Struct, frozen=True, tag=True):
    """To the process: an answer is to be written, from the outputs behind it. The answer is WrittenAnswer."""

    answer: Answer
    identity: ModelIdentity
    description: ModelDescription
    shared: Mapping[str, Any]


class RequestRead(Struct, frozen=True, tag=True):
    """From the process: a request without its inputs."""

    outputs: tuple[str, ...]
    priority: int
    timeout_s: float
    row_tokens: int
    answer: Answer

    @classmethod
    def of(cls, found: ReadBody) -> "RequestRead":
        request = found.request
        return cls(request.outputs, request.priority, request.timeout_s, request.row_tokens, found.answer)

    def with_inputs(self, inputs: list[Tensor]) -> ReadBody:
        request = InferRequest(
            tuple(inputs), self.outputs, (), self.priority, self.timeout_s, row_tokens=self.row_tokens
        )
        return ReadBody(request, self.answer)


class AnswerWritten(Struct, frozen=True, tag=True):
    """From the process: an answer, whose body is the tensor behind it."""

    content_type: str
    headers: dict[str, str]

    def with_body(self, tensor: Tensor) -> WrittenAnswer:
        return WrittenAnswer(tensor.array.data, self.content_type, self.headers)


Job = Read | Write
Done = RequestRead | AnswerWritten | Refusal

to_job: Final[msgspec.msgpack.Decoder[Job]] = msgspec.msgpack.Decoder(Job)
to_done: Final[msgspec.msgpack.Decoder[Done]] = msgspec.msgpack.Decoder(Done)
_encoder: Final = msgspec.msgpack.Encoder()


def head(message: Job | Done) -> Tensor:
    return as_tensor("head", _encoder.encode(message))


def as_tensor(name: str, data: bytes) -> Tensor:
    return Tensor(name, "UINT8", numpy.frombuffer(data, numpy.uint8))


def as_bytes(array: Array) -> bytes:
    return array.tobytes()
