"""Routes of the API port; every request passes `PublicApi.serve` and is counted there once."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from aiohttp import web
from msgspec.structs import replace

from slipway_contracts.guards import OUTPUT
from slipway_contracts.headers import RESUME, RESUME_BYTES, REVISION, ROUTE
from slipway_contracts.model_routes.spec import RouteSampling
from slipway_contracts.tenants import GatewayTenants
from slipway_process import logs
from slipway_process.byte_order_mark import without_mark
from slipway_process.network.http_server import Handler
from slipway_process.places import SHARE, Places
from slipway_process.spans import Exporter

from ..anthropic_api.endpoint import COUNT, MessagesCall, with_bearer
from ..authentication.authenticator import Authenticator
from ..balancing.load_balancer import LoadBalancer
from ..balancing.overload import MODEL, caps_of
from ..balancing.prompt_blocks import prompt_of
from ..caching.caches import BYPASS, MISS, PARTIAL, ResponseCaches
from ..conversations import turn_request
from ..conversations.endpoint import TurnCall
from ..conversations.turns import ConversationTurns
from ..feedback.endpoint import PATH as FEEDBACK
from ..feedback.endpoint import FeedbackApi
from ..feedback.entries import MAX_BODY_BYTES
from ..forwarding import bodies
from ..forwarding.guarded_response import GuardedResponse
from ..forwarding.json_response import JsonResponse
from ..forwarding.proxy import Forwarding
from ..forwarding.recording import recorded
from ..forwarding.resume_memory import ResumeMemory
from ..forwarding.translation import Run
from ..generations.log import GenerationLog
from ..guards.checks import of_json, of_stage
from ..identity.authenticate import RequestIdentity
from ..limits.budget import Account, MemoryBudget
from ..quotas.usage import RESPONSES
from ..routing.experiments import ChosenArm
from ..routing.guards import BoundGuard
from ..routing.table import Route
from ..settings import GatewaySettings
from ..sharing.counters import SharedClaims
from ..telemetry.access_log import AccessLog
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..telemetry.tracing import Traces
from ..tgi_api.endpoint import GENERATE, GENERATE_STREAM, ROOT, GenerateCall
from ..upstream.adapters import AdapterCall
from ..upstream.exchange import Stickiness, UpstreamRequest
from ..upstream.jobs_process import CONVERSATION_PATHS, PATHS, JobsBackend
from ..wire import errors, headers, inference, request_fields, resume, sampling
from ..wire.inference import ROUTED_PATHS, ModelPath
from ..wire.request_fields import RequestFields
from ..wire.responses import is_text_path
from . import expect, requester
from .admission import Admission
from .cors import Cors
from .experiments import ArmOfRequest, Destination
from .guarded_input import InputGuards
from .inference import DESCRIBE, INFER, Answer, InferenceServer
from .listener import ConnectionLimiter, begun_in_lane, check_head, stays_in_python
from .model_routes import (
    DIRECT,
    RequestFacts,
    Unclassified,
    Way,
    described_public,
    follow_rules,
    may_request,
    requestable,
)
from .tenants_report import report
from .visible import base_models, described, listed, may_use

if TYPE_CHECKING:
    from slipway_plane import _native

    from ..fast_lane.lane import FastLane

log = logging.getLogger(__name__)


# By path, what clients of streams of tokens use that are no HTTP responses.
WEBSOCKET, GRPC_STREAM = "/v1/stream", "/slipway.v1.Generation/Stream"
SURFACES = {WEBSOCKET: "websocket", GRPC_STREAM: "grpc"}

# What became of a request to a route with a cache that a model computed.
_COMPUTED = frozenset({MISS, PARTIAL, BYPASS})

Work = Callable[[web.Request, RequestRecord], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[web.StreamResponse]]


class Target(NamedTuple):
    """Where a request goes. `model`: as it names it. `key`: its sticky key. `guards`: of its input and its output."""

    model: str
    key: str
    destination: Destination
    guards: tuple[BoundGuard, ...] = ()


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
        generations: GenerationLog | None = None,
    ) -> None:
        """`access_log`: none is written without it. `jobs`: where files and batches go. `claims`: of feedback.

        `traces`: without it no spans are made. `caches`: without it no response is kept. `generations`: without it no
        prompts and responses are logged.
        """
        self._turns = ConversationTurns(jobs, metrics) if jobs and settings.conversations else None
        self._caches, self._generations = caches, generations or GenerationLog()
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
            settings,
            balancer,
            metrics,
            forwarding.feedback,
            forwarding.inference_log,
            shared=claims,
            outcomes=forwarding.proxy.experiments,
        )
        self.experiments = forwarding.proxy.experiments
        self.running = 0
        # A request has a place once its body is here; before that it has one of the others, which nothing waits for.
        places = Places(settings.max_inflight, settings.max_client_percentage)
        self._in_flight: Places | _native.Places = places
        self._awaited = Places(settings.max_inflight, settings.max_client_percentage)
        self._draining = False
        self.lane: FastLane | None = None
        self.on_drain: list[Callable[[], None]] = []  # called when the gateway begins to end
        self._ended = asyncio.Event()

    @property
    def caches(self) -> ResponseCaches | None:
        """Responses that are kept; None: none is."""
        return self._caches

    @property
    def traces(self) -> Traces:
        """Which requests have spans."""
        return self._traces

    def join(self, lane: "FastLane") -> None:
        """The fast lane serves plain requests of this API, within the same places. Must come before the first one."""
        self.lane, self._in_flight = lane, lane.in_flight

    @property
    def in_flight(self) -> int:
        """How many requests have a place now, of both lanes."""
        return self._in_flight.used

    @property
    def draining(self) -> bool:
        """Whether the gateway ends: responses announce the end of their connections."""
        return self._draining

    @draining.setter
    def draining(self, drains: bool) -> None:
        self._draining = drains
        if not drains:
            return
        if self.lane is not None:
            self.lane.drains()
        for hook in self.on_drain:
            hook()

    @property
    def budget(self) -> MemoryBudget:
        """The budget of the memory that requests hold."""
        return self._forwarding.budget

    @property
    def streams(self) -> ResumeMemory:
        """Requests whose clients may come back for their streams by their ids."""
        return self._forwarding.streams

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
        if self.draining and response.status != 101:
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

    def app(self, upgrades: Mapping[str, Handler] | None = None) -> web.Application:
        """`upgrades`: by path, what serves connections that leave HTTP; each counts its requests by itself."""
        app = web.Application()
        app.on_response_prepare.append(self._announce_close)
        if self._settings.allowed_origins:
            self._allow_origins(app, Cors(self._settings.allowed_origins))
        for path in ROUTED_PATHS:
            self._add(app, path, self._responses if path == RESPONSES and self._turns else self.routed, "POST")
        self._add_paths(app)
        self._add(app, FEEDBACK, self._rate, "POST")
        for path, call in ((errors.MESSAGES, MessagesCall.create), (COUNT, MessagesCall.count_tokens)):
            self._add(app, path, self._anthropic(call), "POST", serve=self._serve_anthropic)
        self._add_tgi(app)
        for path, handler in (upgrades or {}).items():
            app.router.add_route("*", path, handler, expect_handler=self._expect)
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
            for path, methods in (PATHS | (CONVERSATION_PATHS if self._turns else {})).items():
                self._add(app, path, self.jobs.forward, *methods)

    def _add_tgi(self, app: web.Application) -> None:
        """The endpoints of text-generation-inference, which are for the only model, and each for one by its name."""
        for endpoint in (GENERATE, GENERATE_STREAM):
            self._add(app, endpoint, self._tgi(endpoint), "POST")
            self._add(app, f"{errors.NAMED_TGI}{{name:.+}}{endpoint}", self._tgi(endpoint), "POST")
        self._add(app, f"{errors.NAMED_TGI}{{name:.+}}", self._tgi(ROOT), "POST")
        work = partial(self.serve, work=self._tgi(ROOT), route=ROOT)
        app.router.add_route("POST", ROOT, work, expect_handler=self._expect)

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
                stays_in_python(request, stays=record.cache in _COMPUTED)
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
        if (surface := SURFACES.get(route)) is not None:
            self._metrics.stream_request_ended(surface, record.outcome)
        self._balancer.objectives.ended(record, now_s)
        self.access_log.ended(record, request, now_s)
        self._generations.ended(record, now_s)
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

    def refuse(self, refusal: errors.RequestError, request: web.BaseRequest, route: str = "") -> web.Response:
        """The response to a malformed request; it counts as a request. `route`: as in `serve`."""
        record = self._begin(request)
        response = self._refuse(record, refusal)
        self._count(record, request, route)
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

    def _tgi(self, endpoint: str) -> Work:
        async def work(request: web.Request, record: RequestRecord) -> web.StreamResponse:
            client = requester.client_of(request, record.identity, self._settings)
            with self.budget.open(client) as account:
                call = GenerateCall(request, record, self._settings, account, self._arrived)
                name, only_model = request.match_info.get("name", ""), partial(self._only_model, record)
                return await call.generate(partial(self.routed, record=record), endpoint, name, only_model)

        return work

    async def _only_model(self, record: RequestRecord) -> str:
        """The model of requests that name none. Raises RequestError."""
        await self._await_table()
        if (table := self._balancer.published.current) is None:
            raise errors.no_table()
        tenant = record.identity.tenant if record.identity else None
        names = list(islice(chain(base_models(table, tenant), requestable(table, tenant)), 2))
        if len(names) != 1:
            raise errors.no_only_model()
        return names[0]

    async def _await_table(self) -> None:
        """A gateway that was restarted has its table in a moment; kube-proxy may send requests before."""
        if self._balancer.published.current is None:
            await self._balancer.published.changed(self._settings.hold_timeout_s)

    async def _infer(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        found = request.match_info
        verb = "infer" if request.method == "POST" else found.get("verb", "")
        return await self.routed(request, record, inference.v2(found["name"], found.get("version", ""), verb))

    async def routed(
        self, request: web.Request, record: RequestRecord, path: ModelPath | None = None
    ) -> web.StreamResponse:
        client = requester.client_of(request, record.identity, self._settings)
        with self.budget.open(client) as account:
            held = [await self._body(request, record, account)]
            return await self._with_body(request, record, held, account, path)

    async def _with_body(
        self,
        request: web.Request,
        record: RequestRecord,
        held: list[bytes],
        account: Account,
        path: ModelPath | None = None,
        before: Stickiness | None = None,
    ) -> web.StreamResponse:
        """The response to a request whose body has arrived. `held`: the body, which is taken from it.

        `before`: of a turn of a conversation, where the turn before it was answered.
        """
        body = held.pop()
        await self._await_table()
        await bodies.let_others_run(body)
        if path and path.opaque:
            fields = RequestFields()
        else:
            body = without_mark(body)
            fields = request_fields.parse(body)
        await bodies.let_others_run(body)
        target = await self._target(request, record, body, fields, path, account)
        if (checked := await self._input_guards.checked(body, target.guards, record, account)) is not body:
            body, fields = checked, request_fields.parse(checked)
        outgoing = self._call(request, record, body, fields, path, account, target)
        if before is not None:
            outgoing = self._of_turn(outgoing, before)
        # From here on only `outgoing` holds the body.
        del body, fields, checked
        record.route = outgoing.route if outgoing.computes and not outgoing.batch else ""
        if outgoing.batch and self.jobs:
            async with self.jobs.slot(outgoing.whose):
                return await self._forward(request, outgoing, record)
        return await self._forward(request, outgoing, record)

    async def _responses(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        """A request to `/v1/responses` where conversations are kept."""
        assert self._turns is not None
        with self.budget.open(requester.client_of(request, record.identity, self._settings)) as account:
            body = without_mark(await self._body(request, record, account))
            await bodies.let_others_run(body)
            # Lines of a batch are stored only where they say so.
            stores = not (self.jobs is not None and self.jobs.is_call(request))
            if turn_request.is_plain(body, stores_by_default=stores):
                return await self._with_body(request, record, [body], account)

            async def run(turn: web.Request, rebuilt: bytes, before: Stickiness) -> web.StreamResponse:
                return await self._with_body(turn, record, [rebuilt], account, None, before)

            call = TurnCall(request, record, self._settings, account, self._turns)
            return await call.run(body, run, stores_by_default=stores)

    def _of_turn(self, outgoing: UpstreamRequest, before: Stickiness) -> UpstreamRequest:
        """The request of a turn, which goes to the revision of the turn before it while that has a weight."""
        route = self._balancer.published.find(outgoing.whose)
        serves = route is not None and any(
            backend.weight > 0 and backend.revision == before.revision for backend in route.backends
        )
        stays = serves and outgoing.route == before.route and not (outgoing.revision or outgoing.preferred)
        return replace(outgoing, is_turn=True, preferred=before.revision if stays else outgoing.preferred)

    async def _forward(
        self, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord
    ) -> web.StreamResponse:
        if (generation := self._generations.capture_of(outgoing, record)) is not None:
            await generation.hash_input()
            record.generation = generation
            # Around the guards: the log has what they let pass.
            request = recorded(request, generation)
        guarded = None
        if outgoing.writes_text and of_stage(outgoing.guards, OUTPUT):
            stall_s = self._settings.stall_timeout_s
            guarded = GuardedResponse(self._forwarding.guards, request, outgoing, record, stall_s)
            request, outgoing = guarded.request, replace(outgoing, watch=guarded)
        bound = of_json(outgoing.guards) if outgoing.writes_text and outgoing.wants_json else None
        if bound is not None:
            return await self._forward_json(request, outgoing, record, bound, guarded)
        forward: Callable[[], Awaitable[web.StreamResponse]] = partial(self._proxy.forward, request, outgoing, record)
        caches = self._caches
        if caches is not None and (call := caches.call_of(request, outgoing, record)) is not None:
            # Before the limits: a kept response takes no tokens from them.
            kept = await caches.find(call, outgoing)
            forward = partial(caches.serve, call, kept, request, outgoing, record)
        if outgoing.chosen is not None:
            forward = partial(self._expose, outgoing.chosen, record, forward)
        if guarded is not None:
            forward = partial(guarded.run, forward)
        if outgoing.meter is None or record.identity is None:
            return await forward()
        may_exceed = self._proxy.forwards_beyond_limits(outgoing, record)
        beyond = partial(self._beyond_limits, request, outgoing, record, guarded) if may_exceed else None
        return await self.admission.charged(outgoing.meter, record.identity.tenant.policy, record, forward, beyond)

    async def _forward_json(
        self,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        bound: BoundGuard,
        guarded: GuardedResponse | None,
    ) -> web.StreamResponse:
        """The response to a request whose JSON a guard checks. Each attempt takes from limits and is charged.

        Caches do not have such responses: a kept one that does not fit would never fit.
        """
        settings, checks = self._settings, self._forwarding.guards
        checked = JsonResponse(checks, self._balancer, request, outgoing, record, bound, settings.stall_timeout_s)
        forward: Callable[[], Awaitable[web.StreamResponse]] = partial(
            checked.run, partial(self._send, record=record), self.admission.prepare_again
        )
        if outgoing.chosen is not None:
            forward = partial(self._expose, outgoing.chosen, record, forward)
        return await (forward() if guarded is None else guarded.run(forward))

    async def _send(self, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord) -> web.StreamResponse:
        """The response of the model to one attempt, within the limits of its tenant."""
        forward = partial(self._proxy.forward, request, outgoing, record)
        if outgoing.meter is None or record.identity is None:
            return await forward()
        may_exceed = self._proxy.forwards_beyond_limits(outgoing, record)
        beyond = partial(self._proxy.forward, request, outgoing, record) if may_exceed else None
        return await self.admission.charged(outgoing.meter, record.identity.tenant.policy, record, forward, beyond)

    async def _beyond_limits(
        self,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        guarded: GuardedResponse | None,
        refusal: errors.RequestError,
    ) -> web.StreamResponse:
        """The response of a provider to a request that limits of its tenant refuse."""
        forward = partial(self._proxy.forward, request, outgoing, record, refusal)
        return await (forward() if guarded is None else guarded.run(forward))

    async def _target(
        self,
        request: web.Request,
        record: RequestRecord,
        body: bytes,
        fields: RequestFields,
        path: ModelPath | None,
        account: Account,
    ) -> Target:
        """Where a request goes, after the classifiers that its rules need were called. Raises RequestError."""
        facts = RequestFacts(request, fields, body, record.identity.name if record.identity else "")
        while True:
            try:
                return self._find_target(request, record, facts, path)
            except Unclassified as needed:
                namespace, classifier = needed.namespace, needed.classifier
            fits = await self._forwarding.classifiers.fits(namespace, classifier, fields, account)
            facts.classify(namespace, classifier, fits=fits)

    async def _expose(
        self, chosen: ChosenArm, record: RequestRecord, forward: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Forwards a request that an experiment has chosen the arm of. One that limits refuse does not come here."""
        try:
            return await forward()
        finally:
            route = self._balancer.published.find(record.model)
            self.experiments.ended(chosen, record, route.name if route else "")

    def _find_target(
        self, request: web.Request, record: RequestRecord, facts: RequestFacts, path: ModelPath | None
    ) -> Target:
        """Raises RequestError, or Unclassified where a classifier has to be called first."""
        model, identity = _model_of(facts.fields, path), record.identity
        if (table := self._balancer.published.current) is None:
            raise errors.no_table()
        key = requester.sticky_key_of(request, facts.fields, identity, self._settings, record.request_id)
        ordinary = self._destination(model, record, facts, key)
        destination = self._with_arm(model, ordinary, facts, record, path)
        record.model = table.id_of(destination.route)
        guards = requester.guards_of(request, path, table, destination.route, destination.way, identity)
        return Target(model, key, destination, guards)

    def _call(
        self,
        request: web.Request,
        record: RequestRecord,
        body: bytes,
        fields: RequestFields,
        path: ModelPath | None,
        account: Account,
        target: Target,
    ) -> UpstreamRequest:
        model, key, destination, guards = target
        route, way, chosen = destination
        record.stream = fields.streams
        settings, identity = self._settings, record.identity
        imposed = (*way.sampling, *_sampling_of(identity))
        body, fields = _with_sampling(request.path, body, fields, path, imposed)
        body, fields, degraded = self._degraded(request.path, body, fields, path, route)
        tenant = requester.tenant_of(request, fields, identity, settings)
        forwarded = requester.forwarded_for(identity, route.forward_headers)
        batch = self.jobs is not None and self.jobs.is_call(request)
        limit = requester.priority_limit_of(identity, settings, batch=batch)
        weight = identity.weight if identity else 1
        sent = headers.to_upstream(
            request.headers, record.request_id, tenant, forwarded=forwarded, priority_limit=limit, weight=weight
        )
        pinned = self._pinned(route, path, fields) if path else ""
        path_qs, body = _with_own_name(request.rel_url.raw_path_qs, body, fields, path, route)
        adapter = _adapter_of(fields, path, route)
        outgoing = UpstreamRequest(
            model,
            key,
            path_qs,
            sent,
            body,
            revision=pinned,
            route=route.name,
            preferred=destination.preferred(request.headers),
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
            responds_as=way.responds_as or (adapter.model if adapter else ""),
            adapter=adapter,
            prompt=prompt_of(request.path, fields, route, tenant, key),
            fallbacks=way.fallbacks,
            degraded=degraded,
            chosen=chosen,
            guards=guards,
        )
        last = request.headers.get(resume.LAST_EVENT_ID)
        if last is not None and outgoing.writes_text:
            outgoing = self._taken_up(outgoing, last)
        return self.admission.prepare(outgoing, fields, record)

    def _degraded(
        self, url_path: str, body: bytes, fields: RequestFields, path: ModelPath | None, route: Route
    ) -> tuple[bytes, RequestFields, tuple[str, ...]]:
        """Body and fields of a request with what an overloaded route takes from it, and the steps that did."""
        taken = []
        for step in self._balancer.overloads.steps(route):
            if step == MODEL or route.degradation is None:
                continue  # that is for what pods refuse
            before = body
            body, fields = _with_sampling(url_path, body, fields, path, (caps_of(route.degradation, step),))
            if body is not before:
                taken.append(step)
        if taken and self._balancer.published.current is not None:
            self._metrics.degraded(self._balancer.published.current.id_of(route), taken)
        return body, fields, tuple(taken)

    def _with_arm(
        self,
        model: str,
        ordinary: tuple[Route, Way],
        facts: RequestFacts,
        record: RequestRecord,
        path: ModelPath | None,
    ) -> Destination:
        """The destination of a request by its experiments. Lines of batches, what the fast lane sent, and requests that
        no model computes take the ordinary way."""
        request, fields = facts.request, facts.fields
        (route, way), table = ordinary, self._balancer.published.current
        if table is None or not table.subjects or record.begun is not None or request.method != "POST":
            return Destination(route, way)
        if self.jobs is not None and self.jobs.is_call(request):
            return Destination(route, way)
        arm = ArmOfRequest(self.experiments, table, request, fields, record.identity)
        if place := resume.place(request.headers.get(resume.LAST_EVENT_ID, "")):
            return Destination(arm.holder(model, route, place.revision), way)
        return arm.choose(model, route, way, is_pinned=bool(path and (path.version or fields.version)))

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
        if of_stage(outgoing.guards, OUTPUT) or (outgoing.wants_json and of_json(outgoing.guards)):
            # The rest of a text may be what guards would only find in the whole of it.
            raise errors.stream_gone()
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


