"""The two ports: pages for browsers, and the admin port."""

import logging
import re
from collections.abc import Callable

from aiohttp import web

from slipway_console.access.api_server import ApiServer, Viewer
from slipway_console.access.refusal import ApiRefusal, SignedOut
from slipway_console.serving.actions import Actions, checked_form, form_of
from slipway_console.serving.guard import MOST_FORM_BYTES, SESSION, Cookie, Guard, loses_cookie
from slipway_console.serving.pages import Pages
from slipway_console.serving.rendering import Rendering
from slipway_console.serving.sessions import SessionStore
from slipway_console.serving.streams import Streams
from slipway_console.settings import ConsoleSettings
from slipway_process.shares import Shares

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
BY_PLAIN_HTTP = (
    "This page came by plain HTTP, by which your browser keeps no session, and the token was readable on its way: "
    "revoke it, and open the console by HTTPS or by `kubectl port-forward`."
)
MOST_SIGN_INS = 16  # at once; a client's address gets at most three quarters of them


class SignIn:
    """The form for a token, and the end of a session."""

    def __init__(self, api: ApiServer, rendering: Rendering, sessions: SessionStore, cookie: Cookie) -> None:
        self._api, self._rendering, self._sessions, self._cookie = api, rendering, sessions, cookie
        self._shares = Shares(MOST_SIGN_INS)

    async def form(self, request: web.Request) -> web.StreamResponse:
        return _to("/deployments") if SESSION in request else self._rendering.sign_in()

    async def sign_in(self, request: web.Request) -> web.StreamResponse:
        """Open a session for a token that the API server accepts."""
        client = request.remote or ""
        if not self._shares.take(client):
            return self._rendering.sign_in("Too many sign-ins are in progress: try again.", 429)
        try:
            return await self._sign_in(request, client)
        finally:
            self._shares.give_back(client)

    async def _sign_in(self, request: web.Request, client: str) -> web.StreamResponse:
        text = (await form_of(request, "token", longest=MOST_FORM_BYTES))["token"]
        token = text.strip().removeprefix("Bearer ").strip()
        if not _TOKEN.fullmatch(token):
            return self._rendering.sign_in("This is no token: paste one line without spaces.", 400)
        if self._cookie.is_secure and loses_cookie(request):
            return self._rendering.sign_in(BY_PLAIN_HTTP, 400)
        try:
            user = await self._api.user_of(token, client)
        except SignedOut as refusal:
            log.info("a token was not accepted", extra={"client": client})
            return self._rendering.sign_in(refusal.sentence, 401)
        except ApiRefusal as refusal:
            return self._rendering.sign_in(refusal.sentence, refusal.status)
        if SESSION in request:
            self._sessions.end(request[SESSION])
        session = self._sessions.open(Viewer(user, token))
        if session is None:
            return self._rendering.sign_in("There is no room for another session: try again later.", 503)
        log.info("a viewer signed in", extra={"user": user, "client": client})
        response = _to("/deployments")
        self._cookie.set(response, session, self._sessions.left_s(session))
        return response

    async def sign_out(self, request: web.Request) -> web.StreamResponse:
        await checked_form(request)
        self._sessions.end(request[SESSION])
        response = _to("/sign-in")
        self._cookie.clear(response)
        return response


def public_app(settings: ConsoleSettings, api: ApiServer, rendering: Rendering | None = None) -> web.Application:
    """The pages. Open streams end when the application shuts down."""
    rendering = rendering or Rendering()
    sessions = SessionStore(settings.max_sessions, settings.session_s)
    cookie, streams = Cookie(settings.secure_cookie), Streams(sessions, settings.max_streams, settings.poll_s)
    pages, actions, sign_in = Pages(api, rendering), Actions(api), SignIn(api, rendering, sessions, cookie)

    async def root(_: web.Request) -> web.StreamResponse:
        return _to("/deployments")

    async def asset(request: web.Request) -> web.StreamResponse:
        return rendering.asset(request.match_info["name"])

    async def close_streams(_: web.Application) -> None:
        streams.close()

    one = "/deployments/{namespace}/{name}"
    app = web.Application(
        middlewares=[Guard(sessions, cookie, rendering).middleware()], client_max_size=MOST_FORM_BYTES
    )
    app.add_routes(
        [
            web.get("/", root),
            web.get("/sign-in", sign_in.form),
            web.post("/sign-in", sign_in.sign_in),
            web.post("/sign-out", sign_in.sign_out),
            web.get("/static/{name}", asset),
            web.get("/deployments", pages.deployments),
            web.get("/deployments/stream", streams.handler(pages.deployments_sections)),
            web.get("/tenants", pages.tenants),
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


def _to(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path})
