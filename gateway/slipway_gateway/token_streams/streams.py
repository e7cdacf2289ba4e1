"""Runs requests for streams of tokens through the API, and remembers them for clients that come back."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion
from multidict import CIMultiDict, CIMultiDictProxy

from slipway_contracts.headers import RESUMABLE

from ..forwarding.stand_ins import BodyStandIn, CallConnection, Peer, RequestHead, request_without_connection
from ..serving import requester
from ..serving.api import PublicApi
from ..settings import GatewaySettings
from ..telemetry.metrics import LEFT, RequestRecord
from ..wire import errors
from ..wire.headers import REQUEST_ID
from ..wire.resume import LAST_EVENT_ID
from .events import Failure, StreamError, TokenEvent, error_in
from .marks import DECODE, ENCODE, EventMarks, RememberedStream
from .messages import Generate, Resume
from .writer import EventWriter

PATH = "/v1/generate"
CANCELLED, TAKEN_OVER, EVICTED = "cancelled", "taken_over", "overloaded"
# Status and text of a request that ends for a reason of its client.
_ENDS = {
    CANCELLED: (499, "The client cancelled the request."),
    TAKEN_OVER: (409, "Another connection of this client goes on with the stream."),
    EVICTED: (429, "The client did not read its stream while the gateway was at its limit of memory."),
}
_MAX_ERROR_BYTES = 64 << 10  # of an error response that is read


class Sink(Protocol):
    """Takes what a client gets of one request. Both raise ConnectionError: the client is gone."""

    async def deliver(self, event: TokenEvent) -> None:
        """Sends an event; its last one is no error."""

    async def fail(self, failure: Failure) -> None:
        """Sends the end of the request."""

    def stalled(self) -> None:
        """The client is gone, or does not read: it gets nothing more."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a connection. `path`, `method`, `version`: as the access log has them.

    `headers`: of all its requests. `is_cutting`: whether this gateway itself cancels its requests now.
    """

    path: str
    method: str
    version: HttpVersion
    headers: CIMultiDict[str]
    peer: Peer
    is_cutting: Callable[[], bool]

    def outer(self, id_: str, body: bytes, connection: CallConnection, writer: EventWriter) -> web.Request:
        """The request as its client made it, which is counted."""
        headers = self.headers.copy()
        if id_:
            headers[REQUEST_ID] = id_
        return self._request(self.method, self.path, headers, body, connection, writer)

    def inner(self, id_: str, generate: Generate, connection: CallConnection, writer: EventWriter) -> web.Request:
        """The request as a client of HTTP would have made it, which is routed."""
        headers = _headers_of(self.headers, id_, generate)
        return self._request("POST", PATH, headers, generate.body, connection, writer)

    def _request(self, method: str, path: str, headers: CIMultiDict[str], body: bytes, *stand_ins: Any) -> web.Request:
        connection, writer = stand_ins
        head = RequestHead(method, path, CIMultiDictProxy(headers), self.version, self.peer.address)
        return request_without_connection(head, BodyStandIn(body), connection, writer, asyncio.current_task())


class StreamRun:
    """One request that runs, in the task that made this. `id_`: of its client, or `new_id`."""

    def __init__(self, id_: str, start: Generate | Resume, caller: Caller, sink: Sink) -> None:
        self.id, self.start, self.caller, self.sink = id_, start, caller, sink
        self.connection = CallConnection(caller.peer, caller.is_cutting, self._abort)
        self.end = ""  # why its client ends it, one of `_ENDS`
        self.is_over = False  # its client has the last message
        self.owner = ""
        self.body = b""
        self._task = asyncio.current_task()
        self._left = asyncio.Event()
        self._delivers = False

    def cancel(self, end: str) -> None:
        """Ends it, unless it ends already."""
        if not self.end and not self.is_over and self._task is not None:
            self.end = end
            self._task.cancel()

    def _abort(self) -> None:
        """Its response must not go on. Without a write that waits for the client it does not."""
        if self._delivers:
            self.cancel(EVICTED)

    def leave(self) -> None:
        """Nothing more is delivered, and what was is remembered."""
        self._left.set()

    async def left(self) -> None:
        """Returns after `leave`."""
        await self._left.wait()

    @property
    def key(self) -> bytes:
        return _key(self.owner, self.id)

    async def deliver(self, event: TokenEvent) -> None:
        """Raises ConnectionError: the client is gone."""
        self._delivers = True
        try:
            await (self.sink.deliver(event) if event.error is None else self.sink.fail(Failure(0, event.error)))
        finally:
            self._delivers = False
        self.is_over = event.is_last

    def uncancel(self) -> bool:
        """Whether its client alone cancelled the task; the task may then go on."""
        return bool(self.end) and self._task is not None and not self._task.uncancel()


class TokenStreams:
    """The streams of one gateway, of all its connections."""

    def __init__(self, api: PublicApi, settings: GatewaySettings) -> None:
        self._api, self._settings = api, settings
        self._running: dict[bytes, StreamRun] = {}  # by `StreamRun.key`, the last one of an id

    async def run(self, run: StreamRun) -> "CIMultiDict[str]":
        """Runs a request to its end; returns the headers of its response. Must be called in the task that made `run`.

        Raises CancelledError, unless the client alone cancelled it.
        """
        writer = EventWriter(self._settings.max_body_bytes, run.deliver, EventMarks())
        failure: Failure | None = None
        try:
            failure = await self._serve(run, writer)
        except asyncio.CancelledError:
            if not run.uncancel():
                raise
            status, message = _ENDS[run.end]
            failure = Failure(status, StreamError(message, "invalid_request_error", None, run.end))
        finally:
            self._leave(run, writer)
        if failure is not None:
            with contextlib.suppress(ConnectionError):
                await run.sink.fail(failure)
        return writer.headers

    def refuse(self, caller: Caller, refusal: errors.RequestError, id_: str = "", body: bytes = b"") -> Failure:
        """What a client gets for a message that is no request, or one too many. It counts as a request."""
        writer = EventWriter(0, _nowhere, EventMarks())
        connection = CallConnection(caller.peer, caller.is_cutting)
        request = caller.outer(id_, body, connection, writer)
        return _failure_of(self._api.refuse(refusal, request, caller.path))

    async def _serve(self, run: StreamRun, writer: EventWriter) -> Failure | None:
        caller, records = run.caller, list[RequestRecord]()

        async def work(request: web.Request, record: RequestRecord) -> web.StreamResponse:
            records.append(record)
            run.owner = requester.client_of(request, record.identity, self._settings)
            generate = await self._resolved(run, writer)
            run.body, self._running[run.key] = generate.body, run
            inner = caller.inner(run.id, generate, run.connection, writer)
            response = await self._api.routed(inner, record)
            _check_end(writer, record)
            return response

        body = run.start.body if isinstance(run.start, Generate) else b""
        response = await self._api.serve(caller.outer(run.id, body, run.connection, writer), work, caller.path)
        if writer.finished:
            return None
        if records and records[0].outcome == LEFT:
            run.sink.stalled()
            return None
        if not response.prepared:
            assert isinstance(response, web.Response)
            writer.headers = response.headers
            return _failure_of(response)
        if writer.ended and not writer.streams:
            return _failure(writer.status, writer.headers, b"".join(writer.parts))
        message = "The server of this answer sent no whole stream."
        return Failure(502, StreamError(message, "server_error", None, "invalid_response"))

    async def _resolved(self, run: StreamRun, writer: EventWriter) -> Generate:
        """The request that a client sends, or the one whose stream it resumes. Raises RequestError."""
        start = run.start
        if isinstance(start, Generate):
            if start.last_event_id:
                writer.marks.add(start.last_event_id)
            return start
        if (former := self._running.get(run.key)) is not None:
            # Its connection may be dead without a sign of it. What it has delivered is remembered at its end.
            former.cancel(TAKEN_OVER)
            await former.left()
        remembered = self._remembered(run.key)
        if remembered is None:
            raise stream_not_found()
        marks = remembered.to_marks()
        event_id = marks.event_id(start.position)
        if not event_id:
            message = f"`from` is {start.position}, at which no event of this stream ended that is remembered."
            raise errors.invalid("invalid_position", message, param="from")
        writer.marks = marks.up_to(start.position)
        return Generate(start.id, remembered.body, start.resumable, event_id)

    def _remembered(self, key: bytes) -> RememberedStream | None:
        kept = self._api.streams.find(key)
        return DECODE(kept) if kept else None

    def _leave(self, run: StreamRun, writer: EventWriter) -> None:
        """Remembers how far a stream is. Its client may have lost what was sent last, whole streams too."""
        if self._running.get(run.key) is run:
            del self._running[run.key]
        if writer.marks and run.end != CANCELLED:
            self._api.streams.keep(run.key, ENCODE(RememberedStream.of(run.body, writer.marks)), run.owner)
        run.leave()


def new_id() -> str:
    """An id that no other client can know."""
    return os.urandom(16).hex()


def stream_not_found() -> errors.RequestError:
    """The same for an id that another client has: no client learns of it."""
    message = (
        "This gateway remembers no stream of that id: send its request with the `event_id` of the last event "
        "as `last_event_id`, or as a new one."
    )
    return errors.invalid("stream_not_found", message, status=404, param="id")


def _check_end(writer: EventWriter, record: RequestRecord) -> None:
    """A response that a server ended well, without what this API promises, is a failure of the server."""
    if record.outcome == "ok" and not writer.finished:
        record.end("upstream_error", 502, "invalid_response")


def _headers_of(headers: CIMultiDict[str], id_: str, generate: Generate) -> CIMultiDict[str]:
    sent = headers.copy()
    sent[hdrs.CONTENT_TYPE], sent[hdrs.CONTENT_LENGTH] = "application/json", str(len(generate.body))
    sent[REQUEST_ID] = id_
    if generate.last_event_id:
        sent[LAST_EVENT_ID] = generate.last_event_id
    if generate.resumable:
        sent[RESUMABLE] = "1"
    return sent


def _key(owner: str, id_: str) -> bytes:
    return blake2b(owner.encode() + b"\0" + id_.encode(), digest_size=16, person=b"stream by id").digest()


def _failure_of(response: web.Response) -> Failure:
    body = response.body if isinstance(response.body, bytes) else b""
    return _failure(response.status, response.headers, body)


def _failure(status: int, headers: "CIMultiDict[str]", body: bytes) -> Failure:
    if status == 200:
        status, body = 502, b""
    return Failure(status, error_in(body if len(body) <= _MAX_ERROR_BYTES else b""), _retry_after_ms(headers))


def _retry_after_ms(headers: "CIMultiDict[str]") -> int | None:
    for name, factor in (("retry-after-ms", 1), ("Retry-After", 1000)):
        value = headers.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 8:
            return int(value) * factor
    return None


async def _nowhere(_: TokenEvent) -> None:
    return None
