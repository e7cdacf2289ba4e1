"""Sends one response to its client, chunk by chunk, from one server or, if that one fails, from the next."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict

from slipway_contracts.headers import DEGRADED, FALLBACK, FEEDBACK, RECOMPUTES, RESUME, RETURNS, ROUTE
from slipway_process.network.http_server import may_send_whole, send_whole

from ..judging.outcome import ITL
from ..mirror.queue import MirrorQueue
from ..quotas.meter import Meter
from ..quotas.usage import RESPONSES, Usage, last_usage, usage_of_response
from ..routing.split import tag
from ..telemetry.metrics import RequestRecord
from ..upstream.endings import is_death
from ..upstream.exchange import Reply, UpstreamRequest, UpstreamResponse
from ..wire import errors, headers
from ..wire.inference import is_predict
from ..wire.model_names import renamed, renamed_events
from ..wire.predictions import first_prediction
from ..wire.resume import StreamProgress
from ..wire.sse import DONE, EventAligner, error_event, split_crash_comment
from .bodies import SLICE_BYTES
from .crashes import CrashTracker
from .event_relays import GOES_ON, EventRelays, LentStream, Recount, StreamState
from .poison import PASSED_EVENTS
from .resume_memory import stream_key
from .resumption import Resumption
from .retry_state import RetryState

if TYPE_CHECKING:
    from slipway_plane import _native

_MESSAGES = {
    "timeout": "The model stopped answering in time.",
    "upstream_died": "The server of this answer went away, and no other one could go on with it.",
    "request_crashed_engine": str(errors.crashed_engine()),
    errors.ENGINE_CRASHED: str(errors.engine_crashed(long=True)),
    "drained": "The gateway is shutting down and the time for its last requests is over.",
}
_OUTCOMES = {
    "upstream_died": "upstream_error",
    "request_crashed_engine": errors.POISON,
    errors.ENGINE_CRASHED: "upstream_error",
}
_STATUSES = {"request_crashed_engine": 422, errors.ENGINE_CRASHED: 503}
# Memory of a stream is counted in steps of this size.
_STEP_BYTES = 4 << 10
# A write of at most this size into an empty buffer does not wait for the client: it is half of what the transport
# buffers before a write waits.
_AT_ONCE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What all relays of a gateway share."""

    resumption: Resumption
    mirror: MirrorQueue
    crashes: CrashTracker
    clock: Callable[[], float]
    stall_timeout_s: float
    events: EventRelays


