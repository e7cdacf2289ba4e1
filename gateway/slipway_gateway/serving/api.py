"""Routes of the API port; every request passes `PublicApi.serve` and is counted there once."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from slipway_process import logs

from ..balancing.load_balancer import LoadBalancer
from ..forwarding import bodies
from ..forwarding.proxy import Proxy
from ..limits.budget import Account
from ..limits.connections import address_owner
from ..routing.router import match_header_route
from ..routing.table import Route, RouteTable
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest
from ..wire import errors, headers, request_fields, resume
from . import expect
from .listener import ConnectionLimiter

log = logging.getLogger(__name__)

ROUTED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/v1/generate",
    "/api/v1/generate",
    "/api/v1/embed",
)
ROUTED_BY_PATH = "/api/v1/models/{name:.+}/generate"

Work = Callable[[web.Request, RequestRecord], Awaitable[web.StreamResponse]]


class PublicApi:
    """The API of the gateway."""

    def __init__(
        self, settings: GatewaySettings, balancer: LoadBalancer, proxy: Proxy, metrics: GatewayMetrics
    ) -> None:
        self._settings = settings
        self._balancer = balancer
        self._proxy = proxy
        self._metrics = metrics
        self._clock = asyncio.get_running_loop().time
        self.running = 0
        self.draining = False
        self._ended = asyncio.Event()

    def cut(self) -> None:
        """Running requests end within moments, with a reason where possible."""
        self._proxy.cut()

    async def _announce_close(self, request: web.Request, response: web.StreamResponse) -> None:
        # aiohttp wrote its own Connection header before this.
        if self.draining:
            response.headers["Connection"] = "close"
            response.force_close()

    async def stop_mirroring(self) -> None:
        """Mirrored requests serve no client: they end first."""
        await self._proxy.mirror_queue.close()

    async def idle(self) -> None:
        """Returns when no request runs."""
        while self.running:
            self._ended.clear()
            await self._ended.wait()

    def app(self) -> web.Application:
        app = web.Application()
        app.on_response_prepare.append(self._announce_close)
        for path in ROUTED_PATHS:
            self._add(app, path, self._by_body, "POST")
        self._add(app, ROUTED_BY_PATH, self._by_path, "POST")
        self._add(app, "/v1/models", self._models, "GET", "HEAD")
        self._add(app, "/v1/models/{id:.+}", self._model, "GET", "HEAD")
        app.router.add_route("*", r"/{path:[\s\S]*}", self._accounted(self._unknown_url), expect_handler=self._expect)
        return app

    def _add(self, app: web.Application, path: str, work: Work, *methods: str) -> None:
        async def wrong_method(request: web.Request, record: RequestRecord) -> web.StreamResponse:
            raise errors.wrong_method(request.method, request.path, ", ".join(methods))

        for method in methods:
            app.router.add_route(method, path, self._accounted(work), expect_handler=self._expect)
        app.router.add_route("*", path, self._accounted(wrong_method), expect_handler=self._expect)

    def _accounted(self, work: Work) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            return await self.serve(request, work)

        return serve

    async def serve(self, request: web.Request, work: Work) -> web.StreamResponse:
        record = RequestRecord(headers.request_id(request.headers) or _new_id(), self._clock())
        with logs.about(request_id=record.request_id):
            return await self._serve(request, record, work)

    async def _serve(self, request: web.Request, record: RequestRecord, work: Work) -> web.StreamResponse:
        self.running += 1
        try:
            if self.running > self._settings.max_inflight:
                raise errors.overloaded("The gateway is at its limit of requests in flight.")
            return await work(request, record)
        except errors.RequestError as refusal:
            response = self._refuse(record, refusal)
            if not request.content.is_eof():
                # Otherwise the rest of the body would be awaited, or read as the next request.
                response.force_close()
            return response
        except asyncio.CancelledError:
            if request.transport is None or request.transport.is_closing():
                record.left()
            elif not record.whole:
                record.end("drained", 503)
            raise
        except Exception:
            log.exception("a request failed inside of the gateway")
            return self._refuse(record, errors.internal())
        finally:
            self.running -= 1
            self._ended.set()
            self._metrics.observe(record, self._clock())
            self._balancer.ended(record.model, record.code, record.outcome)
            self._log(request, record)

    def door(self) -> ConnectionLimiter:
        """Bounds the connections of this port."""
        metrics = self._metrics
        return ConnectionLimiter(
            self._settings, self.refuse, changed=metrics.connections_changed, turned_away=metrics.turned_away
        )

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        if await expect.is_met(request):
            return None
        message = "The only expectation that is met is 100-continue."
        response = self.refuse(errors.invalid("expectation_failed", message, status=417))
        response.force_close()
        return response

    def refuse(self, refusal: errors.RequestError) -> web.Response:
        """The response to a malformed request; it counts as a request."""
        record = RequestRecord(_new_id(), self._clock())
        response = self._refuse(record, refusal)
        self._metrics.observe(record, record.started)
        return response

    def _refuse(self, record: RequestRecord, refusal: errors.RequestError) -> web.Response:
        record.end(refusal.outcome, refusal.status)
        response = self._json(refusal.body(), record, status=refusal.status)
        if record.revision:
            response.headers[headers.REVISION] = record.revision
        if refusal.allow:
            response.headers["Allow"] = refusal.allow
        if refusal.retry_after_s is not None:
            response.headers["Retry-After"] = str(refusal.retry_after_s)
        return response

    def _json(self, body: bytes, record: RequestRecord, status: int = 200) -> web.Response:
        response = web.Response(body=body, status=status, content_type="application/json")
        response.headers[headers.REQUEST_ID] = record.request_id
        return response

    def _log(self, request: web.Request, record: RequestRecord) -> None:
        level = logging.WARNING if record.code >= 500 else logging.DEBUG
        if log.isEnabledFor(level):
            seconds = round(self._clock() - record.started, 4)
            fields = {name: getattr(record, name) for name in ("model", "revision", "code", "outcome")}
            log.log(level, "%s %s", request.method, request.path[:200], extra=fields | {"seconds": seconds})

    # -- requests for a model

    async def _by_body(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        return await self._routed(request, record, None)

    async def _by_path(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        return await self._routed(request, record, request.match_info["name"])

    async def _routed(self, request: web.Request, record: RequestRecord, model: str | None) -> web.StreamResponse:
        owner = address_owner(request.remote or "")
        client = request_fields.client(request.headers, owner, self._settings.share_by)
        with self._proxy.budget.open(client) as account:
            body = await bodies.read(request, account, self._settings)
            if self._balancer.published.current is None:
                # A gateway that was restarted has its table in a moment; kube-proxy may send requests before.
                await self._balancer.published.changed(self._settings.hold_timeout_s)
            outgoing = self._call(request, record, body, model, account)
            # Held by the call alone from here on.
            del body
            return await self._proxy.forward(request, outgoing, record)

    def _call(
        self, request: web.Request, record: RequestRecord, body: bytes, model: str | None, account: Account
    ) -> UpstreamRequest:
        fields = request_fields.parse(body)
        named, model = model, model or fields.model
        if not model:
            message = "You must provide a model parameter."
            raise errors.invalid("missing_required_parameter", message, param="model")
        if self._balancer.published.current is None:
            raise errors.no_table()
        route = self._balancer.published.find(model)
        if route is None:
            raise errors.model_not_found(model)
        key = request_fields.sticky_key(request.headers, fields, record.request_id, self._settings.sticky_by)
        salt = self._settings.tenant_salt.get_secret_value()
        tenant = request_fields.tenant(request.headers, fields, self._settings.tenant_by, salt)
        forwarded, limit = route.forward_headers, self._settings.priority_limit
        sent = headers.to_upstream(
            request.headers, record.request_id, tenant, forwarded=forwarded, priority_limit=limit
        )
        preferred = match_header_route(route, request.headers) if route.header_routes else ""
        path_qs = request.rel_url.raw_path_qs
        if model != route.model:
            # Its server knows one name, the short one, whoever owns that here.
            path_qs = _path_with_model(path_qs, route.model) if named else path_qs
            body = request_fields.with_model(body, route.model) if fields.model == model else body
        record.model = self._balancer.published.current.id_of(route)
        outgoing = UpstreamRequest(
            model,
            key,
            path_qs,
            sent,
            body,
            route=route.name,
            preferred=preferred,
            stream=fields.stream is True,
            wants_json=fields.wants_json,
            excused=fields.excused,
            forwarded=forwarded,
            client=account.client,
            account=account,
        )
        last = request.headers.get(resume.LAST_EVENT_ID)
        return self._taken_up(outgoing, last) if last is not None and outgoing.writes_text else outgoing

    def _taken_up(self, outgoing: UpstreamRequest, last_event_id: str) -> UpstreamRequest:
        place = resume.place(last_event_id)
        if place is None:
            message = "Last-Event-ID must be the id of an event that this gateway sent, or be left out."
            raise errors.invalid("invalid_last_event_id", message)
        outgoing.headers[resume.RESUME] = place.resume
        tokens = self._proxy.resumption.remembered(outgoing, place.stream)
        if tokens:
            outgoing.headers[resume.RESUME_BYTES] = str(len(tokens))
        return replace(outgoing, revision=place.revision, holder=place.holder, tokens=tokens)

    # -- what is served

    async def _models(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        table = self._balancer.published.current
        if table is None:
            raise errors.no_table()
        listed = [self._describe(route, name) for name, route in sorted(_listed(table).items())]
        record.end("ok", 200)
        return self._json(msgspec.json.encode({"object": "list", "data": listed}), record)

    async def _model(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        if self._balancer.published.current is None:
            raise errors.no_table()
        name = request.match_info["id"]
        route = self._balancer.published.find(name)
        if route is None:
            raise errors.model_not_found(name)
        record.model = self._balancer.published.current.id_of(route)
        record.end("ok", 200)
        return self._json(msgspec.json.encode(self._describe(route, name)), record)

    def _describe(self, route: Route, name: str) -> dict[str, Any]:
        created = int(datetime.fromisoformat(route.created).timestamp()) if route.created else 0
        ready = self._balancer.published.current is not None and self._balancer.published.current.ready(route)
        return {"id": name, "object": "model", "created": created, "owned_by": "slipway", "ready": ready}

    async def _unknown_url(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        raise errors.invalid("unknown_url", f"Unknown request URL: {request.method} {request.path[:200]}.", status=404)


def _listed(table: RouteTable) -> dict[str, Route]:
    """Each model once: by its own name, or by `namespace/name` where that name is another's."""
    return {table.id_of(route): route for route in table.routes.values()}


def _path_with_model(path_qs: str, model: str) -> str:
    """Of `ROUTED_BY_PATH`."""
    _, mark, query = path_qs.partition("?")
    begin, _, end = ROUTED_BY_PATH.partition("{name:.+}")
    return f"{begin}{quote(model, safe=':@')}{end}{mark}{query}"


def _new_id() -> str:
    return uuid.uuid4().hex
