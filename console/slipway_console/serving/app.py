"""The two ports: pages for browsers, and the admin port."""

from collections.abc import Callable

from aiohttp import web

from slipway_console.access.api_server import ApiServer
from slipway_console.access.batches import Batches
from slipway_console.access.identity_provider import IdentityProvider
from slipway_console.access.places import Places
from slipway_console.serving.actions import Actions
from slipway_console.serving.connections import TrustedProxies
from slipway_console.serving.guard import MOST_FORM_BYTES, Cookie, Guard
from slipway_console.serving.pages import Pages
from slipway_console.serving.rendering import Rendering
from slipway_console.serving.sessions import SessionStore
from slipway_console.serving.sign_in import SignIn
from slipway_console.serving.streams import Streams
from slipway_console.settings import ConsoleSettings

MOST_PAGES = 6  # made at once: each may hold answers of the API server of 100 MiB together


def public_app(
    settings: ConsoleSettings, api: ApiServer, rendering: Rendering | None = None,
    provider: IdentityProvider | None = None, batches: Batches | None = None, proxies: TrustedProxies | None = None,
) -> web.Application:  # fmt: skip
    """The pages. Open streams end when the application shuts down."""
    rendering = rendering or Rendering(has_provider=provider is not None, has_batches=batches is not None)
    sessions = SessionStore(settings.max_sessions, settings.session_s)
    looks = Places(MOST_PAGES, "The console makes as many pages as it may.")
    cookie, streams = Cookie(settings.secure_cookie), Streams(sessions, settings.max_streams, settings.poll_s, looks)
    pages, actions, sign_in = (
        Pages(api, rendering, batches),
        Actions(api),
        SignIn(api, rendering, sessions, cookie, provider, proxies),
    )

    async def root(_: web.Request) -> web.StreamResponse:
        return web.Response(status=303, headers={"Location": "/deployments"})

    async def asset(request: web.Request) -> web.StreamResponse:
        return rendering.asset(request.match_info["name"])

    async def close_streams(_: web.Application) -> None:
        streams.close()

    one = "/deployments/{namespace}/{name}"
    app = web.Application(
        middlewares=[Guard(sessions, cookie, rendering, looks).middleware()], client_max_size=MOST_FORM_BYTES
    )
    app.add_routes(
        [
            web.get("/", root),
            *sign_in.routes(),
            web.get("/static/{name}", asset),
            web.get("/deployments", pages.deployments),
            web.get("/deployments/stream", streams.handler(pages.deployments_sections)),
            web.get("/tenants", pages.tenants),
            web.get("/batches", pages.batches),
            web.get("/pools", pages.pools),
            web.get("/pools/{namespace}/{name}", pages.pool),
            web.get(one, pages.deployment),
            web.get(f"{one}/stream", streams.handler(pages.deployment_sections, pages.deployment_version)),
            web.get(f"{one}/analyses/{{run}}", pages.evidence),
            web.post(f"{one}/{{action}}", actions.act),
        ]
    )
    app.on_shutdown.append(close_streams)
    return app


def admin_app(trouble: Callable[[], str]) -> web.Application:
    """`trouble`: why the process is not ready; empty when it is."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        if reason := trouble():
            return web.json_response({"status": "waiting", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return app