class Relay:
    """One response. After the first byte it raises only cancellation and the time limit."""

    def __init__(
        self,
        context: RelayContext,
        request: web.Request,
        outgoing: UpstreamRequest,
        response: UpstreamResponse,
        record: RequestRecord,
        *,
        opened: web.StreamResponse | None = None,
        feedback: str = "",
    ) -> None:
        """`opened`: the response in which the client got comments while it waited. `feedback`: token for the client."""
        self._context = context
        self._clock = context.clock
        self._request = request
        self._call = outgoing
        self._answer = response
        self._record = record
        streams_events = response.streams_events
        self._aligner = EventAligner() if streams_events else None
        self._progress = self._begin_progress(response) if streams_events else None
        self._done = False
        self._crashed = False  # the server reported that its engine died
        self._events = 0  # of the stream that came from the server which has it now
        self._died = False  # the server ended the connection in the middle of the response
        self._counted_bytes = 0
        # A cache that keeps the stream, and another model name, take every event.
        plain = outgoing.capture is None and not outgoing.responds_as
        self._may_lend = self._aligner is not None and plain
        self._state: RetryState | None = None  # of all resumes of the stream
        if outgoing.watch is not None:
            outgoing.watch.answered(response)
        self._mirrored = context.mirror.copy_of(outgoing, response, record.request_id, request.headers)
        crossing = headers.to_client(
            response.headers, record.request_id, response.endpoint.revision, forwarded=outgoing.forwarded
        )
        self._meter = self._begin_meter(outgoing, response)
        record.find_usage = self.usage
        if outgoing.meter:
            crossing.update(outgoing.meter.limit_headers)
        if feedback:
            crossing[FEEDBACK] = feedback
        if outgoing.fallback:
            crossing[FALLBACK] = outgoing.fallback
        if outgoing.degraded:
            crossing[DEGRADED] = ", ".join(outgoing.degraded)
        if record.rules:
            crossing[ROUTE] = record.rules
        if outgoing.capture:
            outgoing.capture.begin(response, crossing)
        whole = self._aligner is None and response.rest is None and len(response.start) <= SLICE_BYTES
        self._whole = WholeResponse(response.status, crossing) if whole and opened is None else None
        out = opened if opened is not None else self._whole
        self._out = out if out is not None else web.StreamResponse(status=response.status, headers=crossing)

    async def run(self) -> web.StreamResponse:
        out = self._out
        try:
            if self._whole is not None:
                await self._send_whole(self._whole)
                return out
            if not out.prepared:
                await self._open()
            self._record.first_byte = self._clock()
            await self._stream()
        except UnusableResponse as error:
            self._unusable(error)
        except (ConnectionError, _StalledClient):
            self._client_left()
        return out

    async def _open(self) -> None:
        rewritten = self._progress or (self._meter and self._meter.strips_usage) or self._call.responds_as
        # Of events some may be left out, such as comments.
        if not rewritten and self._aligner is None and (length := self._answer.length) is not None:
            self._out.content_length = length
        await self._out.prepare(self._request)  # it never waits
        self._out.headers.clear()  # they were sent, and a stream would hold some KiB of them
        if self._call.meter:
            self._call.meter.limit_headers.clear()

    async def end(self, code: str) -> web.StreamResponse:
        """Ends a broken response: a stream with an error event, any other one by an abort, so it never looks complete.

        `code`: a key of `_MESSAGES`.
        """
        if self._answer.attempt and code != "drained":
            self._answer.attempt.failed()
        self._record.end(_OUTCOMES.get(code, code), self._answer.status, code)
        if not (self._aligner and self._out.prepared):
            self._abort()
            return self._out
        try:
            event = error_event(self._request.path, code, _MESSAGES[code], _STATUSES.get(code, 502))
            await self._send(self._out.write(event), len(event))
            await self._send(self._out.write_eof())
        except (ConnectionError, _StalledClient):
            self._client_left()
        return self._out

    def close(self) -> None:
        writer = self._request.writer
        # A connection behind the writer may lose what it took.
        remembers = isinstance(writer, WholeWriter) and writer.remembers
        if self._progress and (remembers or not self._done):
            self._context.resumption.remember(self._call, self._progress)
        self._answer.close()
        if self._mirrored:
            self._context.mirror.passed(self._mirrored)

    def usage(self) -> tuple[Usage, bool] | None:
        """Tokens of the response so far, and whether they are an estimate; None where they are not known."""
        if self._meter:
            return self._meter.usage, self._meter.estimated
        found = None
        if self._progress and (prompt := headers.prompt_tokens(self._answer.headers)) is not None:
            found = Usage(prompt, self._progress.position)
        elif self._aligner is None and self._answer.rest is None:
            found = (usage_of_response if self._call.path == RESPONSES else last_usage)(self._answer.start)
        return (found, False) if found else None

    def _begin_progress(self, response: UpstreamResponse) -> StreamProgress | None:
        endpoint = response.endpoint
        return StreamProgress.begin(response.headers, endpoint.revision, tag(endpoint.url), self._call.tokens)

    def _begin_meter(self, outgoing: UpstreamRequest, response: UpstreamResponse) -> Meter | None:
        """Starts the request's meter; None where no tenant is charged: there is none, or the status is not 200."""
        if outgoing.meter is None or response.status != 200:
            return None
        progress, received = self._progress, response.headers
        continues = progress is not None and outgoing.headers.get(RESUME, "").startswith(f"{progress.stream}.")
        recomputes = continues and RECOMPUTES in received
        # What is computed again is a response of its own, which is charged again.
        response_id = stream_key(progress.stream, outgoing).hex() if progress and not recomputes else ""
        goes_on = progress is not None and RETURNS in outgoing.headers
        revision = response.endpoint.revision
        outgoing.meter.begin(
            revision, received, response_id, continues=continues, recomputes=recomputes, goes_on=goes_on
        )
        return outgoing.meter

    async def _stream(self) -> None:
        while gone := await self._copy():
            try:
                resumed = await self._resume()
            except errors.RequestError as refusal:
                resumed, gone = False, refusal.code
            if not resumed:
                await self.end(gone)
                return
        # The server is done: whatever the client does now does not change the outcome.
        self._complete()
        if self._aligner and (rest := self._aligner.flush()):
            if self._meter:
                self._meter.add_events(rest)
            await self._send(self._out.write(rest), len(rest))
        await self._send(self._out.write_eof())
        self._ended()

    async def _send_whole(self, out: "WholeResponse") -> None:
        body = self._answer.start
        self._record.first_byte = now_s = self._clock()
        if body and (recorder := self._answer.recorder):
            recorder.server_sent(now_s)
        ready = self._ready(body)
        self._complete()
        await self._send(out.send(self._request, ready), len(body))
        self._ended()

    def _ended(self) -> None:
        self._done = True
        self._record.end(self._answer.outcome, self._answer.status)
        if self._answer.status == 200:
            self._context.crashes.completed(self._call)
        if self._mirrored:
            self._context.mirror.offer(self._mirrored)

    async def _copy(self) -> str:
        """Forwards the response to its end; returns why it broke off, else an empty string."""
        chunk, rest, recorder = self._answer.start, self._answer.rest, self._answer.recorder
        while chunk:
            if recorder:
                recorder.server_sent(self._clock())
            await self._forward(self._ready(chunk))
            if rest is None:
                break
            if recorder:
                recorder.wait_for_server(self._clock())
            if self._may_lend and (lent := self._lend(rest)):
                await self._relay_events(lent)
            try:
                chunk = await rest.content.readany()
            except aiohttp.ServerTimeoutError:
                return "" if self._record.whole else "timeout"
            except (aiohttp.ClientError, OSError) as error:
                self._died = is_death(error)
                return "" if self._record.whole else "upstream_died"
        return ""

    async def _forward(self, ready: bytes) -> None:
        if ready:
            await self._write_slices(ready)
            if self._aligner and ready.endswith(DONE):
                self._stream_complete()

    def _lend(self, rest: Reply) -> LentStream | None:
        """The data plane may relay what follows the first events, unless a copy of the stream is kept."""
        recorder = self._answer.recorder
        if self._mirrored or not self._record.sent_bytes or (recorder and not (recorder.has_begun or recorder.ended)):
            return None
        return self._context.events.lend(self._request, rest)

    async def _relay_events(self, lent: LentStream) -> None:
        """Has the data plane relay events until something else happens, which shows in the rest of the response.

        Raises ConnectionError, _StalledClient: the client is gone.
        """
        assert self._aligner is not None
        state = StreamState(self._aligner, self._progress, self._meter, self._answer.recorder)
        samples = self._context.events.samples(self._record.id)
        state.relayed_by(lent.native)
        why, number = "", 0
        try:
            while why in GOES_ON or not why:
                recount = Recount(state) if samples else None
                passing = state.passing(max(self._counted_bytes, self._held_bytes))
                why, number = await lent.relay(passing, keeps=samples)
                passed = lent.take()
                self._passed_on(state, passed)
                if recount and passed.pieces:
                    found = recount.differences(passed, state, why)
                    self._context.events.recounted(self._call.whose, found, self._record.id)
                await self._look(why, passed.data)
                if why in GOES_ON:
                    await self._all_sent()
        finally:
            state.relayed_by(None)
            if (cut := lent.end("" if why in GOES_ON else why, number)) is not None:
                self._passed_on(state, cut[0])
                if cut[1]:  # clients hang up then, and that came first
                    self._stream_complete()
        self._may_lend = why != "lost"
        if why == "left":
            raise ConnectionResetError("the client is gone")
        if why == "stalled":
            raise _StalledClient

    def _passed_on(self, state: StreamState, passed: "_native.Passed") -> None:
        """Takes what the data plane made of the stream."""
        state.goes_on(passed)
        self._events += passed.events
        self._record.sent_bytes += passed.sent_bytes
        self._record.stalled_s += passed.stalled_s
        transport = self._request.transport
        if passed.unsent and transport is not None and not transport.is_closing():
            transport.write(passed.unsent)  # the client has the beginning of this chunk

    async def _all_sent(self) -> None:
        """Waits until the client's socket has all that was written: the data plane writes to it by itself.

        Raises ConnectionError, _StalledClient: the client is gone.
        """
        transport = self._request.transport
        if transport is None or not transport.get_write_buffer_size():
            return
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(0)  # a drain is over when nothing is left
        try:
            await self._send(self._request.writer.drain())
        finally:
            transport.set_write_buffer_limits(high, low)

    async def _look(self, why: str, data: bytes) -> None:
        """Does what a pause is for. `data`: of it."""
        if why == "done":
            self._stream_complete()
        elif why == "room":
            self._count(self._held_bytes)
        elif why == "silent" and self._answer.recorder:
            self._answer.recorder.check_silence(self._clock())
        elif why == "events":
            await self._forward(self._pass(data))
        elif why == "long":
            await self._forward(data)

    def _stream_complete(self) -> None:
        """The client has the last event of the stream: what happens from now on does not change the outcome."""
        self._complete()
        self._record.end(self._answer.outcome, self._answer.status)
        self._record.whole = True

    def _complete(self) -> None:
        response = self._answer
        if capture := self._call.capture:
            usage = self.usage()
            capture.end(usage[0] if usage else None, time.time())
        if response.recorder is None:
            return
        now_s, wants_json = self._clock(), self._call.wants_json
        if self._aligner:
            response.recorder.complete_stream(now_s, wants_json=wants_json)
            outcome = response.recorder.outcome
            self._record.itl_s = outcome.seconds.get(ITL) if outcome else None
        else:
            readable = response.rest is None and self._call.writes_text
            response.recorder.complete(response.start if readable else None, now_s, wants_json=wants_json)
            predicts = response.status == 200 and self._call.computes and is_predict(self._call.path)
            if predicts and (count := response.recorder.on_prediction):
                whole = response.rest is None
                count(first_prediction(self._call.path, response.headers, response.start) if whole else None)

    def _ready(self, chunk: bytes) -> bytes:
        if self._aligner is None:
            if self._meter:
                self._meter.add_body(chunk)
            chunk = renamed(chunk, self._call.responds_as) if self._renames_whole else chunk
            if self._call.capture:
                self._call.capture.add(chunk)
            return chunk
        return self._pass(self._aligner.feed(chunk))

    def _pass(self, events: bytes) -> bytes:
        """Counts whole events; returns them as the client gets them."""
        events, self._crashed = split_crash_comment(events)
        self._events += events.count(b"\n\n")
        if events and self._mirrored:
            self._mirrored.add_part(events)
        assert self._aligner is not None
        state = StreamState(self._aligner, self._progress, self._meter, self._answer.recorder)
        keep = self._keep if self._call.capture else None
        events = state.pass_events(events, self._clock(), keep)
        if events and self._call.responds_as:
            events = renamed_events(events, self._call.responds_as)
        self._count(self._held_bytes)
        return events

    def _keep(self, events: bytes) -> None:
        """Keeps events of the stream as clients get them."""
        assert self._call.capture
        self._call.capture.add(renamed_events(events, self._call.responds_as) if self._call.responds_as else events)

    @property
    def _renames_whole(self) -> bool:
        """Whether the response gets another model name: it is JSON, not compressed, and all of it is here."""
        received = self._answer.headers
        is_json = received.get("Content-Type", "").startswith("application/json") and "Content-Encoding" not in received
        return bool(self._call.responds_as) and is_json and self._answer.rest is None

    @property
    def _held_bytes(self) -> int:
        """Of memory that the stream holds."""
        held_bytes = self._aligner.held_bytes if self._aligner else 0
        return held_bytes + (self._progress.size_bytes if self._progress else 0)

    def _count(self, held_bytes: int) -> None:
        """Counts in the budget what a stream keeps: tokens to resume it with, and the beginning of an event.

        Without room for them the tokens are forgotten, and the stream cannot be resumed.
        """
        more = held_bytes - self._counted_bytes
        if more < _STEP_BYTES:
            return
        if self._call.account.grow(more):
            if self._progress:
                self._progress.forget()
            return
        self._counted_bytes = held_bytes

    async def _write_slices(self, data: bytes) -> None:
        """Sends long data in slices, because a transport copies what it cannot send. A client that does not read may be
        evicted when others need the room."""
        if len(data) <= SLICE_BYTES:
            await self._send(self._out.write(data), len(data))
            return
        account = self._call.account
        account.waits(self._abort)
        try:
            for begin in range(0, len(data), SLICE_BYTES):
                part = data[begin : begin + SLICE_BYTES]
                await self._send(self._out.write(part), len(part))
                account.moved()
        finally:
            account.goes_on()

    def _note_death(self) -> None:
        """The request may have ended its engine although its response had begun.

        Raises RequestError: the request goes to no other endpoint.
        """
        if self._answer.attempt is None:
            return  # a provider's: whatever it says, none of our engines died
        endpoint = self._answer.endpoint
        reported = self._aligner is not None and (self._crashed or self._aligner.reports_crash())
        died, self._crashed, self._died = self._died, False, False
        if reported or (died and self._context.crashes.stays(endpoint)):
            passed, state = self._events >= PASSED_EVENTS, self._resumes()
            self._context.crashes.note(
                self._call, endpoint, self._record, state, on_trial=False, passed=passed, reported=reported
            )

    async def _resume(self) -> bool:
        broken = self._answer
        self._note_death()
        if not self._progress or not self._aligner:
            return False
        if broken.attempt:
            broken.attempt.failed()
        if broken.rest:
            broken.rest.close()
        # The attempt ends when the next server has the stream: a revision with a stream in flight keeps its pods.
        rest = await self._context.resumption.resume(self._call, self._progress, broken, self._record, self._resumes())
        if rest is None:
            return False
        broken.close()
        self._answer, self._events = rest, 0
        self._progress.moves_to(tag(rest.endpoint.url))
        self._aligner.drop()
        return True

    def _resumes(self) -> RetryState:
        if self._state is None:
            self._state = self._context.resumption.new_state()
        return self._state

    async def _send(self, write: Awaitable[object], size_bytes: int = 0) -> None:
        transport = self._request.transport
        if transport is not None and size_bytes <= _AT_ONCE_BYTES and not transport.get_write_buffer_size():
            # It does not wait for the client, so it needs no time limit: most writes are such.
            await write
            self._record.sent_bytes += size_bytes
            return
        began_s = self._clock()
        try:
            async with asyncio.timeout(self._context.stall_timeout_s):
                await write
        except TimeoutError:
            raise _StalledClient from None
        finally:
            self._record.stalled_s += self._clock() - began_s
        self._record.sent_bytes += size_bytes

    def _unusable(self, error: "UnusableResponse") -> None:
        if error.of_server and self._answer.attempt:
            self._answer.attempt.failed()
        self._record.end("upstream_error" if error.of_server else "refused", error.status, error.code)

    def _client_left(self) -> None:
        self._record.left()
        self._abort()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


