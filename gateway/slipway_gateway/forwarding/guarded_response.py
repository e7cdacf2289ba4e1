"""Stands between the relay of a response and its client, where the request has guards of its output.

A whole response is collected, checked and then sent. Events of a stream wait for the guards as `guards.hold_back` has
it; one that is blocked ends with an error event, and what was blocked is not shown.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from multidict import CIMultiDict

from slipway_contracts.guards import OUTPUT
from slipway_process.supervisor import observe

from ..guards import texts
from ..guards.checks import GuardChecks, of_stage
from ..guards.events import EventCutter, StreamEvent
from ..guards.hold_back import HoldBack
from ..guards.protocol import GuardFailed, Subject
from ..guards.verdict import StageVerdict
from ..judging.outcome import OutcomeRecorder
from ..telemetry.metrics import RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import errors
from ..wire.responses import REDACTED
from ..wire.sse import CONTENT_TYPE, error_event
from .relay import UnusableResponse, WholeResponse
from .stand_ins import ResponseCollector, with_writer

Forward = Callable[[], Awaitable[web.StreamResponse]]
_STEP_BYTES = 4 << 10  # memory of what is held is counted in steps of this size
# Of the connection to the client, which its own response has.
_OF_CONNECTION = (hdrs.CONTENT_LENGTH, hdrs.TRANSFER_ENCODING, hdrs.CONNECTION, hdrs.DATE, hdrs.SERVER)


class GuardedResponse:
    """One response. `request`: what takes the place of the client's request, so that the response comes here first."""

    def __init__(
        self,
        checks: GuardChecks,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        stall_timeout_s: float,
    ) -> None:
        self._checks, self._client_request, self._record = checks, request, record
        self._call, self._stall_timeout_s = outgoing, stall_timeout_s
        self._guards = of_stage(outgoing.guards, OUTPUT)
        self._recorder: OutcomeRecorder | None = None
        self._first_byte_s = 0.0
        self._clock = asyncio.get_running_loop().time
        windows = [one.guard.window for one in self._guards]
        hold = HoldBack(max(window.tokens for window in windows), max(window.milliseconds for window in windows) / 1000)
        self._writer = _GuardedWriter(self, hold)
        self.request = with_writer(request, self._writer)

    def answered(self, response: UpstreamResponse) -> None:
        """A server has begun the response. A first attempt is evidence about its revision."""
        self._recorder = response.recorder or self._recorder

    async def run(self, forward: Forward) -> web.StreamResponse:
        """The response to the client. `forward`: sends one to `request`. Raises RequestError."""
        try:
            response = await forward()
        finally:
            await self._writer.close()
        writer = self._writer
        if writer.out is not None:
            self._ended(writer)
            return writer.out
        if writer.too_large:
            raise errors.RequestError(self._record.code, "response_too_large", "The response is too long for guards.")
        if not writer.ended:
            return response  # it broke off, which the record has already
        return await self._whole(writer)

    def _ended(self, writer: "_GuardedWriter") -> None:
        """The stream ended. Its status was sent before."""
        stopped = writer.stopped
        if stopped is not None:
            outcome = "blocked" if stopped.blocked else "guard_failed"
            self._record.end(outcome, writer.status, "content_blocked" if stopped.blocked else "guard_failed")

    async def _whole(self, writer: "_GuardedWriter") -> web.StreamResponse:
        headers, body = client_headers(writer.headers), b"".join(writer.parts)
        if writer.status < 300:
            body = await self._checked(body, encoding=headers.get(hdrs.CONTENT_ENCODING, ""))
        self._record.first_byte = self._clock()
        out = WholeResponse(writer.status, headers)
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await out.send(self._client_request, body)
            self._record.sent_bytes = len(body)
        except (ConnectionError, TimeoutError):
            self._record.left()
            if self._client_request.transport is not None:
                self._client_request.transport.abort()
        return out

    async def _checked(self, body: bytes, *, encoding: str) -> bytes:
        """The body as the client may have it. Raises RequestError."""
        try:
            if encoding not in ("", "identity"):
                raise GuardFailed("the response is compressed")
            found = texts.of_response(body)
            verdict = await self.check(found.texts)
            if verdict.passes:
                if not verdict.spans:
                    return body
                texts.forget_tokens(found.value)
                body = found.redacted(verdict.spans)
                self.redacted()
                return body
        except GuardFailed as error:
            verdict = self._checks.failed(self._guards, OUTPUT, str(error))
            if verdict.passes:
                return body
        if not verdict.blocked:
            raise errors.guard_failed(verdict.guard, verdict.failed)
        self.blocked()
        raise errors.content_blocked(verdict.guard, verdict.reason, of_response=True)

    # -- for its writer

    async def check(self, found: dict[str, str]) -> StageVerdict:
        call, record = self._call, self._record
        tenant = record.identity.name if record.identity else ""
        subject = Subject(OUTPUT, record.model, record.revision, tenant, record.request_id)
        return await self._checks.check(self._guards, subject, found, call.client)

    def unreadable(self, why: str) -> StageVerdict:
        return self._checks.failed(self._guards, OUTPUT, why)

    def blocked(self) -> None:
        """Guards blocked the response: that is the outcome of a first attempt."""
        if self._recorder is not None:
            self._recorder.block(self._clock())

    def redacted(self) -> None:
        """The client gets a text with redactions."""
        if self._recorder is not None:
            self._recorder.mark(REDACTED)

    async def begin(self, headers: "CIMultiDict[str]") -> web.StreamResponse:
        out = web.StreamResponse(headers=client_headers(headers))
        await out.prepare(self._client_request)
        return out

    async def put(self, out: web.StreamResponse, data: bytes) -> None:
        """Sends events. Raises ConnectionError: the client is gone, or does not read."""
        if not data:
            return
        self._record.first_byte = self._first_byte_s = self._first_byte_s or self._clock()
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await out.write(data)
        except TimeoutError:
            raise ConnectionResetError("the client does not read") from None

    def refusal_event(self, verdict: StageVerdict) -> bytes:
        """The end of a stream that guards ended."""
        path = self._call.path
        if verdict.blocked:
            message = errors.blocked_message(verdict.guard, verdict.reason, of_response=True)
            return error_event(path, "content_blocked", message, 400)
        return error_event(path, "guard_failed", errors.guard_message(verdict.guard, verdict.failed), 503)

    def grow(self, size_bytes: int) -> bool:
        """Counts memory; returns whether there is room for it."""
        return not self._call.account.grow(size_bytes)

    @property
    def now_s(self) -> float:
        return self._clock()


