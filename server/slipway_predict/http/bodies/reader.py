"""Reads bodies and writes answers: small ones here at once, large ones in a process, where they stop no one else."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from slipway_process import machine
from slipway_process.serving.errors import HttpError, Refusal, queue_full
from slipway_process.serving.tenant import Tenants
from slipway_process.serving.turns import QueueRules

from ...process.messages import LoadModel
from ...process.workers import WorkerRules, Workers, WorkersBusy, WorkerUnavailable, WorkRefused
from ...tensors import Tensor
from ..service import PredictService
from .infer_answer import WrittenAnswer
from .limits import HERE, TooLarge
from .messages import MODULE, AnswerWritten, Done, Job, Read, RequestRead, Write, as_bytes, as_tensor, head, to_done
from .questions import Answer, Question, ReadBody, read, written

log = logging.getLogger("slipway.predict")

# Of a process: the interpreter with its libraries, and what a byte of JSON takes as an object.
BASE_BYTES, BYTES_PER_BYTE = 160 << 20, 40
WORK_S, IDLE_S = 30.0, 60.0  # the largest body takes two seconds of a core, of which a busy node may have little
PIECE_BYTES = 1 << 18
# One client has half of the processes at a time. A body that waits is read later or refused; what was computed has a
# queue of its own, so that no body takes its place.
BODIES, ANSWERS = QueueRules(slots=2, share=1, places=8), QueueRules(slots=2, share=1, places=64)


class BodyReader:
    """`close` ends its processes."""

    def __init__(self, max_body_bytes: int, tenants: Tenants, log_level: str = "info") -> None:
        self._max_body_bytes, self._tenants, self._log_level = max_body_bytes, tenants, log_level
        self._workers: dict[QueueRules, Workers] = {}

    async def close(self) -> None:
        for workers in self._workers.values():
            await workers.close()

    def tenant_of(self, http: web.Request) -> str:
        """The tenant of a request; "" for none. Raises HttpError for a malformed header."""
        return self._tenants.of(http.headers)

    async def read(self, kind: str, http: web.Request, body: bytes, service: PredictService) -> ReadBody:
        """Raises HttpError with the name of the field that is wrong."""
        question = Question(kind, http.content_type, http.headers, self._max_body_bytes)
        try:
            return read(question, body, service.description, HERE)
        except TooLarge:
            job = Read(question.to_cross(), service.description)
        done, tensors = await self._aside(job, [as_tensor("body", body)], http, service)
        assert isinstance(done, RequestRead), "it reads"
        return done.with_inputs(tensors)

    async def write(
        self,
        answer: Answer,
        http: web.Request,
        service: PredictService,
        outputs: Sequence[Tensor],
        shared: Mapping[str, Any] = {},
    ) -> WrittenAnswer:
        """Raises HttpError for outputs that the answer cannot hold. `shared`: as of RowsAnswer."""
        try:
            answer.check(outputs, HERE)
        except TooLarge:
            job = Write(answer, service.identity, service.description, shared)
        else:
            return written(answer, service.identity, service.description, outputs, shared)
        done, tensors = await self._aside(job, outputs, http, service)
        assert isinstance(done, AnswerWritten), "it writes"
        return done.with_body(*tensors)

    async def _aside(
        self, job: Job, tensors: Sequence[Tensor], http: web.Request, service: PredictService
    ) -> tuple[Done, list[Tensor]]:
        queue = BODIES if isinstance(job, Read) else ANSWERS
        workers = self._workers.get(queue) or self._workers.setdefault(queue, Workers(self._rules(queue)))
        # In a pool each model has its share too: a proof names one deployment.
        tenant = self.tenant_of(http) or service.identity.name
        try:
            first, *others = await workers.run([head(job), *tensors], [], tenant)
        except WorkersBusy:
            raise queue_full("Too many large bodies and answers wait: send fewer rows at a time, or wait.") from None
        except WorkRefused as error:
            message = f"This request {error}: send fewer rows at a time."
            raise HttpError(413, message, code="too_costly") from None
        except WorkerUnavailable:
            message = "The process that reads large bodies cannot be started: send the request again."
            raise HttpError(503, message, code="no_reader", retry_after_s=2, outcome="error") from None
        done = to_done.decode(as_bytes(first.array))
        if isinstance(done, Refusal):
            raise done.error
        return done, others

    def _rules(self, queue: QueueRules) -> WorkerRules:
        # Four of them leave a fifth: an allocation that fails is one error, the end of the container is many.
        most_bytes = BASE_BYTES + BYTES_PER_BYTE * self._max_body_bytes
        memory_bytes = max(BASE_BYTES, min(most_bytes, machine.free_memory_bytes() // 5))
        start = LoadModel("", "bodies", 1, memory_bytes, 1, self._log_level)
        return WorkerRules(start, "read or write", queue, WORK_S, MODULE, IDLE_S)


async def send(http: web.Request, answer: WrittenAnswer) -> web.StreamResponse:
    """A large answer goes in pieces, as its client takes them: no copy is made of it."""
    body, kind = answer.body, answer.content_type
    if isinstance(body, bytes):
        return web.Response(body=body, headers=answer.headers, content_type=kind)
    response = web.StreamResponse(headers={**answer.headers, "Content-Type": kind, "Content-Length": str(len(body))})
    await response.prepare(http)
    for at in range(0, len(body), PIECE_BYTES):
        await response.write(body[at : at + PIECE_BYTES])
    await response.write_eof()
    return response
