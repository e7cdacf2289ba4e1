"""What is around every request: headers of responses, the session, and proof that a form is from a page of ours."""

import hmac
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from slipway_console.access.places import Places
from slipway_console.access.refusal import ApiRefusal, SignedOut
from slipway_console.serving.rendering import Rendering
from slipway_console.serving.sessions import Session, SessionStore
from slipway_console.settings import LOCAL_HOSTS
from slipway_process import logs

log = logging.getLogger(__name__)

SESSION: web.RequestKey[Session] = web.RequestKey("session", Session)
MOST_FORM_BYTES = 32 << 10
OPEN = ("/sign-in", "/static/")
_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("style", "script", "img", "connect")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
# With no-referrer browsers would send `Origin: null` with our own forms.
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Cookie:
    """The session's cookie. By HTTPS its name has a prefix, by which browsers refuse to let another host set it."""

    def __init__(self, secure: bool) -> None:
        self.is_secure = secure
        self.name = "__Host-slipway-console" if secure else "slipway-console"

    def set(self, response: web.StreamResponse, session: Session, lasts_s: float) -> None:
        response.set_cookie(
            self.name,
            session.id,
            max_age=int(lasts_s),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self.is_secure,
        )

    def clear(self, response: web.StreamResponse) -> None:
        response.del_cookie(self.name, path="/", httponly=True, samesite="Strict", secure=self.is_secure)


class FlowCookie:
    """What a browser keeps of a sign-in that it began. `Lax`: it is sent when the provider leads the browser back."""

    LASTS_S = 600

    def __init__(self, secure: bool) -> None:
        self._is_secure = secure
        self.name = "__Host-slipway-sign-in" if secure else "slipway-sign-in"

    def set(self, response: web.StreamResponse, flow: str) -> None:
        response.set_cookie(
            self.name, flow, max_age=self.LASTS_S, path="/", httponly=True, samesite="Lax", secure=self._is_secure
        )

    def clear(self, response: web.StreamResponse) -> None:
        response.del_cookie(self.name, path="/", httponly=True, samesite="Lax", secure=self._is_secure)


def is_same_origin(request: web.Request) -> bool:
    """Whether a browser sent this form from a page of this host; requests without either header are no browser's."""
    if "Origin" not in request.headers:
        return request.headers.get("Sec-Fetch-Site") == "same-origin"
    return _origin(request).netloc.lower() == request.host.lower()


def loses_cookie(request: web.Request) -> bool:
    """Whether the browser of this form will keep no Secure cookie: it has the page by plain HTTP, not of localhost."""
    origin = _origin(request)
    host = origin.hostname or ""
    return origin.scheme == "http" and host not in LOCAL_HOSTS and not host.endswith(".localhost")


def _origin(request: web.Request) -> SplitResult:
    """The Origin of a request; an empty one for what is none, such as `null`."""
    try:
        return urlsplit(request.headers.get("Origin", ""))
    except ValueError:
        return urlsplit("")


def has_token(session: Session, form: str) -> bool:
    """Whether a form has the session's own token."""
    return hmac.compare_digest(session.csrf.encode(), form.encode())


class Guard:
    """Around every request: its session, its origin, and a page for each thing that fails.

    `pages`: what a viewer's request takes a place of. Streams take theirs for each look.
    """

    def __init__(self, sessions: SessionStore, cookie: Cookie, rendering: Rendering, pages: Places) -> None:
        self._sessions, self._cookie, self._rendering, self._pages = sessions, cookie, rendering, pages

    def middleware(self) -> Middleware:
        """For the application."""

        # The server and aiohttp bind the next one by this name.
        @web.middleware
        async def guarded(request: web.Request, handler: Answer) -> web.StreamResponse:
            with logs.about(method=request.method, path=request.path[:200]):
                response = await self._answered(request, handler)
            if not response.prepared:
                response.headers.update(HEADERS)
                response.headers.setdefault("Cache-Control", "no-store")
            return response

        return guarded

    async def _answered(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        session = self._sessions.find(request.cookies.get(self._cookie.name, ""))
        if session:
            request[SESSION] = session
        try:
            return await self._checked(request, answer, session)
        except ApiRefusal as refusal:
            return self._refused(refusal, session)
        except web.HTTPException as error:
            if error.status < 400:
                return error
            sentence = f"This page does not exist, or not in this way ({error.status} {error.reason})."
            return self._rendering.refusal(ApiRefusal(error.status, sentence), session)
        except ConnectionError:
            raise  # the browser left
        except Exception:
            log.exception("a request failed inside of the console")
            sentence = "The console failed on this page; its log has the reason. `kubectl slipway` shows the same."
            return self._rendering.refusal(ApiRefusal(500, sentence), session)

    async def _checked(self, request: web.Request, answer: Answer, session: Session | None) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD") and not is_same_origin(request):
            raise ApiRefusal(403, "This form was not sent from a page of this console: nothing was done.")
        if session is None and not request.path.startswith(OPEN):
            return _to_sign_in(request)
        if session is None or request.path.startswith(OPEN) or _is_stream(request):
            return await answer(request)
        async with self._pages.of(session.viewer.share):
            return await answer(request)

    def _refused(self, refusal: ApiRefusal, session: Session | None) -> web.Response:
        if not isinstance(refusal, SignedOut):
            return self._rendering.refusal(refusal, session)
        if session:
            self._sessions.end(session)
        response = self._rendering.sign_in(refusal.sentence, status=401)
        self._cookie.clear(response)
        return response


def _is_stream(request: web.Request) -> bool:
    """Whether it is for a stream of events, and not for the page of a deployment of this name."""
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical.endswith("/stream")


def _to_sign_in(request: web.Request) -> web.Response:
    if _is_stream(request):
        return web.Response(status=401, text="The session has ended.")
    return web.Response(status=303, headers={"Location": "/sign-in"})
