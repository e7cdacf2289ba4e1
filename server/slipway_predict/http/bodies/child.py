"""The program that reads large bodies and writes large answers: what they cost is this process's, and no other's.

The system bounds its memory and what it may do, and the process that serves ends it when it takes too long.
"""

import os
from pathlib import Path

from slipway_process import isolation
from slipway_process.serving.errors import HttpError, Refusal, invalid

from ...description import ModelDescription
from ...process.child import serve
from ...process.messages import LoadModel, ModelLoaded
from ...process.wire import ModelWire
from ...tensors import Tensor
from .limits import ASIDE, MAX_ANSWER_BYTES, TooLarge
from .messages import AnswerWritten, Done, Read, RequestRead, Write, as_bytes, as_tensor, head, to_job
from .questions import read, written

NICENESS = 5  # models and small requests have the cores first


class BodyWorker:
    """`run` takes a job and the tensors that belong to it, and returns what became of it likewise."""

    description = ModelDescription("bodies", "", [], [], batched=False)

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        done, tensors = self._done(inputs)
        return [head(done), *tensors]

    def _done(self, inputs: list[Tensor]) -> tuple[Done, list[Tensor]]:
        job = to_job.decode(as_bytes(inputs[0].array))
        try:
            return _read(job, inputs[1]) if isinstance(job, Read) else _write(job, inputs[1:])
        except HttpError as error:
            return Refusal.of(error), []
        except TooLarge as error:
            return Refusal.of(invalid(str(error), error.param)), []
        except MemoryError:
            return Refusal.of(_too_much(job, self._memory_bytes)), []


def _read(job: Read, body: Tensor) -> tuple[Done, list[Tensor]]:
    found = read(job.question, as_bytes(body.array), job.description, ASIDE)
    return RequestRead.of(found), list(found.request.inputs)


def _write(job: Write, outputs: list[Tensor]) -> tuple[Done, list[Tensor]]:
    job.answer.check(outputs, ASIDE)
    found = written(job.answer, job.identity, job.description, outputs, job.shared)
    if len(found.body) > MAX_ANSWER_BYTES:
        message = f"The answer has {len(found.body)} bytes; {MAX_ANSWER_BYTES} is the limit: send fewer rows at a time."
        raise HttpError(413, message, code="too_costly")
    return AnswerWritten(found.content_type, found.headers), [as_tensor("body", bytes(found.body))]


def _too_much(job: Read | Write, memory_bytes: int) -> HttpError:
    what = "To read this body" if isinstance(job, Read) else "To write the answer"
    message = f"{what} takes more than the {memory_bytes >> 20} MiB of memory that it may: send fewer rows at a time."
    return HttpError(413, message, code="too_costly")


def _load(wire: ModelWire, start: LoadModel) -> BodyWorker:
    os.nice(NICENESS)
    bounded = isolation.isolate(Path(os.devnull))
    isolation.limit_memory(start.memory_bytes)
    worker = BodyWorker(start.memory_bytes)
    wire.send(ModelLoaded(worker.description, 0.0, [], bounded))
    return worker


if __name__ == "__main__":
    serve(_load)
