"""ModelStreamInfer: each message of the stream is one call, a few run at a time, and answers keep their order."""

import asyncio
import contextlib

from ..serving.api import Work
from ..telemetry.metrics import RequestRecord
from ..wire import errors
from . import messages, statuses
from .calls import Call
from .context import CallContext
from .methods import SERVICE, Methods, check_type, refuse
from .reading import MessageReader
from .statuses import GrpcStatus

NAME = "ModelStreamInfer"
MAX_RUNNING = 8  # calls of one stream


class InferStream:
    """Runs one stream: reads its messages, and writes an answer for each."""

    def __init__(self, methods: Methods, context: CallContext) -> None:
        self._methods, self._context = methods, context
        # Calls in the order of their messages. When it is full because the client reads no answers, no message is read.
        self._answers: asyncio.Queue[Call | None] = asyncio.Queue(MAX_RUNNING)
        self._running: dict[Call, asyncio.Task[bytes]] = {}  # those of the queue, and one more at either end of it
        self._refusal: errors.RequestError | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write())
                group.create_task(self._read())
        except* errors.RequestError as stalled:
            self._refusal = next(error for error in stalled.exceptions if isinstance(error, errors.RequestError))
        finally:
            await self._abandon()
        if self._refusal is not None:
            refuse(self._context, self._refusal.status, str(self._refusal))

    async def _read(self) -> None:
        """Reads messages and starts a call for each. What was read is answered, whatever ends the stream."""
        methods = self._methods
        reader = MessageReader(self._context.stream, methods.settings, methods.ending)
        try:
            await self._authenticate()
            while not methods.ending.done() and (found := await self._next(reader)) is not None:
                call, message = found
                self._running[call] = asyncio.create_task(self._infer(call, message))
                await self._answers.put(call)
            if methods.ending.done():
                self._refusal = errors.draining()
        except errors.RequestError as refusal:
            self._refusal = refusal
        await self._answers.put(None)

    async def _authenticate(self) -> None:
        """Authenticates the stream before its first message is read, so that strangers get no memory for messages.

        Each call is authenticated again. Raises RequestError: the stream is refused.
        """
        call = self._methods.call(self._context, f"/{SERVICE}/{NAME}")
        try:
            await self._methods.api.identify(call.request)
        except errors.RequestError as refusal:
            self._methods.api.refuse(refusal, call.request)
            raise

    async def _next(self, reader: MessageReader) -> tuple[Call, bytes] | None:
        """The next call with its message, which counts in the call's account; None at the end. Raises RequestError."""
        call = self._methods.call(self._context, f"/{SERVICE}/{NAME}")
        message = None
        try:
            message = await reader.message(self._methods.hold(call, None), None)
        finally:
            if message is None:
                call.close()
        return None if message is None else (call, message)

    async def _infer(self, call: Call, message: bytes) -> bytes:
        async def prepare(call: Call, record: RequestRecord) -> Work:
            # From here on the message counts as a body does, and the response in an account of the tenant.
            call.close()
            self._methods.hold(call, record.identity)
            return self._methods.work("ModelInfer", call, message, self._context)

        await call.run(self._methods.api, prepare)
        if statuses.status_of(call.status) is GrpcStatus.OK:
            try:
                check_type(call)
                return messages.stream_answer(call.body)
            except errors.RequestError as error:
                return messages.stream_error(str(error), _request_id(message))
        return messages.stream_error(statuses.details_of(call.status, call.body), _request_id(message))

    async def _write(self) -> None:
        while (call := await self._answers.get()) is not None:
            await self._methods.deliver(self._context, await self._running[call])
            del self._running[call]
            call.close()

    async def _abandon(self) -> None:
        """Ends calls whose answers have no reader any more."""
        for call, task in self._running.items():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            call.close()


def _request_id(message: bytes) -> str:
    with contextlib.suppress(errors.RequestError):
        return messages.model_of(message).request_id
    return ""
