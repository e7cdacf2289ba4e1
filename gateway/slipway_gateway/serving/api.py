"""Routes of the API port; every request passes `PublicApi.serve` and is counted there once."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from msgspec.structs import replace

from slipway_contracts.guards import OUTPUT
from slipway_contracts.headers import RESUME, RESUME_BYTES, REVISION, ROUTE
from slipway_contracts.tenants import GatewayTenants
from slipway_process import logs
from slipway_process.byte_order_mark import without_mark
from slipway_process.network.http_server import Handler
from slipway_process.places import SHARE, Places
from slipway_process.spans import Exporter

from ..anthropic_api.endpoint import COUNT, MessagesCall, Run, with_bearer
from ..authentication.authenticator import Authenticator
from ..balancing.load_balancer import LoadBalancer
from ..caching.caches import ResponseCaches
from ..feedback.endpoint import PATH as FEEDBACK
from ..feedback.endpoint import FeedbackApi, SharedClaims
from ..feedback.entries import MAX_BODY_BYTES
from ..forwarding import bodies
from ..forwarding.guarded_response import GuardedResponse
from ..forwarding.proxy import Forwarding
from ..guards.checks import of_stage
from ..identity.authenticate import RequestIdentity
from ..limits.budget import Account, MemoryBudget
from ..routing.router import match_header_route
from ..routing.table import Route
from ..settings import GatewaySettings
from ..telemetry.access_log import AccessLog
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..telemetry.tracing import Traces
from ..upstream.exchange import UpstreamRequest
from ..upstream.jobs_process import PATHS, JobsBackend
from ..wire import errors, headers, inference, request_fields, resume, sampling
from ..wire.inference import ROUTED_PATHS, ModelPath
from ..wire.request_fields import RequestFields
from ..wire.responses import is_text_path
from . import expect, requester
from .admission import Admission
from .cors import Cors
from .guarded_input import InputGuards
from .inference import DESCRIBE, INFER, Answer, InferenceServer
from .listener import ConnectionLimiter, begun_in_lane, check_head
from .model_routes import (
    DIRECT,
    Destination,
    RequestFacts,
    Way,
    described_public,
    follow_rules,
    may_request,
    requestable,
)
from .tenants_report import report
from .visible import described, listed, may_use

if TYPE_CHECKING:
    from slipway_plane import _native

    from ..fast_lane.lane import FastLane

log = logging.getLogger(__name__)


Work = Callable[[web.Request, RequestRecord], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[web.StreamResponse]]


class PublicApi:
    """The API of the gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        forwarding: Forwarding,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
        admission: Admission,
        *,
        access_log: AccessLog | None = None,
        jobs: JobsBackend | None = None,
        claims: SharedClaims | None = None,
        traces: Traces | None = None,
        caches: ResponseCaches | None = None,
    ) -> None:
        """`access_log`: none is written without it. `jobs`: where files and batches go. `claims`: of feedback.

        `traces`: without it no spans are made. `caches`: without it no response is kept.
        """
        self._caches = caches
        self._traces = traces or Traces(Exporter(), 0, 0, most_per_s=1)
        self.admission = admission
        self.authenticator = authenticator
        self._settings = settings
        self._balancer = balancer
        self._forwarding, self._proxy = forwarding, forwarding.proxy
        self._input_guards = InputGuards(forwarding.guards)
        self._metrics = metrics
        self._clock = time.monotonic  # the event loop's
        self.ledger = admission.ledger
        self.access_log = access_log or AccessLog()  # which writes nothing
        self.jobs = jobs
        self.feedback = FeedbackApi(
            settings, balancer, metrics, forwarding.feedback, forwarding.inference_log, shared=claims
        )
        self.running = 0
        # A request has a place once its body is here; before that it has one of the others, which nothing waits for.
        places = Places(settings.max_inflight, settings.max_client_percentage)
        self._in_flight: Places | _native.Places = places
        self._awaited = Places(settings.max_inflight, settings.max_client_percentage)
        self._draining = False
        self.lane: FastLane | None = None
        self._ended = asyncio.Event()

    @property
    def traces(self) -> Traces:
        """Which requests have spans."""
        return self._traces

    def join(self, lane: "FastLane") -> None:
        """The fast lane serves plain requests of this API, within the same places. Must come before the first one."""
        self.lane, self._in_flight = lane, lane.in_flight

    @property
    def draining(self) -> bool:
        """Whether the gateway ends: responses announce the end of their connections."""
        return self._draining

    @draining.setter
    def draining(self, drains: bool) -> None:
        self._draining = drains
        if drains and self.lane is not None:
            self.lane.drains()

    @property
    def budget(self) -> MemoryBudget:
        """The budget of the memory that requests hold."""
        return self._forwarding.budget

    async def identify(self, request: web.Request) -> RequestIdentity | None:
        """The identity by headers or certificate of the connection; None: anonymous. Raises RequestError."""
        if self.jobs and self.jobs.is_call(request) and (tenant := self.jobs.tenant_of_call(request)):
            return self.authenticator.on_behalf(tenant)
        certificate = request.get_extra_info("peercert") if self.authenticator.verifies_clients else None
        return await self.authenticator.identify(request.headers, request.remote or "", certificate)

    def tenants_report(self) -> GatewayTenants:
        """The body of `/internal/tenants`: a report on every tenant that this gateway knows."""
        return report(self.authenticator, self.admission)

    def cut(self) -> None:
        """Running requests end within moments, with a reason where possible."""
        self._proxy.cut()

    async def _announce_close(self, request: web.Request, response: web.StreamResponse) -> None:
        # aiohttp wrote its own Connection header before this.
        if self.draining:
            response.headers["Connection"] = "close"
            response.force_close()

    async def stop_mirroring(self) -> None:
        """Cancels mirrored requests and pairs: they serve no client, so they end before all others."""
        await self._forwarding.mirror_queue.close()
        await self._forwarding.twins.close()

    async def idle(self) -> None:
        """Returns when no request runs."""
        while self.running:
            self._ended.clear()
            await self._ended.wait()

    def app(self) -> web.Application:
        app = web.Application()
        app.on_response_prepare.append(self._announce_close)
        if self._settings.allowed_origins:
            self._allow_origins(app, Cors(self._settings.allowed_origins))
        for path in ROUTED_PATHS:
            self._add(app, path, self.routed, "POST")
        self._add_paths(app)
        self._add(app, FEEDBACK, self._rate, "POST")
        for path, call in ((errors.MESSAGES, MessagesCall.create), (COUNT, MessagesCall.count_tokens)):
            self._add(app, path, self._anthropic(call), "POST", serve=self._serve_anthropic)
        self._add(app, "/v1/models", self._models, "GET", "HEAD")
        self._add(app, "/v1/models/{id:.+}", self._model, "GET", "HEAD")
        app.router.add_route(
            "*", r"/{path:[\s\S]*}", partial(self.serve, work=self._unknown_url), expect_handler=self._expect
        )
        return app

    def _allow_origins(self, app: web.Application, cors: Cors) -> None:
        @web.middleware
        async def preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
            """A browser sends it before the request of a page, and without its key."""
            if not cors.is_preflight(request):
                return await handler(request)
            record = self._begin(request, headers.request_id(request.headers))
            record.end("ok", 204)
            self._count(record, request)
            return cors.permission(request)

        app.middlewares.append(preflight)
        app.on_response_prepare.append(cors.on_prepare)

    def _add_paths(self, app: web.Application) -> None:
        """Paths with a model in them, and those that the gateway answers for all models."""
        self._add(app, "/api/v1/models/{name:.+}/generate", self._by_path(inference.generate), "POST")
        self._add(app, "/api/v1/models/{name:.+}/predict", self._by_path(inference.named_predict), "POST")
        self._add(app, "/v1/models/{name:.+}:predict", self._by_path(inference.v1_predict), "POST")
        for path, (method, answer) in InferenceServer(self._balancer.published).answers().items():
            self._add(app, path, self.answered(answer), method)
        for path in INFER:
            self._add(app, path, self._infer, "POST")
        for path in DESCRIBE:
            self._add(app, path, self._infer, "GET")
        if self.jobs:
            for path, methods in PATHS.items():
                self._add(app, path, self.jobs.forward, *methods)

    def answered(self, answer: Answer) -> Work:
        async def work(_: web.Request, record: RequestRecord) -> web.StreamResponse:
            body = msgspec.json.encode(answer(record.identity.tenant if record.identity else None))
            record.end("ok", 200)
            return self._json(body, record)

        return work

    def _add(self, app: web.Application, path: str, work: Work, *methods: str, serve: "Serve | None" = None) -> None:
        serve = serve or self.serve

        async def wrong_method(request: web.Request, record: RequestRecord) -> web.StreamResponse:
            raise errors.wrong_method(request.method, request.path, ", ".join(methods))

        for method in methods:
            app.router.add_route(method, path, partial(serve, work=work, route=path), expect_handler=self._expect)
        app.router.add_route("*", path, partial(serve, work=wrong_method, route=path), expect_handler=self._expect)

    async def serve(self, request: web.Request, work: Work, route: str = "") -> web.StreamResponse:
        """The response to a request. `route`: the path of its route, with placeholders where clients choose."""
        record = self._begin(request, headers.request_id(request.headers))
        self.running += 1
        with logs.about(request_id=record.request_id):
            try:
                check_head(request)
                record.identity = await self.identify(request)
                if record.identity is not None:
                    record.owner = record.identity.client
                return await work(request, record)
            except errors.RequestError as refusal:
                refusal.__traceback__ = None  # its frames hold the request, and some of them this error
                response = self._refuse(record, refusal, request.path)
                if not request.content.is_eof():
                    # Otherwise the rest of the body would be awaited, or read as the next request.
                    response.force_close()
                return response
            except asyncio.CancelledError:
                if request.transport is None or request.transport.is_closing():
                    record.left()
                elif not record.whole:
                    record.end("drained", 503, "draining")
                raise
            except Exception as error:
                log.exception("a request failed inside of the gateway")
                error.__traceback__ = None  # as above
                return self._refuse(record, errors.internal(), request.path)
            finally:
                self._leave(record)
                self.running -= 1
                if not self.running:
                    self._ended.set()
                self._count(record, request, route)
                self._balancer.ended(record.model, record.code, record.outcome)
                self._log(request, record)

    def _begin(self, request: web.BaseRequest, request_id: str | None = None) -> RequestRecord:
        owner = requester.owner_of(request)
        if (begun := begun_in_lane(request)) is not None:
            came_s = self._clock() - begun.ages_s[0]
            trace = self._traces.begun_in_lane(begun.id, is_recorded=begun.is_traced)
            return RequestRecord(begun.id, request_id or begun.id, came_s, owner=owner, begun=begun, trace=trace)
        own = os.urandom(16).hex()
        trace = self._traces.begin(request.headers, own, client=owner)
        return RequestRecord(own, request_id or own, self._clock(), owner=owner, trace=trace)

    def _enter(self, record: RequestRecord) -> None:
        """The request takes a place among those in flight, until its end. Raises RequestError 429: there is none."""
        if record.begun is not None and record.begun.owner == record.owner and record.begun.take_place():
            record.in_flight = True  # it has the place that the fast lane took
            return
        if reason := self._in_flight.take(record.owner):
            raise errors.no_place("requests in flight", of_client=reason == SHARE)
        record.in_flight = True

    def _leave(self, record: RequestRecord) -> None:
        """The request ended: it gives back its place, and what the fast lane left with it."""
        if record.in_flight:
            self._in_flight.leave(record.owner)
        if record.begun is not None:
            record.begun.end()

    @contextlib.contextmanager
    def awaiting(self, record: RequestRecord) -> Iterator[None]:
        """While the body of a request is awaited. It holds no place in flight, and its tenant's concurrency bounds it.

        Raises:
            RequestError: too many bodies of this client are awaited, or of all (429).
        """
        if reason := self._awaited.take(record.owner):
            raise errors.no_place("requests whose body is awaited", of_client=reason == SHARE)
        began_s = self._clock()
        try:
            with self.admission.arriving(record.identity):
                yield
        finally:
            self._awaited.leave(record.owner)
            record.body_s += self._clock() - began_s

    async def _body(self, request: web.Request, record: RequestRecord, account: Account, most_bytes: int = 0) -> bytes:
        """The body of a request, which then is in flight. Raises RequestError."""
        body = await self._arrived(request, record, account, most_bytes)
        self._enter(record)
        return body

    async def _arrived(
        self, request: web.Request, record: RequestRecord, account: Account, most_bytes: int = 0
    ) -> bytes:
        """The body of a request. Raises RequestError."""
        if request.content.is_eof():
            return bodies.arrived(request, account, self._settings, most_bytes)
        with self.awaiting(record):
            return await bodies.read(request, account, self._settings, most_bytes)

    def _count(self, record: RequestRecord, request: web.BaseRequest, route: str = "") -> None:
        """A request ended: it is counted, and has its line in the access log. `route`: as in `serve`."""
        now_s = self._clock()
        self._metrics.observe(record, now_s)
        self._balancer.objectives.ended(record, now_s)
        self.access_log.ended(record, request, now_s)
        record.trace.end(record, request.method, route)
        record.close()

    def door(self) -> ConnectionLimiter:
        """Bounds the connections of this port."""
        metrics = self._metrics
        return ConnectionLimiter(
            self._settings,
            self.refuse,
            budget=self.budget,
            changed=metrics.connections_changed,
            turned_away=metrics.turned_away,
        )

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        if await expect.is_met(request):
            return None
        message = "The only expectation that is met is 100-continue."
        response = self.refuse(errors.invalid("expectation_failed", message, status=417), request)
        response.force_close()
        return response

    def refuse(self, refusal: errors.RequestError, request: web.BaseRequest) -> web.Response:
        """The response to a malformed request; it counts as a request."""
        record = self._begin(request)
        response = self._refuse(record, refusal)
        self._count(record, request)
        return response

    def _refuse(self, record: RequestRecord, refusal: errors.RequestError, path: str = "") -> web.Response:
        record.end(refusal.outcome, refusal.status, refusal.code)
        response = self._json(refusal.body(path), record, status=refusal.status)
        if record.revision:
            response.headers[REVISION] = record.revision
        if record.rules:
            response.headers[ROUTE] = record.rules
        if refusal.allow:
            response.headers["Allow"] = refusal.allow
        if refusal.challenge:
            response.headers["WWW-Authenticate"] = refusal.challenge
        response.headers.update(refusal.headers)
        if refusal.retry_after_s is not None:
            response.headers["Retry-After"] = str(refusal.retry_after_s)
        return response

    def _json(self, body: bytes, record: RequestRecord, status: int = 200) -> web.Response:
        response = web.Response(body=body, status=status, content_type="application/json")
        record.sent_bytes = len(body)
        response.headers[headers.REQUEST_ID] = record.request_id
        return response

    def _log(self, request: web.Request, record: RequestRecord) -> None:
        level = logging.WARNING if record.code >= 500 else logging.DEBUG
        if log.isEnabledFor(level):
            seconds = round(self._clock() - record.started, 4)
            fields = {name: getattr(record, name) for name in ("model", "revision", "code", "outcome")}
            log.log(level, "%s %s", request.method, request.path[:200], extra=fields | {"seconds": seconds})

    # -- requests for a model

    def _by_path(self, path_of: Callable[[str], ModelPath]) -> Work:
        async def work(request: web.Request, record: RequestRecord) -> web.StreamResponse:
            return await self.routed(request, record, path_of(request.match_info["name"]))

        return work

    def _anthropic(self, answer: Callable[[MessagesCall, Run], Awaitable[web.StreamResponse]]) -> Work:
        async def work(request: web.Request, record: RequestRecord) -> web.StreamResponse:
            client = requester.client_of(request, record.identity, self._settings)
            with self.budget.open(client) as account:
                call = MessagesCall(request, record, self._settings, account, self._arrived)
                return await answer(call, partial(self.routed, record=record))

        return work

    async def _serve_anthropic(self, request: web.Request, work: Work, route: str) -> web.StreamResponse:
        return await self.serve(with_bearer(request), work, route)

    async def _infer(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        found = request.match_info
        verb = "infer" if request.method == "POST" else found.get("verb", "")
        return await self.routed(request, record, inference.v2(found["name"], found.get("version", ""), verb))

    async def routed(
        self, request: web.Request, record: RequestRecord, path: ModelPath | None = None
    ) -> web.StreamResponse:
        client = requester.client_of(request, record.identity, self._settings)
        with self.budget.open(client) as account:
            body = await self._body(request, record, account)
            if self._balancer.published.current is None:
                # A gateway that was restarted has its table in a moment; kube-proxy may send requests before.
                await self._balancer.published.changed(self._settings.hold_timeout_s)
            await bodies.let_others_run(body)
            if path and path.opaque:
                fields = RequestFields()
            else:
                body = without_mark(body)
                fields = request_fields.parse(body)
            await bodies.let_others_run(body)
            destination = self._destined(request, record, body, fields, path)
            if (checked := await self._input_guards.checked(body, destination.guards, record, account)) is not body:
                body, fields = checked, request_fields.parse(checked)
            outgoing = self._call(request, record, body, fields, path, account, destination)
            # From here on only `outgoing` holds the body.
            del body, fields, checked
            record.route = outgoing.route if outgoing.computes and not outgoing.batch else ""
            if outgoing.batch and self.jobs:
                async with self.jobs.slot(outgoing.whose):
                    return await self._forward(request, outgoing, record)
            return await self._forward(request, outgoing, record)

    async def _forward(
        self, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord
    ) -> web.StreamResponse:
        guarded = None
        if outgoing.writes_text and of_stage(outgoing.guards, OUTPUT):
            stall_s = self._settings.stall_timeout_s
            guarded = GuardedResponse(self._forwarding.guards, request, outgoing, record, stall_s)
            request, outgoing = guarded.request, replace(outgoing, watch=guarded)
        forward: Callable[[], Awaitable[web.StreamResponse]] = partial(self._proxy.forward, request, outgoing, record)
        caches = self._caches
        if caches is not None and (call := caches.call_of(request, outgoing, record)) is not None:
            # Before the limits: a kept response takes no tokens from them.
            kept = await caches.find(call, outgoing)
            forward = partial(caches.serve, call, kept, request, outgoing, record)
        if guarded is not None:
            forward = partial(guarded.run, forward)
        if outgoing.meter is None or record.identity is None:
            return await forward()
        return await self.admission.charged(outgoing.meter, record.identity.tenant.policy, record, forward)

    def _destined(
        self,
        request: web.Request,
        record: RequestRecord,
        body: bytes,
        fields: RequestFields,
        path: ModelPath | None,
    ) -> Destination:
        """Where a request goes. Raises RequestError."""
        model = path.name if path else fields.model
        if not model:
            message = "You must provide a model parameter."
            raise errors.invalid("missing_required_parameter", message, param="model")
        if (table := self._balancer.published.current) is None:
            raise errors.no_table()
        settings, identity = self._settings, record.identity
        key = requester.sticky_key_of(request, fields, identity, settings, record.request_id)
        facts = RequestFacts(request, fields, body, identity.name if identity else "")
        route, way = self._destination(model, record, facts, key)
        record.model = table.id_of(route)
        guards = requester.guards_of(request, path, table, route, way.passed, identity)
        return Destination(model, key, route, way, guards)

    def _call(
        self,
        request: web.Request,
        record: RequestRecord,
        body: bytes,
        fields: RequestFields,
        path: ModelPath | None,
        account: Account,
        destination: Destination,
    ) -> UpstreamRequest:
        model, key, route, way, guards = destination
        record.stream = fields.streams
        settings, identity = self._settings, record.identity
        body, fields = _with_sampling(request.path, body, fields, path, way)
        tenant = requester.tenant_of(request, fields, identity, settings)
        forwarded = requester.forwarded_for(identity, route.forward_headers)
        batch = self.jobs is not None and self.jobs.is_call(request)
        limit = requester.priority_limit_of(identity, settings, batch=batch)
        weight = identity.weight if identity else 1
        sent = headers.to_upstream(
            request.headers, record.request_id, tenant, forwarded=forwarded, priority_limit=limit, weight=weight
        )
        preferred = match_header_route(route, request.headers) if route.header_routes else ""
        pinned = self._pinned(route, path, fields) if path else ""
        path_qs, body = _with_own_name(request.rel_url.raw_path_qs, body, fields, path, route)
        outgoing = UpstreamRequest(
            model,
            key,
            path_qs,
            sent,
            body,
            revision=pinned,
            route=route.name,
            preferred=preferred,
            method=request.method,
            stream=record.stream,
            wants_json=fields.wants_json,
            excused=fields.excused,
            scorable=requester.may_be_scored(identity),
            forwarded=forwarded,
            client=account.client,
            account=account,
            isolation=requester.isolation_of(request, fields, path, identity, route.name, limit),
            batch=batch,
            responds_as=way.responds_as,
            prompt=requester.prompt_of(request, fields, route, tenant),
            guards=guards,
        )
        last = request.headers.get(resume.LAST_EVENT_ID)
        if last is not None and outgoing.writes_text:
            outgoing = self._taken_up(outgoing, last)
        return self.admission.prepare(outgoing, fields, record)

    def _pinned(self, route: Route, path: ModelPath, fields: RequestFields) -> str:
        """The revision of a version that the request names; "" without one. Raises RequestError 404."""
        if path == inference.generate(path.name):
            return ""
        version = path.version or fields.version
        if not version:
            return ""
        for backend in route.backends:
            if version in (backend.revision, backend.version):
                return backend.revision
        raise errors.version_not_found(path.name, version)

    def _taken_up(self, outgoing: UpstreamRequest, last_event_id: str) -> UpstreamRequest:
        place = resume.place(last_event_id)
        if place is None:
            message = "Last-Event-ID must be the id of an event that this gateway sent, or be left out."
            raise errors.invalid("invalid_last_event_id", message)
        outgoing.headers[RESUME] = place.resume
        tokens = self._forwarding.resumption.remembered(outgoing, place.stream)
        if tokens:
            outgoing.headers[RESUME_BYTES] = str(len(tokens))
        return replace(outgoing, revision=place.revision, holder=place.holder, tokens=tokens)

    def _destination(self, model: str, record: RequestRecord, facts: RequestFacts, key: str) -> tuple[Route, Way]:
        """The route of a model or, by the rules of its ModelRoute, of a public name. Raises RequestError."""
        published = self._balancer.published
        if published.current is None or published.find_public(model) is None:
            return self._find(model, record), DIRECT
        tenant = record.identity.tenant if record.identity else None
        place = resume.place(facts.headers.get(resume.LAST_EVENT_ID, ""))
        holding = place.revision if place else ""
        route, way = follow_rules(published.current, model, facts, key, tenant, holding=holding)
        record.rules = way.rules
        for model_route, rule in way.passed:
            self._metrics.sent_by_rule(model_route, rule)
        if route is None:
            raise way.refusal(model)
        return route, way

    def _find(self, model: str, record: RequestRecord) -> Route:
        """The route of a model. One that the tenant may not use does not exist for it."""
        # A request that the fast lane has sent stays with its deployment, whoever has the name now.
        whose = record.begun.endpoint[0] if record.begun is not None else model
        table, route = self._balancer.published.current, self._balancer.published.find(whose)
        tenant = record.identity.tenant if record.identity else None
        if table is None or route is None or not may_use(tenant, table, route):
            raise errors.model_not_found(model)
        return route

    async def _rate(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        with self.budget.open(requester.client_of(request, record.identity, self._settings)) as account:
            body = await self._body(request, record, account, MAX_BODY_BYTES)
            answer = await self.feedback.rate(body, record.identity)
        record.end("ok", 200)
        return self._json(answer, record)

    # -- what is served

    async def _models(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        table = self._balancer.published.current
        if table is None:
            raise errors.no_table()
        tenant = record.identity.tenant if record.identity else None
        models = [described(table, route, name) for name, route in listed(table, tenant).items()]
        models += [described_public(table, public, name, tenant) for name, public in requestable(table, tenant).items()]
        models.sort(key=lambda model: str(model["id"]))
        record.end("ok", 200)
        return self._json(msgspec.json.encode({"object": "list", "data": models}), record)

    async def _model(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        if (table := self._balancer.published.current) is None:
            raise errors.no_table()
        name = request.match_info["id"]
        tenant = record.identity.tenant if record.identity else None
        if may_request(table, name, tenant):
            model = described_public(table, table.public[name], name, tenant)
        else:
            route = self._find(name, record)
            record.model = table.id_of(route)
            model = described(table, route, name)
        record.end("ok", 200)
        return self._json(msgspec.json.encode(model), record)

    async def _unknown_url(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        raise errors.invalid("unknown_url", f"Unknown request URL: {request.method} {request.path[:200]}.", status=404)


def _with_sampling(
    url_path: str, body: bytes, fields: RequestFields, path: ModelPath | None, way: Way
) -> tuple[bytes, RequestFields]:
    """Body and fields of a request with what its ModelRoutes impose, where it is one for text."""
    if not way.sampling or (path and path.opaque) or not is_text_path(url_path):
        return body, fields
    imposed = sampling.impose(body, url_path, way.sampling)
    return (imposed, fields) if imposed is body else (imposed, request_fields.parse(imposed))


def _with_own_name(
    path_qs: str, body: bytes, fields: RequestFields, path: ModelPath | None, route: Route
) -> tuple[str, bytes]:
    """Path and body for a server, which knows only the model's short name, whichever route owns that name here."""
    model = path.name if path else fields.model
    if path and (path.version or model != route.model):
        path_qs = path.with_model(path_qs, route.model)
    if model != route.model and fields.model == model:
        body = request_fields.with_model(body, fields, route.model)
    return path_qs, body
