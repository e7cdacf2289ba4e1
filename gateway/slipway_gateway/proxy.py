"""Forwards one request: attempts until a first byte, then streams the answer through, chunk by chunk."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from .backends import Backends, Lease
from .router import Target
from .settings import Settings
from .telemetry.metrics import Metrics, Record
from .wire import errors, headers
from .wire.sse import CONTENT_TYPE, EventAligner, error_event

RETRIED_STATUSES = frozenset({429, 502, 503})
# A whole answer up to this size is read before its first byte is sent: a server that dies in it is still a clean 502.
_MAX_WHOLE_BYTES = 1 << 20
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0
_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked of an endpoint; the same bytes for every attempt."""

    model: str
    key: str
    path_qs: str
    headers: CIMultiDict[str]
    body: bytes

    @property
    def path(self) -> str:
        return self.path_qs.partition("?")[0]


@dataclass(slots=True)
class Answer:
    """An answer whose first byte is at hand; `rest` is None when `start` is all of it."""

    target: Target
    status: int
    headers: CIMultiDict[str]
    start: bytes
    rest: aiohttp.ClientResponse | None = None
    lease: Lease | None = None

    @property
    def streams_events(self) -> bool:
        return self.headers.get("Content-Type", "").startswith(CONTENT_TYPE)

    def close(self) -> None:
        # Closing an unfinished upstream response closes its connection: that is how the server learns of a cancel.
        if self.rest is not None:
            self.rest.close()
        if self.lease is not None:
            self.lease.release()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an attempt may be repeated elsewhere. `answer` is what to relay when nothing better comes."""

    reason: str
    sent: bool = True
    answer: Answer | None = None

    @property
    def busy(self) -> bool:
        return self.reason == "429"


@dataclass(slots=True)
class Effort:
    """What was tried for one request so far."""

    hold_until: float
    pause_s: float = _FIRST_PAUSE_S
    attempts: int = 0
    sent: int = 0
    tried: set[str] = field(default_factory=set)
    last: Fault | None = None

    def note(self, url: str, fault: Fault) -> None:
        self.tried.add(url)
        self.sent += fault.sent
        self.last = fault


class Proxy:
    """Owns the connections to the endpoints."""

    def __init__(
        self, settings: Settings, backends: Backends, metrics: Metrics, session: aiohttp.ClientSession
    ) -> None:
        self._settings = settings
        self._backends = backends
        self._metrics = metrics
        self._session = session
        self._held = 0
        self._clock = asyncio.get_running_loop().time

    async def forward(self, request: web.Request, call: Call, record: Record, *, close: bool) -> web.StreamResponse:
        deadline = self._clock() + self._settings.request_timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._first_answer(call, record)
        except TimeoutError:
            raise errors.timed_out() from None
        try:
            return await Relay(self, request, answer, record, deadline).run(close=close)
        finally:
            answer.close()

    # -- until the first byte

    async def _first_answer(self, call: Call, record: Record) -> Answer:
        effort = Effort(hold_until=self._clock() + self._settings.hold_timeout_s)
        while effort.sent < self._settings.max_attempts:
            target = self._backends.pick(call.model, call.key, effort.tried)
            if target is None:
                if (effort.last and effort.last.busy) or not await self._hold(effort):
                    break
                continue
            record.revision = target.revision
            result = await self._attempt(call, target, first=effort.attempts == 0)
            if isinstance(result, Answer):
                return result
            effort.attempts += 1
            effort.note(target.url, result)
            self._metrics.retried(target.model, target.revision, result.reason)
        return self._give_up(call, effort)

    def _give_up(self, call: Call, effort: Effort) -> Answer:
        if effort.last is None:
            raise errors.no_endpoint(call.model)
        if effort.last.answer is None:
            raise errors.unreachable(effort.last.reason)
        return effort.last.answer

    async def _hold(self, effort: Effort) -> bool:
        """Waits for a change of the table or a pause; False when the time or the places for it are used up."""
        left = effort.hold_until - self._clock()
        if left <= 0 or self._held >= self._settings.max_held:
            return False
        self._held += 1
        self._metrics.held.inc()
        try:
            # An endpoint that failed is tried again after a pause; where there is none, only a new table can help.
            await self._backends.changed(min(left, effort.pause_s) if effort.tried else left)
        finally:
            self._held -= 1
            self._metrics.held.dec()
        effort.pause_s = min(effort.pause_s * 2, _MAX_PAUSE_S)
        effort.tried.clear()
        return True

    async def _attempt(self, call: Call, target: Target, *, first: bool) -> Answer | Fault:
        lease = self._backends.lease(target, first=first)
        response: aiohttp.ClientResponse | None = None
        done = False
        try:
            response = await self._post(call, target)
            result = await self._read_start(target, response, lease)
            done = isinstance(result, Answer)
            return result
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            lease.failed()
            return Fault("connect", sent=False)
        except TimeoutError:
            lease.failed()
            raise
        except (aiohttp.ClientError, OSError):
            lease.failed()
            return Fault("reset")
        finally:
            if not done:
                lease.release()
                if response is not None:
                    response.close()

    async def _post(self, call: Call, target: Target) -> aiohttp.ClientResponse:
        return await self._session.post(
            URL(target.url + call.path_qs, encoded=True),
            data=call.body,
            headers=call.headers,
            allow_redirects=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
        )

    async def _read_start(self, target: Target, response: aiohttp.ClientResponse, lease: Lease) -> Answer | Fault:
        status = response.status
        if status >= 500:
            lease.failed()
        whole = response.content_length is not None or response.content_type == "application/json"
        start = await _read_at_least(response, _MAX_WHOLE_BYTES if whole or status in RETRIED_STATUSES else 1)
        answer = Answer(target, status, CIMultiDict(response.headers), start)
        if status in RETRIED_STATUSES:
            return Fault(str(status), answer=answer)
        answer.rest = None if response.content.at_eof() else response
        answer.lease = lease
        return answer

    # -- what a relay needs

    def now(self) -> float:
        return self._clock()

    @property
    def stall_timeout_s(self) -> float:
        return self._settings.stall_timeout_s


class Relay:
    """Sends one answer to its client. After the first byte nothing is raised to the outside but cancellation."""

    def __init__(self, proxy: Proxy, request: web.Request, answer: Answer, record: Record, deadline: float) -> None:
        self._proxy = proxy
        self._request = request
        self._answer = answer
        self._record = record
        self._deadline = deadline
        crossing = headers.to_client(answer.headers, record.request_id, answer.target.revision)
        self._out = web.StreamResponse(status=answer.status, headers=crossing)

    async def run(self, *, close: bool) -> web.StreamResponse:
        out, answer = self._out, self._answer
        if close:
            out.force_close()
        if answer.rest is None:
            out.content_length = len(answer.start)
        elif (length := answer.rest.content_length) is not None:
            out.content_length = length
        try:
            await self._send(out.prepare(self._request))
            self._record.first_byte = self._proxy.now()
            await self._stream()
        except (ConnectionError, _StalledClient):
            self._record.end("client_closed", 499)
            self._abort()
        return out

    async def _stream(self) -> None:
        aligner = EventAligner() if self._answer.streams_events else None
        chunk = self._answer.start
        try:
            while chunk:
                if ready := aligner.feed(chunk) if aligner else chunk:
                    await self._send(self._out.write(ready))
                chunk = await self._next_chunk()
        except _BrokenUpstream as broken:
            await self._cut(broken)
            return
        if aligner and (rest := aligner.flush()):
            await self._send(self._out.write(rest))
        await self._send(self._out.write_eof())
        self._record.end(_outcome_of(self._answer.status), self._answer.status)

    async def _next_chunk(self) -> bytes:
        if self._answer.rest is None:
            return b""
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._answer.rest.content.readany()
        except TimeoutError:
            raise _BrokenUpstream("timeout", "The model stopped answering in time.") from None
        except (aiohttp.ClientError, OSError):
            raise _BrokenUpstream("upstream_died", "The server of this answer went away.") from None

    async def _cut(self, broken: "_BrokenUpstream") -> None:
        """A cut stream says so; any other answer is cut short, so that no client takes a part for the whole."""
        if self._answer.lease:
            self._answer.lease.failed()
        self._record.end("timeout" if broken.code == "timeout" else "upstream_error", self._answer.status)
        if self._answer.streams_events:
            await self._send(self._out.write(error_event(self._request.path, broken.code, str(broken))))
            await self._send(self._out.write_eof())
        else:
            self._abort()

    async def _send(self, write: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(self._proxy.stall_timeout_s):
                await write
        except TimeoutError:
            raise _StalledClient from None

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


class _BrokenUpstream(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _StalledClient(Exception):
    pass


async def _read_at_least(response: aiohttp.ClientResponse, wanted: int) -> bytes:
    """Reads until `wanted` bytes are there or the answer ended."""
    chunks: list[bytes] = []
    size = 0
    while size < wanted and (chunk := await response.content.readany()):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _outcome_of(status: int) -> str:
    if status < 400:
        return "ok"
    if status == 429:
        return "refused"
    return "upstream_error" if status >= 500 else "client_error"


def open_session(settings: Settings) -> aiohttp.ClientSession:
    """Connections without a limit of their own (`max_inflight` is the bound); answers pass as they are encoded."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.idle_timeout_s
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        max_field_size=settings.max_header_bytes,
    )
