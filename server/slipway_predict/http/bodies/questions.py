"""What a body has for the model, of each kind of endpoint, and how the answer to it is written (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from slipway_contracts.headers import PRIORITY_LIMIT, SHADOW

from ...description import ModelDescription
from ...executor import InferRequest
from ...tensors import Tensor
from ..checking import checked
from ..identity import ModelIdentity
from . import infer_message, infer_request, row_bodies
from .infer_answer import HEADER_LENGTH, PROTOBUF, InferAnswer, WrittenAnswer
from .limits import Limits
from .row_bodies import RowsAnswer

INFER = "infer"  # of the Open Inference Protocol; the other kinds are of `row_bodies`
HEADERS = (infer_request.CONTENT_ENCODING, HEADER_LENGTH, infer_message.TIMEOUT, PRIORITY_LIMIT, SHADOW)

Answer = InferAnswer | RowsAnswer


class Question(Struct, frozen=True):
    """The kind of a body, and what its headers say of it. `max_bytes`: that it may have when it is decompressed."""

    kind: str
    content_type: str
    headers: Mapping[str, str]
    max_bytes: int

    def to_cross(self) -> "Question":
        """With those headers alone that are read."""
        kept = {name: self.headers[name] for name in HEADERS if name in self.headers}
        return Question(self.kind, self.content_type, kept, self.max_bytes)


class ReadBody(Struct, frozen=True):
    """The request in a body, and how its answer is written."""

    request: InferRequest
    answer: Answer


def read(question: Question, body: bytes, description: ModelDescription, limits: Limits) -> ReadBody:
    """Raises HttpError with the name of the field that is wrong, and TooLarge for a body above the limits."""
    request, answer = _read(question, body, description, limits)
    return ReadBody(checked(description, request), answer)


def _read(
    question: Question, body: bytes, description: ModelDescription, limits: Limits
) -> tuple[InferRequest, Answer]:
    headers, kind = question.headers, question.content_type
    if question.kind == INFER and kind == PROTOBUF:
        incoming = infer_message.read(body, headers, limits)
    elif question.kind == INFER:
        incoming = infer_request.read(body, headers, kind, question.max_bytes, description, limits)
    else:
        if question.kind == row_bodies.V1:
            body = infer_request.decompressed(body, headers, question.max_bytes, limits)
        return row_bodies.read(question.kind, body, headers, description, limits)
    return incoming.request, incoming.answer


def written(
    answer: Answer,
    identity: ModelIdentity,
    description: ModelDescription,
    outputs: Sequence[Tensor],
    shared: Mapping[str, Any],
) -> WrittenAnswer:
    """Raises HttpError for an output that the answer cannot hold. `shared`: as of RowsAnswer."""
    if isinstance(answer, InferAnswer):
        return answer.written(identity, outputs)
    return answer.written(identity, description, outputs, shared)