def _model_of(fields: RequestFields, path: ModelPath | None) -> str:
    """The model as the client wrote it. Raises RequestError: there is none."""
    if model := path.name if path else fields.model:
        return model
    raise errors.invalid("missing_required_parameter", "You must provide a model parameter.", param="model")


def _with_sampling(
    url_path: str, body: bytes, fields: RequestFields, path: ModelPath | None, imposed: Collection[RouteSampling]
) -> tuple[bytes, RequestFields]:
    """Body and fields of a request with what is imposed on it, where it is one for text."""
    if not imposed or (path and path.opaque) or not is_text_path(url_path):
        return body, fields
    changed = sampling.impose(body, url_path, imposed)
    return (changed, fields) if changed is body else (changed, request_fields.parse(changed))


def _sampling_of(identity: RequestIdentity | None) -> tuple[RouteSampling, ...]:
    """What the tenant of a request imposes."""
    most = identity.tenant.policy.bounds.output if identity else 0
    return (_output_cap(most),) if most else ()


@lru_cache(maxsize=256)
def _output_cap(most: int) -> RouteSampling:
    return RouteSampling.model_validate({"caps": {"maxTokens": most}})


def _adapter_of(fields: RequestFields, path: ModelPath | None, route: Route) -> AdapterCall | None:
    """What of a request names its adapter, as `_with_own_name` leaves it; None where its route is no adapter's."""
    if not route.base:
        return None
    in_body = path is None or fields.model in (path.name, route.model)
    return AdapterCall(route.model, path, in_body)


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
