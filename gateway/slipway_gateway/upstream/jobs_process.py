"""Files, batches and jobs: forwarded to the jobs process, which calls back as the tenant that they belong to.

Both directions are signed with the release's keys. What a client sends under these names counts for nothing: a header
without a valid signature refuses the request, and none is forwarded.
"""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from yarl import URL

from slipway_process.passes import PASS, TENANT, TO_GATEWAY, TO_JOBS, PassKeys

from ..settings import GatewaySettings
from ..telemetry.metrics import RequestRecord
from ..wire import errors, headers
from .exchange import classify_status

PATHS = {
    "/v1/files": ("GET", "POST"),
    "/v1/files/{id:[^/]+}": ("GET", "DELETE"),
    "/v1/files/{id:[^/]+}/content": ("GET",),
    "/v1/batches": ("GET", "POST"),
    "/v1/batches/{id:[^/]+}": ("GET",),
    "/v1/batches/{id:[^/]+}/cancel": ("POST",),
    "/v1/jobs": ("POST",),
    "/v1/jobs/{id:[^/]+}": ("GET", "DELETE"),
    "/api/v1/batch": ("POST",),
    "/api/v1/batch/{id:[^/]+}": ("GET",),
}
# The least urgent class of the servers: what people wait for goes first.
BATCH_PRIORITY = 1000
MAX_FORWARDED = 128
_SENT = ("Content-Type", "Content-Length", "Accept")
_RETURNED = ("Content-Type", "Content-Length", "Retry-After", "Allow")


class JobsBackend:
    """The jobs process as the gateway sees it."""

    def __init__(self, settings: GatewaySettings, session: aiohttp.ClientSession, keys: PassKeys) -> None:
        self._settings, self._session, self._keys = settings, session, keys
        self._running = 0

    @staticmethod
    def is_call(request: web.BaseRequest) -> bool:
        """Whether it says to be one of the jobs process."""
        return PASS in request.headers or TENANT in request.headers

    def tenant_of_call(self, request: web.BaseRequest) -> str:
        """The tenant that the jobs process calls for; empty where it had none.

        Raises:
            RequestError: the jobs process of this release did not send it.
        """
        given, tenant = request.headers.getall(PASS, []), request.headers.get(TENANT, "")
        if len(given) != 1 or not self._keys.is_valid(given[0], TO_GATEWAY, tenant, request.method, request.path):
            raise errors.bad_credentials()
        return tenant

    async def forward(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        if self._running >= MAX_FORWARDED:
            raise errors.overloaded("The gateway is at its limit of requests for files and batches.")
        self._running += 1
        try:
            return await self._forward(request, record)
        finally:
            self._running -= 1

    async def _forward(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        tenant = record.identity.name if record.identity else ""
        try:
            signed = self._keys.make(TO_JOBS, tenant, request.method, request.path)
        except LookupError:
            raise _away() from None
        sent = {name: request.headers[name] for name in _SENT if name in request.headers}
        sent |= {headers.REQUEST_ID: record.request_id, TENANT: tenant, PASS: signed}
        body = self._body(request) if request.body_exists else None
        url = self._settings.jobs_url + request.rel_url.raw_path_qs
        try:
            async with self._session.request(
                request.method, URL(url, encoded=True), headers=sent, data=body, allow_redirects=False
            ) as found:
                return await self._relay(request, record, found)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError):
            if record.first_byte is not None:
                raise  # the response has begun: the connection ends, so that it does not look whole
            raise _away() from None

    async def _relay(
        self, request: web.Request, record: RequestRecord, found: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=found.status)
        response.headers.update({name: found.headers[name] for name in _RETURNED if name in found.headers})
        response.headers[headers.REQUEST_ID] = record.request_id
        record.first_byte = asyncio.get_running_loop().time()
        await response.prepare(request)
        async for chunk in found.content.iter_any():
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await response.write(chunk)
            record.sent_bytes += len(chunk)
        await response.write_eof()
        record.end(classify_status(found.status), found.status)
        return response

    async def _body(self, request: web.Request) -> AsyncIterator[bytes]:
        while True:
            async with asyncio.timeout(self._settings.body_timeout_s):
                chunk = await request.content.readany()
            if not chunk:
                return
            yield chunk


def _away() -> errors.RequestError:
    message = "Files and batches cannot be reached now; try again shortly."
    return errors.RequestError(503, "jobs_unavailable", message, retry_after_s=5)
