"""Files, batches, jobs and stored conversations: forwarded to the jobs process, which calls back as their tenant.

Both directions are signed with the release's keys. A client cannot use the headers of the signature: a request that has
them without a valid signature is refused, and they are never forwarded.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from slipway_contracts.headers import JOBS_PASS, JOBS_TENANT
from slipway_contracts.passes import INVALID_PASS, TO_GATEWAY, TO_JOBS, PassKeys
from slipway_process.places import SHARE, Places

from ..balancing.load_balancer import LoadBalancer
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
# Where conversations are kept.
CONVERSATION_PATHS = {
    "/v1/responses/{id:[^/]+}": ("GET", "DELETE"),
    "/v1/responses/{id:[^/]+}/input_items": ("GET",),
    "/v1/conversations": ("POST",),
    "/v1/conversations/{id:[^/]+}": ("GET", "POST", "DELETE"),
    "/v1/conversations/{id:[^/]+}/items": ("GET", "POST"),
    "/v1/conversations/{id:[^/]+}/items/{item:[^/]+}": ("GET", "DELETE"),
}
# The least urgent class of the servers: what people wait for goes first.
BATCH_PRIORITY = 1000
MAX_FORWARDED = 128
_LOOK_S = 0.02  # how often a request of a batch that waits looks for room
_SENT = ("Content-Type", "Content-Length", "Accept", "Idempotency-Key")
_RETURNED = ("Content-Type", "Content-Length", "Retry-After", "Allow", "Idempotent-Replayed")


class JobsBackend:
    """The jobs process as the gateway sees it."""

    def __init__(
        self, settings: GatewaySettings, session: aiohttp.ClientSession, keys: PassKeys, balancer: LoadBalancer
    ) -> None:
        self._settings, self._session, self._keys, self._balancer = settings, session, keys, balancer
        self._forwarded = Places(MAX_FORWARDED)  # requests for files and batches; uploads that trickle hold them long
        self._slots: Counter[str] = Counter()  # that requests of batches have, by model

    @staticmethod
    def is_call(request: web.BaseRequest) -> bool:
        """Whether the request claims to be one of the jobs process, by its headers."""
        return JOBS_PASS in request.headers or JOBS_TENANT in request.headers

    def tenant_of_call(self, request: web.BaseRequest) -> str:
        """The tenant that the jobs process calls for; empty where it had none.

        Raises:
            RequestError: the signature is invalid, so the jobs process of this release did not send it.
        """
        given, tenant = request.headers.getall(JOBS_PASS, []), request.headers.get(JOBS_TENANT, "")
        if len(given) != 1 or not self._keys.is_valid(given[0], TO_GATEWAY, tenant, request.method, request.path):
            message = "The headers of the jobs process are not signed by it, or its clock or keys differ."
            raise errors.RequestError(401, INVALID_PASS, message)
        return tenant

    async def post(self, path: str, tenant: str, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Sends JSON to the jobs process for a tenant; returns the status and the body of its answer.

        Raises:
            LookupError: the release's keys are not there yet.
            aiohttp.ClientError, OSError, TimeoutError: it cannot be reached.
        """
        sent = {JOBS_TENANT: tenant, JOBS_PASS: self._keys.make(TO_JOBS, tenant, "POST", path)}
        sent |= {headers.REQUEST_ID: request_id, "Content-Type": "application/json"}
        url = self._settings.jobs_url + path
        async with self._session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
            return answer.status, await answer.read()

    @contextlib.asynccontextmanager
    async def slot(self, model: str) -> AsyncIterator[None]:
        """A slot for a request of a batch. Waits until the model has fewer than `batch_slots` requests per endpoint.

        Raises:
            RequestError: no slot was free within `hold_timeout_s`.
        """
        clock = asyncio.get_running_loop().time
        ends_s = clock() + self._settings.hold_timeout_s
        while not self._has_room(model):
            if clock() >= ends_s:
                raise errors.overloaded("The model is busy with other requests: those of batches wait.")
            await asyncio.sleep(_LOOK_S)
        # Counted before anything is awaited: requests that look at the same time do not all see the same room.
        self._slots[model] += 1
        try:
            yield
        finally:
            self._slots[model] -= 1
            if not self._slots[model]:
                del self._slots[model]

    def _has_room(self, model: str) -> bool:
        in_flight, endpoints = self._balancer.load_of(model)
        # A model without endpoints holds its requests, or wakes.
        most = self._settings.batch_slots * max(1, endpoints)
        return max(in_flight, self._slots[model]) < most

    async def forward(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        if reason := self._forwarded.take(record.owner):
            raise errors.no_place("requests for files and batches", of_client=reason == SHARE)
        try:
            return await self._forward(request, record)
        finally:
            self._forwarded.leave(record.owner)

    async def _forward(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        tenant = record.identity.name if record.identity else ""
        try:
            signed = self._keys.make(TO_JOBS, tenant, request.method, request.path)
        except LookupError:
            raise _away() from None
        # All values of each header: the jobs process refuses a request with two idempotency keys.
        sent = CIMultiDict((name, value) for name in _SENT for value in request.headers.getall(name, ()))
        sent.update({headers.REQUEST_ID: record.request_id, JOBS_TENANT: tenant, JOBS_PASS: signed})
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
    message = "What the jobs process keeps cannot be reached now; try again shortly."
    return errors.RequestError(503, "jobs_unavailable", message, retry_after_s=5)