class _GuardedWriter(ResponseCollector):
    """Collects a whole response; of a stream sends what its guards have seen. `out`: the stream.

    `stopped`: what ended it before its server did.
    """

    def __init__(self, response: GuardedResponse, hold: HoldBack) -> None:
        super().__init__(texts.MAX_BODY_BYTES)
        self._response, self._hold, self._cutter = response, hold, EventCutter()
        self.account = response._call.account
        self.out: web.StreamResponse | None = None
        self.stopped: StageVerdict | None = None
        self._is_open = False  # guards that cannot read the stream let it pass
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None
        self._error: ConnectionError | None = None
        self._counted_bytes = 0

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        await super().write_headers(status_line, headers)
        if self.status == 200 and headers.get(hdrs.CONTENT_TYPE, "").startswith(CONTENT_TYPE):
            await self._begin(headers)

    async def _begin(self, headers: "CIMultiDict[str]") -> None:
        """Begins a stream. Raises UnusableResponse: guards cannot read it, so that it ends at once."""
        unread: StageVerdict | None = None
        if headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
            unread = self._response.unreadable("the stream is compressed")
            self._is_open = unread.passes
            if not unread.passes:
                headers.popall(hdrs.CONTENT_ENCODING)  # the error is not
        self.out = await self._response.begin(headers)
        if unread is not None and not unread.passes:
            await self._stop(self.out, unread)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Raises ConnectionError: the client is gone; as UnusableResponse: guards ended the stream."""
        if self.out is None:
            await super().write(chunk)
            return
        async with self._lock:
            await self._take(self.out, bytes(chunk))

    async def write_eof(self, chunk: bytes = b"") -> None:
        if self.out is None:
            await super().write_eof(chunk)
            return
        async with self._lock:
            self._check_going_on()
            if chunk:
                await self._take(self.out, bytes(chunk))
            self._hold.end()
            if rest := self._cutter.rest():
                await self._take(self.out, rest + b"\n\n")
            await self._advance(self.out)
            self.ended = True
            await self.out.write_eof()

    async def close(self) -> None:
        """Nothing more is written."""
        if self._timer is not None:
            self._timer.cancel()
        if self._late is not None:
            self._late.cancel()
            await asyncio.gather(self._late, return_exceptions=True)
        if self._hold.is_redacted and self.ended:
            self._response.redacted()

    def _check_going_on(self) -> None:
        """Raises ConnectionError: the stream has ended for its client."""
        if self._error is not None:
            raise self._error
        if self.stopped is not None:
            raise _ended(self.stopped)

    async def _take(self, out: web.StreamResponse, chunk: bytes) -> None:
        self._check_going_on()
        if self._is_open or (self._cutter.is_empty and _is_comment(chunk)):
            await self._response.put(out, chunk)  # it shows that the server is alive, and has no text
            return
        events: deque[bytes] = deque()
        try:
            events.extend(self._cutter.feed(chunk))
            while events:
                self._hold.add(StreamEvent(events[0]), self._response.now_s)
                events.popleft()
            if self._hold.is_beyond_bounds or not self._has_room():
                raise GuardFailed("there is no room for so long a stream")
        except GuardFailed as error:
            await self._open_or_stop(out, str(error), b"".join(events) + self._cutter.rest())
            return
        await self._advance(out)

    async def _open_or_stop(self, out: web.StreamResponse, why: str, unread: bytes) -> None:
        """Guards cannot read the stream. What waits is looked at; the rest passes, or the stream ends."""
        verdict = self._response.unreadable(why)
        if not verdict.passes:
            await self._stop(out, verdict)
        self._hold.end()
        await self._advance(out)
        self._is_open = True
        await self._response.put(out, unread)

    async def _advance(self, out: web.StreamResponse) -> None:
        """Sends what may be sent, after guards have looked where they have to."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._response.put(out, self._hold.passing())
        now_s = self._response.now_s
        if self._hold.is_due(now_s):
            verdict = await self._response.check(self._hold.texts())
            if not verdict.passes:
                await self._stop(out, verdict)
            await self._response.put(out, self._hold.seen(verdict.spans, now_s))
        if (due_s := self._hold.due_s()) is not None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._begin_late)

    def _begin_late(self) -> None:
        # One that has not ended holds the lock, and looks at the time again when it ends.
        if self._late is None or self._late.done():
            self._late = observe(asyncio.create_task(self._advance_late(), name="look of guards at a slow stream"))

    async def _advance_late(self) -> None:
        """The server is slow: what waits has waited long enough. Its next write raises what is raised here."""
        async with self._lock:
            if self.out is None or self.stopped is not None or self.ended:
                return
            try:
                await self._advance(self.out)
            except ConnectionError as error:
                self._error = error

    async def _stop(self, out: web.StreamResponse, verdict: StageVerdict) -> None:
        """Ends the stream. Raises UnusableResponse."""
        self.stopped = verdict
        if verdict.blocked:
            self._response.blocked()
        await self._response.put(out, self._response.refusal_event(verdict))
        with contextlib.suppress(ConnectionError):
            await out.write_eof()
        raise _ended(verdict)

    def _has_room(self) -> bool:
        """Counts what is held; returns whether there is room for it."""
        more = self._hold.held_characters - self._counted_bytes
        if more < _STEP_BYTES:
            return True
        self._counted_bytes += more
        return self._response.grow(more)


def _is_comment(chunk: bytes) -> bool:
    """Whether bytes are lines of comments and nothing else, without the empty line that ends an event."""
    return chunk.endswith(b"\n") and all(line.startswith(b":") for line in chunk.splitlines())


def _ended(verdict: StageVerdict) -> UnusableResponse:
    code = "content_blocked" if verdict.blocked else "guard_failed"
    return UnusableResponse(code, of_server=False, status=200)


def client_headers(headers: "CIMultiDict[str]") -> "CIMultiDict[str]":
    """Headers of a response that was written to a stand-in, for the client's own."""
    crossing = CIMultiDict(headers)
    for name in _OF_CONNECTION:
        crossing.popall(name, None)
    return crossing
