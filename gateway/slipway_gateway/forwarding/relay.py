"""Sends one answer to its client, chunk by chunk, from one server or, when that one is gone, from the next."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from ..mirror.queue import Lane
from ..routing.split import tag
from ..telemetry.metrics import Record
from ..upstream.exchange import Answer, Call, outcome_of
from ..wire import errors, headers
from ..wire.resume import Trail
from ..wire.sse import DONE, EventAligner, error_event, without_crash
from .bodies import SLICE_BYTES
from .crashes import Crashes
from .resumption import Resumption

_MESSAGES = {
    "timeout": "The model stopped answering in time.",
    "upstream_died": "The server of this answer went away, and no other one could go on with it.",
    "request_crashed_engine": str(errors.crashed_engine()),
    "drained": "The gateway is shutting down and the time for its last requests is over.",
}
_OUTCOMES = {"upstream_died": "upstream_error", "request_crashed_engine": errors.POISON}
# Memory of a stream is counted in steps of this size.
_STEP_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What all relays of a gateway share."""

    resumption: Resumption
    mirror: Lane
    crashes: Crashes
    clock: Callable[[], float]
    stall_timeout_s: float


class Relay:
    """One answer on its way. After the first byte nothing is raised to the outside but cancellation and the limit."""

    def __init__(
        self,
        context: RelayContext,
        request: web.Request,
        call: Call,
        answer: Answer,
        record: Record,
        *,
        opened: web.StreamResponse | None = None,
    ) -> None:
        """`opened`: what the client was sent comments in while it waited."""
        self._context = context
        self._clock = context.clock
        self._request = request
        self._call = call
        self._answer = answer
        self._record = record
        self._aligner = EventAligner() if answer.streams_events else None
        self._trail = self._begin_trail(answer) if answer.streams_events else None
        self._done = False
        self._crashed = False  # the server said that its engine died
        self._counted_bytes = 0
        self._effort = context.resumption.new_effort()
        self._mirrored = context.mirror.copy_of(call, answer, record.request_id, request.headers)
        crossing = headers.to_client(
            answer.headers, record.request_id, answer.target.revision, forwarded=call.forwarded
        )
        self._out = opened or web.StreamResponse(status=answer.status, headers=crossing)

    async def run(self, *, close: bool) -> web.StreamResponse:
        out = self._out
        try:
            if not out.prepared:
                await self._open(close=close)
            self._record.first_byte = self._clock()
            await self._stream()
        except (ConnectionError, _StalledClient):
            self._leave()
        return out

    async def _open(self, *, close: bool) -> None:
        if close:
            self._out.force_close()
        if not self._trail and (length := self._answer.length) is not None:
            self._out.content_length = length
        await self._send(self._out.prepare(self._request))

    async def end(self, code: str) -> web.StreamResponse:
        """A stream that is cut says so; any other answer is cut short, so that no client takes a part for the whole."""
        if self._answer.lease and code != "drained":
            self._answer.lease.failed()
        self._record.end(_OUTCOMES.get(code, code), self._answer.status)
        if not (self._aligner and self._out.prepared):
            self._abort()
            return self._out
        try:
            status = 422 if code == "request_crashed_engine" else 502
            await self._send(self._out.write(error_event(self._request.path, code, _MESSAGES[code], status)))
            await self._send(self._out.write_eof())
        except (ConnectionError, _StalledClient):
            self._leave()
        return self._out

    def close(self) -> None:
        if self._trail and not self._done:
            self._context.resumption.remember(self._call, self._trail)
        self._answer.close()
        if self._mirrored:
            self._context.mirror.passed()

    def _begin_trail(self, answer: Answer) -> Trail | None:
        target = answer.target
        return Trail.begin(answer.headers, target.revision, tag(target.url), self._call.tokens)

    async def _stream(self) -> None:
        while gone := await self._copy():
            try:
                resumed = await self._resume()
            except errors.Refusal as poison:
                resumed, gone = False, poison.code
            if not resumed:
                await self.end(gone)
                return
        # What a client does from here on is no fault of the server's.
        self._tell()
        if self._aligner and (rest := self._aligner.flush()):
            await self._send(self._out.write(rest))
        await self._send(self._out.write_eof())
        self._done = True
        self._record.end(outcome_of(self._answer.status), self._answer.status)
        if self._mirrored:
            self._context.mirror.offer(self._mirrored)

    async def _copy(self) -> str:
        """Passes the answer on up to its end; why it broke off when it did."""
        chunk, rest, fate = self._answer.start, self._answer.rest, self._answer.fate
        while chunk:
            if fate:
                fate.heard(self._clock())
            if ready := self._ready(chunk):
                await self._pass_on(ready)
                if self._aligner and ready.endswith(DONE):
                    self._has_all()
            if rest is None:
                break
            if fate:
                fate.waits(self._clock())
            try:
                chunk = await rest.content.readany()
            except aiohttp.ServerTimeoutError:
                return "" if self._record.whole else "timeout"
            except (aiohttp.ClientError, OSError):
                return "" if self._record.whole else "upstream_died"
        return ""

    def _has_all(self) -> None:
        """The client has the last event, and need not wait for what ends the answer."""
        self._tell()
        self._record.end(outcome_of(self._answer.status), self._answer.status)
        self._record.whole = True

    def _tell(self) -> None:
        answer = self._answer
        if answer.fate is None:
            return
        now_s, wants_json = self._clock(), self._call.wants_json
        if self._aligner:
            answer.fate.streamed(now_s, wants_json=wants_json)
        else:
            readable = answer.rest is None and self._call.writes_text
            answer.fate.whole(answer.start if readable else None, now_s, wants_json=wants_json)

    def _ready(self, chunk: bytes) -> bytes:
        if self._aligner is None:
            return chunk
        events, self._crashed = without_crash(self._aligner.feed(chunk))
        if events and (fate := self._answer.fate):
            fate.saw(events, self._clock())
        if events and self._mirrored:
            self._mirrored.saw(events)
        if events and self._trail:
            events = self._trail.pass_on(events)
        self._count(self._aligner.held_bytes + (self._trail.size_bytes if self._trail else 0))
        return events

    def _count(self, held_bytes: int) -> None:
        """Counts what a stream keeps: tokens for another server, and the beginning of an event."""
        more = held_bytes - self._counted_bytes
        if more < _STEP_BYTES:
            return
        if self._call.account.grow(more):
            if self._trail:
                self._trail.forget()
            return
        self._counted_bytes = held_bytes

    async def _pass_on(self, data: bytes) -> None:
        """What is long is sent in slices, for a transport copies what it cannot send; a client that does not read it
        may be left for others that need the room."""
        if len(data) <= SLICE_BYTES:
            await self._send(self._out.write(data))
            return
        account = self._call.account
        account.waits(self._abort)
        try:
            for begin in range(0, len(data), SLICE_BYTES):
                await self._send(self._out.write(data[begin : begin + SLICE_BYTES]))
                account.moved()
        finally:
            account.goes_on()

    async def _resume(self) -> bool:
        broken = self._answer
        if self._aligner and (self._crashed or self._aligner.says_crashed()):
            # It may be poison, though its answer has begun.
            self._crashed = False
            self._aligner.drop()
            self._context.crashes.note(self._call, broken.target, self._record, self._effort, on_trial=False)
        if not self._trail or not self._aligner:
            return False
        if broken.lease:
            broken.lease.failed()
        if broken.rest:
            broken.rest.close()
        # The lease is kept until the next server has the stream: a revision with a stream in flight keeps its pods.
        rest = await self._context.resumption.resume(self._call, self._trail, broken, self._record, self._effort)
        if rest is None:
            return False
        broken.close()
        self._answer = rest
        self._trail.moves_to(tag(rest.target.url))
        self._aligner.drop()
        return True

    async def _send(self, write: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(self._context.stall_timeout_s):
                await write
        except TimeoutError:
            raise _StalledClient from None

    def _leave(self) -> None:
        self._record.left()
        self._abort()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


class _StalledClient(Exception):
    pass
