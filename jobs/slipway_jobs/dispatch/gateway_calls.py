"""Sends one line through the gateway as its tenant, and returns the result."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec

from slipway_contracts.headers import JOBS_PASS, JOBS_TENANT, REVISION
from slipway_contracts.passes import INVALID_PASS, TO_GATEWAY, PassKeys
from slipway_process.spans import exporter

from ..input_line import UNREADABLE, InvalidLine, check_json, read_line
from ..settings import JobsSettings
from ..states import COMPLETED, FAILED, QUEUED, UNREADABLE_LINE
from ..store.line_store import LineClaim, LineResult, request_id, result_line
from ..turns import Turns, let_others_run

_REQUEST_ID = "X-Request-Id"
_REFUSED = (429, 503)
# Statuses that may come from a pod or a gateway that died.
_BROKEN = (408, 500, 502, 504)
_MAX_HEADER_BYTES = 65_536
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Called:
    """The result of one attempt. `refused`: the gateway or the model is busy or away, which is no fault of the line."""

    result: LineResult
    refused: bool = False
    retry_after_s: float | None = None


@contextlib.asynccontextmanager
async def open_calls(settings: JobsSettings, keys: PassKeys) -> AsyncIterator["GatewayCalls"]:
    """Opens the connections to the gateway.

    Raises:
        OSError: the file of certificates cannot be read.
    """
    context = ssl.create_default_context(cafile=settings.gateway_ca_file or None)
    connector = aiohttp.TCPConnector(limit=settings.max_concurrency, ssl=context, keepalive_timeout=15.0)
    timeout = aiohttp.ClientTimeout(total=settings.request_timeout_s, sock_connect=_CONNECT_S)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), max_field_size=_MAX_HEADER_BYTES
    ) as session:
        spans = exporter(settings.spans_endpoint, "slipway-jobs", settings.spans_service)
        try:
            yield GatewayCalls(settings, keys, session, spans.tracer)
        finally:
            await asyncio.to_thread(spans.close)


class GatewayCalls:
    """Makes all calls of one process to the gateway."""

    def __init__(
        self, settings: JobsSettings, keys: PassKeys, session: aiohttp.ClientSession, tracer: Any = None
    ) -> None:
        """`tracer`: of OpenTelemetry; None: no spans are made."""
        self._settings, self._keys, self._session, self._tracer = settings, keys, session, tracer
        self._turns = Turns()  # many large lines begin at once, and their responses may end at once

    async def send(self, claim: LineClaim) -> Called:
        """Sends a line once; what goes wrong is part of the result."""
        if claim.unreadable:
            return self._failed(claim, UNREADABLE_LINE, f"This line cannot be decrypted: {claim.unreadable}.")
        try:
            async with self._turns.take(claim.data):
                body = read_line(claim.data, claim.batch.endpoint).body
        except InvalidLine as error:  # it was valid before: another release wrote it
            return self._failed(claim, error.code, str(error))
        endpoint, tenant = claim.batch.endpoint, claim.batch.tenant
        try:
            signed = self._keys.make(TO_GATEWAY, tenant, "POST", endpoint)
        except LookupError:
            return self._wait(claim, 1.0)
        headers = {JOBS_TENANT: tenant, JOBS_PASS: signed, "Content-Type": "application/json"}
        headers[_REQUEST_ID] = request_id(claim.batch.id, claim.n)
        url = self._settings.gateway_url + endpoint
        try:
            with self._span(claim, headers) as traced:
                async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                    traced(response.status)
                    return await self._read(claim, response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return self._wait(claim, None)  # no gateway is there: the line was not sent
        except TimeoutError:
            return self._broke(claim, "timeout", "The model did not answer in time.")
        except (aiohttp.ClientError, OSError) as error:
            return self._broke(claim, "connection_lost", f"The connection was lost ({type(error).__name__}).")

    @contextlib.contextmanager
    def _span(self, claim: LineClaim, headers: dict[str, str]) -> Iterator[Callable[[int], None]]:
        """A span of one attempt, which the gateway's is a child of; `headers`: of the request. It gets the status."""
        if self._tracer is None:
            yield lambda status: None
            return
        from opentelemetry import propagate, trace

        about = {"slipway.batch": claim.batch.id, "slipway.line": claim.n, "slipway.attempt": claim.attempts + 1}
        name = f"POST {claim.batch.endpoint}"
        with self._tracer.start_as_current_span(name, kind=trace.SpanKind.CLIENT, attributes=about) as span:
            propagate.inject(headers)
            yield lambda status: span.set_attribute("http.response.status_code", status)

    async def _read(self, claim: LineClaim, response: aiohttp.ClientResponse) -> Called:
        status = response.status
        if status in _REFUSED:
            return self._wait(claim, _retry_after(response))
        limit = self._settings.max_response_bytes
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                return self._failed(claim, "response_too_large", f"The response has more than {limit} bytes.")
        data = b"".join(chunks)
        if status == 401 and INVALID_PASS.encode() in data:
            return self._wait(claim, None)  # clocks or keys of two nodes differ for a while: no fault of the line
        if status in _BROKEN and claim.attempts + 1 < self._settings.max_attempts:
            return self._again(claim)
        async with self._turns.take(data):
            answer = {
                "status_code": status,
                "request_id": request_id(claim.batch.id, claim.n),
                "body": await _body(data),
                "revision": response.headers.get(REVISION),
            }
            line = result_line(claim.batch.id, claim.n, claim.custom_id, answer)
        attempts = claim.attempts + (status in _BROKEN)
        return Called(LineResult(claim, COMPLETED if status < 300 else FAILED, line, attempts))

    def _wait(self, claim: LineClaim, retry_after_s: float | None) -> Called:
        return Called(LineResult(claim, QUEUED, attempts=claim.attempts), refused=True, retry_after_s=retry_after_s)

    def _broke(self, claim: LineClaim, code: str, message: str) -> Called:
        if claim.attempts + 1 < self._settings.max_attempts:
            return self._again(claim)
        return self._failed(claim, code, f"{message} It was tried {claim.attempts + 1} times.")

    def _again(self, claim: LineClaim) -> Called:
        attempts = claim.attempts + 1
        return Called(LineResult(claim, QUEUED, attempts=attempts, wait_s=2.0**attempts / 2))

    def fail_inside(self, claim: LineClaim, message: str) -> LineResult:
        """The result of a line at which this process failed."""
        return replace(self._failed(claim, "internal_error", message).result, replaces=True)

    def _failed(self, claim: LineClaim, code: str, message: str) -> Called:
        error = {"code": code, "message": message}
        line = result_line(claim.batch.id, claim.n, claim.custom_id, error=error)
        return Called(LineResult(claim, FAILED, line, claim.attempts + 1))


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    given = response.headers.get("Retry-After", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 6 else None


async def _body(data: bytes) -> Any:
    """A response's body: JSON on one line with the values as they came; other bytes, and too many levels, as a text."""
    try:
        check_json(data)
        await let_others_run(data)
        # A second pass over the body, because a JSONL file needs it on one line.
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    except UNREADABLE:
        return data.decode(errors="replace")


async def cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and returns when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
