"""The two ports: requests of gateways, with their errors in one place, and the admin port."""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from slipway_contracts.batch_list import BATCH_LIST_PATH
from slipway_contracts.passes import PassKeys
from slipway_process import logs
from slipway_process.database_errors import UNAVAILABLE
from slipway_process.sealing import UnreadableSeal
from slipway_process.shares import Shares

from ..telemetry import JobsMetrics
from .fields import LARGE_BODIES, MAX_LARGE_BODIES, end_body
from .refusal import JobsRefusal, unavailable, unreadable
from .tenancy import verify

log = logging.getLogger(__name__)
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def public_app(routes: Iterable[web.RouteDef], keys: PassKeys, metrics: JobsMetrics) -> web.Application:
    @web.middleware
    async def guarded(request: web.Request, handler: _Answer) -> web.StreamResponse:
        given = request.headers.get("X-Request-Id", "")
        with logs.about(request_id=given if _SANE_ID.fullmatch(given) else ""):
            try:
                response = await _answered(request, handler, keys)
            finally:
                end_body(request)
        metrics.requests.labels(str(response.status)).inc()
        return response

    # Bodies are read in parts, each within its own bound.
    app = web.Application(middlewares=[guarded], client_max_size=0)
    app[LARGE_BODIES] = Shares(MAX_LARGE_BODIES)
    app.add_routes(routes)
    return app


async def _answered(request: web.Request, answer: _Answer, keys: PassKeys) -> web.StreamResponse:
    try:
        if request.path != BATCH_LIST_PATH:  # it is not of a tenant, and checks its viewer itself
            verify(request, keys)
        return await answer(request)
    except JobsRefusal as refusal:
        return refusal.response()
    except web.HTTPMethodNotAllowed as error:
        message = f"{request.path[:200]} takes {', '.join(sorted(error.allowed_methods))}, not {request.method[:20]}."
        return JobsRefusal(405, "method_not_allowed", message).response()
    except web.HTTPNotFound:
        return JobsRefusal(
            404, "unknown_url", f"Unknown request URL: {request.method} {request.path[:200]}."
        ).response()
    except UnreadableSeal as error:
        log.error("something that is stored cannot be decrypted: %s", error)
        return unreadable(error).response()
    except UNAVAILABLE as error:
        if isinstance(error, ConnectionError):
            raise  # the gateway left
        log.error("the database cannot be used: %s", error)
        return unavailable().response()
    except Exception:
        log.exception("a request failed inside of the process")
        return JobsRefusal(500, "internal_error", "The jobs process failed on this request.").response()


def admin_app(metrics: JobsMetrics, trouble: Callable[[], str]) -> web.Application:
    """`trouble`: why the process is not ready; empty when it is."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        if reason := trouble():
            return web.json_response({"status": "waiting", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", page)])
    return app
