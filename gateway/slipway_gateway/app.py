"""Routes of the API port and of the admin port; every request passes `Edge.serve` and ends in one count there."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
from aiohttp import web

from . import bodies
from .backends import Backends
from .budget import Account
from .exchange import Call
from .last_table import LastTable
from .listener import Door
from .operator_token import OperatorToken
from .proxy import Proxy
from .router import by_headers
from .samples import BOUNDS
from .settings import Settings
from .table import Route, RouteTable
from .telemetry.metrics import Metrics, Record
from .wire import envelope, errors, expect, headers, resume

log = logging.getLogger(__name__)

ROUTED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/generate",
    "/api/v1/generate",
    "/api/v1/embed",
)
# Shorter than what sits between two processes takes a silent connection for dead.
CALLS_WAIT_S = 20.0
ROUTED_BY_PATH = "/api/v1/models/{name:.+}/generate"

Work = Callable[[web.Request, Record], Awaitable[web.StreamResponse]]


class Source(Protocol):
    """Where tables come from: a cluster or a file."""

    @property
    def waiting_for(self) -> str: ...

    async def run(self) -> None: ...


class Edge:
    """The API of the gateway."""

    def __init__(self, settings: Settings, backends: Backends, proxy: Proxy, metrics: Metrics) -> None:
        self._settings = settings
        self._backends = backends
        self._proxy = proxy
        self._metrics = metrics
        self._clock = asyncio.get_running_loop().time
        self.running = 0
        self.draining = False
        self._ended = asyncio.Event()

    def cut(self) -> None:
        """What still runs ends within moments, and says why where it can."""
        self._proxy.cut()

    async def stop_mirroring(self) -> None:
        """Shadows serve no client: they are the first to go."""
        await self._proxy.lane.close()

    async def idle(self) -> None:
        """Returns when no request runs."""
        while self.running:
            self._ended.clear()
            await self._ended.wait()

    def app(self) -> web.Application:
        app = web.Application()
        for path in ROUTED_PATHS:
            self._add(app, path, self._by_body, "POST")
        self._add(app, ROUTED_BY_PATH, self._by_path, "POST")
        self._add(app, "/v1/models", self._models, "GET", "HEAD")
        self._add(app, "/v1/models/{id:.+}", self._model, "GET", "HEAD")
        app.router.add_route("*", "/{path:.*}", self._accounted(self._nowhere), expect_handler=self._expect)
        return app

    def _add(self, app: web.Application, path: str, work: Work, *methods: str) -> None:
        async def wrong_method(request: web.Request, record: Record) -> web.StreamResponse:
            raise errors.wrong_method(request.method, request.path, ", ".join(methods))

        for method in methods:
            app.router.add_route(method, path, self._accounted(work), expect_handler=self._expect)
        app.router.add_route("*", path, self._accounted(wrong_method), expect_handler=self._expect)

    def _accounted(self, work: Work) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            return await self.serve(request, work)

        return serve

    async def serve(self, request: web.Request, work: Work) -> web.StreamResponse:
        record = Record(headers.request_id(request.headers), self._clock())
        self.running += 1
        try:
            if self.running > self._settings.max_inflight:
                raise errors.overloaded("The gateway is at its limit of requests in flight.")
            return await work(request, record)
        except errors.Refusal as refusal:
            answer = self._refuse(record, refusal)
            if not request.content.is_eof():
                # What is left of the body would be waited for otherwise, or read as the next request.
                answer.force_close()
            return answer
        except asyncio.CancelledError:
            if request.transport is None or request.transport.is_closing():
                record.left()
            elif not record.whole:
                record.end("drained", 503)
            raise
        except Exception:
            log.exception("a request failed inside of the gateway", extra={"request_id": record.request_id})
            return self._refuse(record, errors.internal())
        finally:
            self.running -= 1
            self._ended.set()
            self._metrics.observe(record, self._clock())
            self._backends.ended(record.model, record.code, record.outcome)
            self._log(request, record)

    def door(self) -> Door:
        """Who may come in at the port of this API."""
        metrics = self._metrics
        return Door(self._settings, self.refuse, changed=metrics.connections_changed, turned_away=metrics.turned_away)

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        if await expect.is_met(request):
            return None
        message = "The only expectation that is met is 100-continue."
        answer = self.refuse(errors.invalid("expectation_failed", message, status=417))
        answer.force_close()
        return answer

    def refuse(self, refusal: errors.Refusal) -> web.Response:
        """The answer to what is no request; it is counted as one."""
        record = Record(headers.request_id({}), self._clock())
        answer = self._refuse(record, refusal)
        self._metrics.observe(record, record.started)
        return answer

    def _refuse(self, record: Record, refusal: errors.Refusal) -> web.Response:
        record.end(refusal.outcome, refusal.status)
        answer = self._json(refusal.body(), record, status=refusal.status)
        if record.revision:
            answer.headers[headers.REVISION] = record.revision
        if refusal.allow:
            answer.headers["Allow"] = refusal.allow
        if refusal.retry_after_s is not None:
            answer.headers["Retry-After"] = str(refusal.retry_after_s)
        return answer

    def _json(self, body: bytes, record: Record, status: int = 200) -> web.Response:
        answer = web.Response(body=body, status=status, content_type="application/json")
        answer.headers[headers.REQUEST_ID] = record.request_id
        if self.draining:
            answer.force_close()
        return answer

    def _log(self, request: web.Request, record: Record) -> None:
        level = logging.WARNING if record.code >= 500 else logging.DEBUG
        if log.isEnabledFor(level):
            seconds = round(self._clock() - record.started, 4)
            fields = {name: getattr(record, name) for name in ("request_id", "model", "revision", "code", "outcome")}
            log.log(level, "%s %s", request.method, request.path[:200], extra=fields | {"seconds": seconds})

    # -- requests for a model

    async def _by_body(self, request: web.Request, record: Record) -> web.StreamResponse:
        return await self._routed(request, record, None)

    async def _by_path(self, request: web.Request, record: Record) -> web.StreamResponse:
        return await self._routed(request, record, request.match_info["name"])

    async def _routed(self, request: web.Request, record: Record, model: str | None) -> web.StreamResponse:
        client = envelope.client(request.headers, request.remote or "", self._settings.share_by)
        with self._proxy.budget.open(client) as account:
            body = await bodies.read(request, account, self._settings)
            call = self._call(request, record, body, model, account)
            # Held by the call alone from here on.
            del body
            return await self._proxy.forward(request, call, record, close=self.draining)

    def _call(self, request: web.Request, record: Record, body: bytes, model: str | None, account: Account) -> Call:
        asked = envelope.parse(body)
        named, model = model, model or asked.model
        if not model:
            message = "You must provide a model parameter."
            raise errors.invalid("missing_required_parameter", message, param="model")
        if self._backends.table is None:
            raise errors.no_table()
        route = self._backends.find(model)
        if route is None:
            raise errors.model_not_found(model)
        key = envelope.sticky_key(request.headers, asked, record.request_id, self._settings.sticky_by)
        tenant = envelope.tenant(request.headers, asked, self._settings.tenant_by, self._settings.tenant_salt)
        forwarded, limit = route.forward_headers, self._settings.priority_limit
        sent = headers.to_upstream(
            request.headers, record.request_id, tenant, forwarded=forwarded, priority_limit=limit
        )
        preferred = by_headers(route, request.headers) if route.header_routes else ""
        path_qs = request.rel_url.raw_path_qs
        if model != route.model:
            # Its server knows one name, the short one, whoever owns that here.
            path_qs = _renamed_path(path_qs, route.model) if named else path_qs
            body = envelope.renamed(body, route.model) if asked.model == model else body
        record.model = self._backends.table.id_of(route)
        call = Call(
            model,
            key,
            path_qs,
            sent,
            body,
            route=route.name,
            preferred=preferred,
            stream=asked.stream is True,
            wants_json=asked.wants_json,
            excused=asked.excused,
            forwarded=forwarded,
            client=account.client,
            account=account,
        )
        last = request.headers.get(resume.LAST_EVENT_ID)
        return self._taken_up(call, last) if last is not None and call.writes_text else call

    def _taken_up(self, call: Call, last_event_id: str) -> Call:
        place = resume.place(last_event_id)
        if place is None:
            message = "Last-Event-ID must be the id of an event that this gateway sent, or be left out."
            raise errors.invalid("invalid_last_event_id", message)
        call.headers[resume.RESUME] = place.resume
        tokens = self._proxy.remembered(call, place.stream)
        if tokens:
            call.headers[resume.RESUME_BYTES] = str(len(tokens))
        return replace(call, revision=place.revision, holder=place.holder, tokens=tokens)

    # -- what is served

    async def _models(self, request: web.Request, record: Record) -> web.StreamResponse:
        table = self._backends.table
        if table is None:
            raise errors.no_table()
        listed = [self._describe(route, name) for name, route in sorted(_listed(table).items())]
        record.end("ok", 200)
        return self._json(msgspec.json.encode({"object": "list", "data": listed}), record)

    async def _model(self, request: web.Request, record: Record) -> web.StreamResponse:
        if self._backends.table is None:
            raise errors.no_table()
        name = request.match_info["id"]
        route = self._backends.find(name)
        if route is None:
            raise errors.model_not_found(name)
        record.model = self._backends.table.id_of(route)
        record.end("ok", 200)
        return self._json(msgspec.json.encode(self._describe(route, name)), record)

    def _describe(self, route: Route, name: str) -> dict[str, Any]:
        created = int(datetime.fromisoformat(route.created).timestamp()) if route.created else 0
        ready = self._backends.table is not None and self._backends.table.ready(route)
        return {"id": name, "object": "model", "created": created, "owned_by": "slipway", "ready": ready}

    async def _nowhere(self, request: web.Request, record: Record) -> web.StreamResponse:
        raise errors.invalid("unknown_url", f"Unknown request URL: {request.method} {request.path[:200]}.", status=404)


def _listed(table: RouteTable) -> dict[str, Route]:
    """Each model once: by its own name, or by `namespace/name` where that name is another's."""
    return {table.id_of(route): route for route in table.routes.values()}


