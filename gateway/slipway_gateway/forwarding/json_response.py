"""Checks whole responses to requests that want JSON, before their clients get a byte; the model may be called again.

It stands between the relay and the client, or what looks at the response for other guards. Streams are held whole.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from aiohttp import hdrs, web
from msgspec.structs import replace
from multidict import CIMultiDict

from slipway_contracts.guards import OUTPUT

from ..balancing.load_balancer import LoadBalancer
from ..guards.checks import INVALID, RETRIED, UNDECIDED, VALID, GuardChecks
from ..guards.json_format import JsonFormat, UnreadableFormat, format_of, repaired
from ..guards.protocol import GuardFailed
from ..guards.schemas import UnusableSchema
from ..guards.texts import MAX_BODY_BYTES
from ..guards.verdict import ALLOWED, BLOCKED
from ..judging.outcome import OutcomeRecorder
from ..routing.guards import BoundGuard
from ..telemetry.metrics import RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import errors
from ..wire.responses import INVALID_JSON, WantedJson
from ..wire.sse import CONTENT_TYPE
from .guarded_response import client_headers
from .relay import WholeResponse
from .stand_ins import ResponseCollector, with_writer

Send = Callable[[web.Request, UpstreamRequest], Awaitable[web.StreamResponse]]
Again = Callable[[UpstreamRequest, RequestRecord], UpstreamRequest]
_DECODED = 4  # memory of a decoded response, for each of its bytes


class _Response(NamedTuple):
    """One response of the model, whole. `texts`: what must be JSON; None: it is an error, or cannot be read."""

    status: int
    headers: "CIMultiDict[str]"
    body: bytes
    texts: list[str] | None


class JsonResponse:
    """The response to one request with a guard of JSON."""

    def __init__(
        self,
        checks: GuardChecks,
        balancer: LoadBalancer,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        bound: BoundGuard,
        stall_timeout_s: float,
    ) -> None:
        self._checks, self._balancer, self._bound = checks, balancer, bound
        self._request, self._call, self._record = request, outgoing, record
        self._stall_timeout_s = stall_timeout_s
        self._recorder: OutcomeRecorder | None = None
        self._clock = asyncio.get_running_loop().time

    def answered(self, response: UpstreamResponse) -> None:
        """A server has begun the response. A first attempt is evidence about its revision."""
        self._recorder = response.recorder or self._recorder
        if self._call.watch is not None:
            self._call.watch.answered(response)

    async def run(self, send: Send, again: Again) -> web.StreamResponse:
        """The response to the client. `send`: has a request answered, within limits, and charges it. `again`: makes
        the request of a second attempt ready to be sent. Raises RequestError.
        """
        wanted = await self._wanted()
        if wanted is None:
            return await send(self._request, self._call)
        first = await self._attempt(send, replace(self._call, watch=self))
        if isinstance(first, web.StreamResponse):
            return first
        problem = await self._problem(wanted, first)
        if not problem:
            return await self._pass(first)
        self._judge()
        last = await self._retried(send, again, wanted, first, problem)
        if isinstance(last, str):
            raise errors.invalid_response_format(wanted.param, last)
        return last if isinstance(last, web.StreamResponse) else await self._pass(last)

    async def _wanted(self) -> JsonFormat | None:
        """What the request wants; None: no JSON, or the guard lets pass what it cannot check.

        Raises RequestError: by the request's schema nothing can be checked, so that no model computes it.
        """
        param = ""
        try:
            wanted = format_of(self._call.body)
            if wanted is not None and wanted.schema:
                param = wanted.param
                await self._checks.misfit(self._bound, wanted, [], self._call.client)
            return wanted
        except UnreadableFormat as error:
            param, why = error.param, str(error)
        except UnusableSchema as error:
            why = str(error)
        except GuardFailed as error:
            self._undecided(str(error))
            return None
        self._refuse_schema(param, why)
        return None

    async def _attempt(self, send: Send, outgoing: UpstreamRequest) -> _Response | web.StreamResponse:
        """One response of the model; as of aiohttp where it broke off, which the record has already.

        Raises RequestError: there is none, or it is too long.
        """
        writer = ResponseCollector(MAX_BODY_BYTES)
        writer.account = outgoing.account
        response = await send(with_writer(self._request, writer), outgoing)
        if writer.ended:
            # The relay gave it to the collector: the client has nothing yet, and may still leave too early.
            self._record.whole, self._record.first_byte, self._record.sent_bytes = False, None, 0
        if writer.too_large:
            raise errors.RequestError(self._record.code, "response_too_large", "The response is too long for guards.")
        if not writer.ended:
            return response
        body, headers = b"".join(writer.parts), writer.headers
        is_read = writer.status == 200 and self._record.outcome == "ok"
        if is_read and outgoing.account.grow(_DECODED * len(body)):
            raise errors.overloaded("The gateway is at its limit of memory for requests.")
        is_plain = headers.get(hdrs.CONTENT_ENCODING, "identity") == "identity"
        streamed = headers.get(hdrs.CONTENT_TYPE, "").startswith(CONTENT_TYPE)
        texts = await _texts(body, streamed=streamed) if is_read and is_plain else None
        if is_read and texts is None:
            self._undecided("the response cannot be read")
        return _Response(writer.status, headers, body, texts)

    async def _problem(self, wanted: JsonFormat, response: _Response) -> str:
        """Why a response is not what the request wants; empty: it is, or is an error, or the guard lets it pass.

        Raises RequestError: the guard did not decide, or cannot by this schema, and nothing passes without it.
        """
        if response.texts is None:
            return ""
        began_s = self._clock()
        try:
            problem = await self._checks.misfit(self._bound, wanted, response.texts, self._call.client)
        except UnusableSchema as error:
            self._refuse_schema(wanted.param, str(error))
            return ""
        except GuardFailed as error:
            self._undecided(str(error))
            return ""
        self._checks.decided(self._bound, BLOCKED if problem else ALLOWED, self._clock() - began_s)
        self._checks.json_checked(self._record.model, self._record.revision, INVALID if problem else VALID)
        return problem

    async def _retried(
        self, send: Send, again: Again, wanted: JsonFormat, first: _Response, problem: str
    ) -> _Response | web.StreamResponse | str:
        """The response of a second attempt at the same revision; or what is wrong with that, or with the first one."""
        with self._place() as has_place:
            if not has_place:
                return problem
            text = next((one for one in first.texts or () if one.strip()), "")
            body = repaired(self._call.body, text, problem)
            repeated = replace(self._call, body=body, revision=self._record.revision, watch=None, prompt=None)
            self._checks.json_checked(self._record.model, self._record.revision, RETRIED)
            try:
                response = await self._attempt(send, again(repeated, self._record))
            except errors.RequestError:
                return problem  # limits, the context of the model or its servers: the first response stays invalid
            if isinstance(response, web.StreamResponse):
                return response
            if response.status != 200:
                return problem
            return await self._problem(wanted, response) or response

    @contextlib.contextmanager
    def _place(self) -> Iterator[bool]:
        """Takes a place in the retry budget of the route, where the guard allows another attempt."""
        route, record, guard = self._balancer.published.find(self._call.whose), self._record, self._bound.guard
        is_own = route is not None and record.answered_by == route.name and bool(record.revision)
        retries = guard.wants_json.retries if guard.wants_json else 0
        if not (retries and is_own and self._balancer.begin_retry(route)):
            yield False
            return
        try:
            yield True
        finally:
            self._balancer.retry_budgets.leave(self._call.whose)

    def _judge(self) -> None:
        """The response of the first attempt is evidence of InvalidJSON, where its request does not provoke that."""
        recorder = self._recorder
        if recorder is None or INVALID_JSON in self._call.excused:
            return
        if recorder.outcome is None or INVALID_JSON not in recorder.outcome.bad:
            recorder.mark(INVALID_JSON)

    def _refuse_schema(self, param: str, why: str) -> None:
        """Nothing can be checked by the request's schema. Raises RequestError: nothing passes without a check."""
        if self._bound.guard.fails_closed:
            raise errors.unusable_schema(param, self._bound.guard.name, why)
        self._undecided(why)

    def _undecided(self, why: str) -> None:
        """Counts that the guard did not decide. Raises RequestError: nothing passes without it."""
        self._checks.json_checked(self._record.model, self._record.revision, UNDECIDED)
        verdict = self._checks.failed((self._bound,), OUTPUT, why)
        if not verdict.passes:
            raise errors.guard_failed(verdict.guard, verdict.failed)

    async def _pass(self, response: _Response) -> web.StreamResponse:
        """Sends a response to the client, or to what looks at it next."""
        self._record.first_byte = self._clock()
        out = WholeResponse(response.status, client_headers(response.headers))
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                if out.headers.get(hdrs.CONTENT_TYPE, "").startswith(CONTENT_TYPE):
                    await out.prepare(self._request)
                    await out.write(response.body)
                    self._record.whole = True
                    await out.write_eof()
                else:
                    await out.send(self._request, response.body)
            self._record.sent_bytes = len(response.body)
        except (ConnectionError, TimeoutError):
            self._record.left()
            if self._request.transport is not None:
                self._request.transport.abort()
        return out


async def _texts(body: bytes, *, streamed: bool) -> list[str] | None:
    """What must be JSON in a response; other requests run while a long stream is read."""
    found = WantedJson(body, streamed=streamed)
    for _ in found.steps():
        await asyncio.sleep(0)
    return found.texts
