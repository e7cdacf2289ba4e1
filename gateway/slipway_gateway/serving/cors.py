"""Requests of web pages of other origins: https://fetch.spec.whatwg.org/#http-cors-protocol.

Credentials of browsers (cookies, certificates) are never allowed: pages send an API key as any client does.
"""

import re
from collections.abc import Collection

from aiohttp import web

from slipway_contracts.headers import REVISION, ROUTE

from ..wire import headers

METHODS = "GET, HEAD, POST, DELETE"
# What a page may read of a response beside its body.
EXPOSED = ", ".join(
    (headers.REQUEST_ID, REVISION, ROUTE, "Retry-After", "retry-after-ms",
     *(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")))
)  # fmt: skip
_MAX_AGE_S = 600
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]{1,64}(?:, ?[A-Za-z0-9-]{1,64}){0,63}")


class Cors:
    """`origins`: of pages that may send requests, as browsers name them; `*` for all."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def is_preflight(self, request: web.BaseRequest) -> bool:
        """Whether it precedes a request of a page of an allowed origin."""
        is_question = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        return is_question and self._allowed(request) is not None

    def permission(self, request: web.BaseRequest) -> web.Response:
        """The response to a preflight request. The headers of its origin are added with those of any response."""
        granted = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": str(_MAX_AGE_S)}
        names = request.headers.get("Access-Control-Request-Headers", "")
        if _HEADER_NAMES.fullmatch(names):
            granted["Access-Control-Allow-Headers"] = names
        return web.Response(status=204, headers=granted)

    async def on_prepare(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Let a page of an allowed origin read the response."""
        if "*" not in self._origins:
            response.headers.add("Vary", "Origin")
        if (origin := self._allowed(request)) is None:
            return
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED

    def _allowed(self, request: web.BaseRequest) -> str | None:
        """What stands in the response for the origin of a request; None: it has none, or one that is not allowed."""
        origin = request.headers.get("Origin")
        if origin is None:
            return None
        return "*" if "*" in self._origins else origin if origin in self._origins else None
