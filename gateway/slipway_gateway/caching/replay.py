"""Sends a kept response to a client: a whole one in one write, a stream as its events."""

import asyncio
import os
import time

from aiohttp import web

from slipway_contracts.headers import CACHE, REVISION, ROUTE

from ..forwarding.bodies import SLICE_BYTES
from ..forwarding.relay import UnusableResponse, WholeResponse
from ..forwarding.stand_ins import ResponseCollector
from ..telemetry.metrics import RequestRecord
from ..upstream.exchange import UpstreamRequest
from ..wire.headers import REQUEST_ID
from .entry import Entry, replayed_headers, with_new_id

HIT = "hit"


class Replay:
    """Copies of kept responses for clients. `stall_timeout_s`: time that a client may leave its copy unread."""

    def __init__(self, stall_timeout_s: float) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._clock = time.monotonic

    async def send(
        self,
        entry: Entry,
        age_s: float,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        *,
        shown: str = HIT,
    ) -> web.StreamResponse:
        """Sends a copy with an id of its own, and notes in the record how that ended."""
        headers = replayed_headers(entry, age_s)
        headers[REQUEST_ID], headers[REVISION], headers[CACHE] = record.request_id, entry.revision, shown
        if outgoing.meter:
            headers.update(outgoing.meter.limit_headers)
        if record.rules:
            headers[ROUTE] = record.rules
        record.revision, record.cache = entry.revision, shown
        if (usage := entry.usage) is not None:
            record.find_usage = lambda: (usage, False)
        body = with_new_id(entry.body, os.urandom(16).hex())
        if not entry.streams:
            return await self._send_whole(WholeResponse(200, headers), body, "ok", request, record)
        out = web.StreamResponse(headers=headers)
        try:
            await out.prepare(request)
            record.first_byte = self._clock()
            await self._write(out, body, outgoing, request)
            record.sent_bytes = len(body)
            record.end("ok", 200)
        except UnusableResponse as error:
            record.end("refused", error.status, error.code)
        except (ConnectionError, TimeoutError):
            record.left()
            _abort(request)
        return out

    async def pass_on(
        self, collected: ResponseCollector, request: web.Request, record: RequestRecord
    ) -> web.StreamResponse:
        """Sends a response that was collected for a part of a request: an error, as the record has it."""
        out = WholeResponse(collected.status, collected.headers)
        return await self._send_whole(out, b"".join(collected.parts), record.outcome, request, record)

    async def _send_whole(
        self, out: WholeResponse, body: bytes, outcome: str, request: web.Request, record: RequestRecord
    ) -> web.StreamResponse:
        record.first_byte = self._clock()
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await out.send(request, body)
            record.sent_bytes = len(body)
            record.end(outcome, out.status)
        except UnusableResponse as error:
            record.end("refused", error.status, error.code)
        except (ConnectionError, TimeoutError):
            record.left()
            _abort(request)
        return out

    async def _write(
        self, out: web.StreamResponse, body: bytes, outgoing: UpstreamRequest, request: web.Request
    ) -> None:
        """Writes events in slices. A client that does not read them may be evicted when others need its room."""
        account = outgoing.account
        account.waits(lambda: _abort(request))
        try:
            for begin in range(0, len(body), SLICE_BYTES):
                async with asyncio.timeout(self._stall_timeout_s):
                    await out.write(body[begin : begin + SLICE_BYTES])
                account.moved()
            async with asyncio.timeout(self._stall_timeout_s):
                await out.write_eof()
        finally:
            account.goes_on()


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