class UnusableResponse(ConnectionError):
    """A writer without a connection cannot use what the server sent: the rest is not read, and the client stays.

    `of_server`: the server failed; else the gateway has no room. `status`: of what the client gets in its place.
    """

    def __init__(self, code: str, *, of_server: bool, status: int) -> None:
        super().__init__(code)
        self.code, self.of_server, self.status = code, of_server, status


class WholeWriter(ABC):
    """A writer that takes a response at once: there is no connection behind it.

    `remembers`: its client may come back for events that were written, whole streams too.
    """

    remembers = False

    @abstractmethod
    def take_whole(self, status: int, headers: CIMultiDict[str], body: bytes) -> None:
        """Takes a whole response. Raises UnusableResponse: it has no room."""


class WholeResponse(web.StreamResponse):
    """A response whose body has arrived: head and body are one write, with the bytes that aiohttp would send."""

    _send_headers_immediately = False  # where aiohttp sends it

    def __init__(self, status: int, headers: CIMultiDict[str]) -> None:
        super().__init__(status=status, _real_headers=headers)

    async def send(self, request: web.BaseRequest, body: bytes) -> None:
        """Sends it to the client of `request`. Raises ConnectionError: the client is gone."""
        writer, headers = request.writer, self._headers
        headers[hdrs.CONTENT_LENGTH] = str(len(body))
        if isinstance(writer, WholeWriter):
            writer.take_whole(self._status, headers, body)
            self._eof_sent, self._body_length = True, len(body)
            return
        if not may_send_whole(request, self._status):
            await self.prepare(request)
            await self.write_eof(body)
            return
        await send_whole(self, request, body)


class _StalledClient(Exception):
    pass