def _renamed_path(path_qs: str, model: str) -> str:
    """Of `ROUTED_BY_PATH`."""
    _, mark, query = path_qs.partition("?")
    begin, _, end = ROUTED_BY_PATH.partition("{name:.+}")
    return f"{begin}{quote(model, safe=':@')}{end}{mark}{query}"


class Admin:
    """The private port: probes, metrics, and the report that the operator waits for."""

    def __init__(
        self,
        edge: Edge,
        backends: Backends,
        metrics: Metrics,
        source: Source,
        incarnation: str,
        token: OperatorToken | None = None,
        last: LastTable | None = None,
    ) -> None:
        self._token = token or OperatorToken("")
        self._edge = edge
        self._backends = backends
        self._metrics = metrics
        self._source = source
        self._incarnation = incarnation
        self._last = last or LastTable("", 0.0, backends.publish, metrics)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/internal/routes", self._routes)
        app.router.add_post("/internal/routes", self._renewed_routes)
        app.router.add_get("/internal/calls", self._calls)
        return app

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._edge.draining:
            return web.json_response({"status": "draining", "reason": "shutting down"}, status=503)
        if self._backends.table is None:
            return web.json_response({"status": "waiting", "reason": self._source.waiting_for}, status=503)
        if (age_s := self._last.age_s) is not None:
            reason = f"a restored table, {age_s:.0f} s old, is in use: {self._source.waiting_for}"
            return web.json_response({"status": "ok", "reason": reason})
        return web.json_response({"status": "ok"})

    async def _metrics_page(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _routes(self, request: web.Request) -> web.Response:
        report = {
            "incarnation": self._incarnation,
            "draining": self._edge.draining,
            "table": self._last.report(),
            "bounds": BOUNDS,
            "routes": self._backends.report(),
        }
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _renewed_routes(self, request: web.Request) -> web.Response:
        """The same for the operator, which thereby says that it minds the rollouts: reading alone renews nothing."""
        if not self._token.proves(request.headers.get("Authorization", "")):
            message = (
                "POST renews the failsafe's time: it takes the operator's token (--operator-token-file). GET does not."
            )
            return web.json_response({"error": message}, status=401)
        self._backends.renew()
        return await self._routes(request)

    async def _calls(self, request: web.Request) -> web.Response:
        """Which routes are to be woken: answered when there is news of it, or after a while."""
        called = await self._backends.visits.calls(request.query.get("since", ""), CALLS_WAIT_S)
        return web.Response(body=msgspec.json.encode(called), content_type="application/json")
