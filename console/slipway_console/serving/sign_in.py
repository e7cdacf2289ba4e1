"""Sign-in by a token that a viewer pastes, or at an identity provider; and sign-out."""

import logging
import re

from aiohttp import web

from slipway_console.access.api_server import ApiServer, Viewer
from slipway_console.access.identity_provider import IdentityProvider
from slipway_console.access.oidc import Flow, code_of
from slipway_console.access.refusal import ApiRefusal, SignedOut
from slipway_console.serving.actions import checked_form, form_of
from slipway_console.serving.connections import TrustedProxies
from slipway_console.serving.guard import MOST_FORM_BYTES, SESSION, Cookie, FlowCookie, loses_cookie
from slipway_console.serving.rendering import Rendering
from slipway_console.serving.sessions import SessionStore
from slipway_process.shares import Shares

log = logging.getLogger(__name__)

CALLBACK = "/sign-in/callback"
MOST_SIGN_INS = 16  # at once; a client's address gets at most three quarters of them
BY_PLAIN_HTTP = (
    "This page came by plain HTTP, by which your browser keeps no session, and the token was readable on its way: "
    "revoke it, and open the console by HTTPS or by `kubectl port-forward`."
)
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_ACCEPTED_BY_NONE = (
    "The identity provider signed you in, and the API server does not accept its token: it trusts another "
)
_ACCEPTED_BY_NONE += (
    "issuer or another client (--oidc-issuer-url, --oidc-client-id, or its AuthenticationConfiguration)."
)


class SignIn:
    """`provider`: None where viewers paste tokens alone."""

    def __init__(
        self, api: ApiServer, rendering: Rendering, sessions: SessionStore, cookie: Cookie,
        provider: IdentityProvider | None = None, proxies: TrustedProxies | None = None,
    ) -> None:  # fmt: skip
        self._api, self._rendering, self._sessions, self._cookie = api, rendering, sessions, cookie
        self._provider, self._flow_cookie = provider, FlowCookie(cookie.is_secure)
        self._shares, self._client_of = Shares(MOST_SIGN_INS), (proxies or TrustedProxies()).client_of

    def routes(self) -> list[web.RouteDef]:
        """Those of a provider only where there is one."""
        routes = [
            web.get("/sign-in", self._form),
            web.post("/sign-in", self._by_token),
            web.post("/sign-out", self._sign_out),
        ]
        if self._provider:
            routes += [web.get("/sign-in/provider", self._begin), web.get(CALLBACK, self._return)]
        return routes

    # -- by a token

    async def _form(self, request: web.Request) -> web.StreamResponse:
        return _to("/deployments") if SESSION in request else self._page()

    async def _by_token(self, request: web.Request) -> web.StreamResponse:
        """Open a session for a token that the API server accepts."""
        with _Place(self._shares, self._client_of(request)):
            text = (await form_of(request, "token", longest=MOST_FORM_BYTES))["token"]
            token = text.strip().removeprefix("Bearer ").strip()
            if not _TOKEN.fullmatch(token):
                return self._page("This is no token: paste one line without spaces.", 400)
            if self._cookie.is_secure and loses_cookie(request):
                return self._page(BY_PLAIN_HTTP, 400)
            try:
                response = _to("/deployments")
                await self._open(request, response, token)
            except ApiRefusal as refusal:
                return self._page(refusal.sentence, refusal.status)
            return response

    # -- at a provider

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        """Lead the browser to the provider; it keeps what the answer has to fit."""
        assert self._provider is not None
        with _Place(self._shares, self._client_of(request)):
            flow = Flow.begin()
            try:
                response = _to(await self._provider.address(flow))
            except ApiRefusal as refusal:
                return self._page(refusal.sentence, refusal.status)
            self._flow_cookie.set(response, str(flow))
            return response

    async def _return(self, request: web.Request) -> web.StreamResponse:
        """Open a session for the ID token of the user who comes back from the provider.

        The browser came here from another site, so that it would not send the session's cookie with a redirect: a page
        leads on.
        """
        assert self._provider is not None
        with _Place(self._shares, self._client_of(request)):
            flow = Flow.parse(request.cookies.get(self._flow_cookie.name, ""))
            try:
                code = code_of(request.query, flow, self._provider.client.issuer)
                assert flow is not None  # it fits
                token = await self._provider.id_token(code, flow)
                response = self._rendering.signed_in()
                await self._open(request, response, token.text, token.lasts_s)
            except SignedOut as refusal:
                log.info("an ID token was not accepted", extra={"client": self._client_of(request)})
                response = self._page(_ACCEPTED_BY_NONE, refusal.status)
            except ApiRefusal as refusal:
                log.info("a sign-in failed", extra={"client": self._client_of(request), "reason": refusal.detail})
                response = self._page(refusal.sentence, refusal.status)
            self._flow_cookie.clear(response)
            return response

    # -- both

    async def _open(
        self, request: web.Request, response: web.StreamResponse, token: str, lasts_s: float | None = None
    ) -> None:
        """Open a session, whose cookie the response sets. `lasts_s`: of the token. Raises ApiRefusal."""
        client = self._client_of(request)
        try:
            user = await self._api.user_of(token, client)
        except SignedOut:
            log.info("a token was not accepted", extra={"client": client})
            raise
        if SESSION in request:
            self._sessions.end(request[SESSION])
        session = self._sessions.open(Viewer(user, token), lasts_s)
        if session is None:
            raise ApiRefusal(503, "There is no room for another session: try again later.")
        log.info("a viewer signed in", extra={"user": user, "client": client})
        self._cookie.set(response, session, self._sessions.left_s(session))

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        await checked_form(request)
        self._sessions.end(request[SESSION])
        response = _to("/sign-in")
        self._cookie.clear(response)
        return response

    def _page(self, sentence: str = "", status: int = 200) -> web.Response:
        return self._rendering.sign_in(sentence, status)


class _Place:
    """A place among the sign-ins in progress. Raises ApiRefusal 429: there is none for this client."""

    def __init__(self, shares: Shares, client: str) -> None:
        self._shares, self._client = shares, client

    def __enter__(self) -> None:
        if not self._shares.take(self._client):
            raise ApiRefusal(429, "Too many sign-ins are in progress: try again.")

    def __exit__(self, *_: object) -> None:
        self._shares.give_back(self._client)


def _to(where: str) -> web.Response:
    return web.Response(status=303, headers={"Location": where})
