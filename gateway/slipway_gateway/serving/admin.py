"""Routes of the admin port: probes, metrics, and reports for the operator."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from aiohttp import web

from slipway_contracts.gateway_report import GatewayReport, encoded
from slipway_process.database_errors import UNAVAILABLE
from slipway_process.network.mutual_tls import has_certificate
from slipway_process.supervisor import Supervisor

from ..balancing.load_balancer import LoadBalancer
from ..judging.samples import BOUNDS
from ..ledger.store import MAX_ROWS_READ
from ..routing.last_table import LastTable
from ..telemetry.metrics import GatewayMetrics
from .api import PublicApi
from .operator_token import OperatorToken

# Shorter than the time after which a proxy in between closes a silent connection.
CALLS_WAIT_S = 20.0


class TableSource(Protocol):
    """Where tables come from: a cluster or a file."""

    @property
    def waiting_for(self) -> str: ...

    async def run(self) -> None: ...


@web.middleware
async def _only_with_certificate(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if not has_certificate(request.get_extra_info("peercert")):
        return web.json_response({"error": "this port is for the operator, which has a certificate"}, status=403)
    return await handler(request)


class AdminApi:
    """The private port: probes, metrics, and the report that the operator waits for."""

    def __init__(
        self,
        edge: PublicApi,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        source: TableSource,
        incarnation: str,
        token: OperatorToken | None = None,
        last: LastTable | None = None,
        *,
        tasks: Supervisor | None = None,
    ) -> None:
        self._token = token or OperatorToken("")
        self._edge = edge
        self._balancer = balancer
        self._metrics = metrics
        self._source = source
        self._incarnation = incarnation
        self._tasks = tasks or Supervisor(metrics.task_restarted)
        self._last = last or LastTable("", 0.0, balancer.publish, metrics)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        self._add_internal(app)
        return app

    def internal_app(self) -> web.Application:
        """The reports alone, for a port on which clients have a certificate of the release."""
        app = web.Application(middlewares=[_only_with_certificate])
        self._add_internal(app)
        return app

    def _add_internal(self, app: web.Application) -> None:
        app.router.add_get("/internal/routes", self._routes)
        app.router.add_post("/internal/routes", self._renewed_routes)
        app.router.add_get("/internal/calls", self._calls)
        app.router.add_get("/internal/usage", self._usage)
        app.router.add_get("/internal/tenants", self._tenants)
        app.router.add_get("/internal/experiments", self._experiments)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._edge.draining:
            return web.json_response({"status": "draining", "reason": "shutting down"}, status=503)
        if self._balancer.published.current is None:
            return web.json_response({"status": "waiting", "reason": self._source.waiting_for}, status=503)
        if reason := self._edge.authenticator.waiting_for:
            return web.json_response({"status": "waiting", "reason": reason}, status=503)
        if reason := self._tasks.trouble:
            return web.json_response({"status": "failing", "reason": reason}, status=503)
        reasons = [self._tasks.missing]
        if (age_s := self._last.age_s) is not None:
            reasons.append(f"a restored table, {age_s:.0f} s old, is in use: {self._source.waiting_for}")
        shown = "; ".join(filter(None, reasons))
        return web.json_response({"status": "ok"} | ({"reason": shown} if shown else {}))

    async def _metrics_page(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.page(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _routes(self, request: web.Request) -> web.Response:
        report = GatewayReport(
            encoded(self._balancer.report()),
            self._incarnation,
            self._edge.draining,
            self._last.report(),
            BOUNDS,
            self._edge.in_flight,
        )
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _usage(self, request: web.Request) -> web.Response:
        """Rows of the ledger, for `slipway usage`; gateways that share a ledger return the same id of it."""
        try:
            first, end = (int(request.query[name]) for name in ("first", "end"))
            if not 0 <= first < end < 1 << 31:
                raise ValueError
        except (KeyError, ValueError):
            message = "first and end are hours of Unix time, and first comes before end"
            return web.json_response({"error": message}, status=400)
        try:
            id_, rows = await self._edge.ledger.usage(first, end, request.query.get("tenant", ""))
        except UNAVAILABLE as error:
            return web.json_response({"error": f"the ledger cannot be read: {error}"}, status=503)
        shared = self._edge.ledger.is_shared
        answer = {"ledger": id_, "shared": shared, "rows": rows, "whole": len(rows) < MAX_ROWS_READ}
        body = msgspec.json.encode(answer)
        return web.Response(body=body, content_type="application/json")

    async def _tenants(self, request: web.Request) -> web.Response:
        """Use of all tenants, and what hinders their requests, for the status of Tenants."""
        return web.Response(body=msgspec.json.encode(self._edge.tenants_report()), content_type="application/json")

    async def _experiments(self, request: web.Request) -> web.Response:
        """Units, exposures and outcomes by arm, for the status of Experiments."""
        report = self._edge.experiments.report(self._incarnation)
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _renewed_routes(self, request: web.Request) -> web.Response:
        """The report of `_routes`, for the operator's token; renews the failsafe's time, which a GET does not."""
        if not self._token.proves(request.headers.get("Authorization", "")):
            message = (
                "POST renews the failsafe's time: it takes the operator's token (--operator-token-file). GET does not."
            )
            return web.json_response({"error": message}, status=401)
        self._balancer.failsafe.renew()
        return await self._routes(request)

    async def _calls(self, request: web.Request) -> web.Response:
        """Long poll for routes that must wake or that changed."""
        called = await self._balancer.activity.wait_for_changes(request.query.get("since", ""), CALLS_WAIT_S)
        return web.Response(body=msgspec.json.encode(called), content_type="application/json")
