"""The routes of the control API, within bounds of bytes, time and number; each request ends in one count."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from slipway_operator.api.objects import Object
from slipway_operator.control_api import bodies, documents, edits
from slipway_operator.control_api.caller import Caller, CallerClient, unauthorized
from slipway_process.places import Places
from slipway_process.serving.bodies import body_of
from slipway_process.serving.errors import HttpError, failed, invalid, too_late

Counted = Callable[[str, int], None]
Answer = Callable[[web.Request, Caller], Awaitable[web.Response]]

PATH = "/api/v1/deployments"
DEFAULT_NAMESPACE = "default"
MOST_REQUESTS, MOST_OF_AN_ADDRESS = 64, 16
MOST_CALLS, MOST_OF_A_CALLER = 32, 8
REQUEST_S = 30.0
ACKNOWLEDGED_S, LOOK_S = 5.0, 0.25  # how long a PUT of the traffic waits for gateways
MOST_ATTEMPTS = 4  # at a patch of an object that others write at the same time
PAGE, MOST_PAGE = 50, 200
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

log = logging.getLogger(__name__)


class ControlRoutes:
    """`counted` gets the name of the route and the status of each response."""

    def __init__(self, client: CallerClient, counted: Counted) -> None:
        self._client, self._counted = client, counted
        self._requests = Places(MOST_REQUESTS, most=MOST_OF_AN_ADDRESS)
        self._calls = Places(MOST_CALLS, most=MOST_OF_A_CALLER)

    def application(self) -> web.Application:
        """Return the application."""
        application = web.Application(client_max_size=bodies.MAX_BYTES)
        application.router.add_get(PATH, self._handle("list", self._list))
        application.router.add_post(PATH, self._handle("create", self._post))
        application.router.add_get(f"{PATH}/{{name}}", self._handle("get", self._get))
        application.router.add_put(f"{PATH}/{{name}}/traffic", self._handle("traffic", self._traffic))
        application.router.add_route("*", "/{path:.*}", self._handle("other", _nothing_here, known=False))
        return application

    async def _list(self, request: web.Request, caller: Caller) -> web.Response:
        _check_query(request, "namespace", "limit", "after")
        items, more = await self._client.list(
            caller, _namespace(request, caller), _limit(request), request.query.get("after", "")[:4096]
        )
        return web.json_response(documents.page(items, more))

    async def _get(self, request: web.Request, caller: Caller) -> web.Response:
        _check_query(request, "namespace")
        obj = await self._client.get(caller, _namespace(request, caller), _name(request))
        return web.json_response(documents.deployment(obj))

    async def _post(self, request: web.Request, caller: Caller) -> web.Response:
        _check_query(request, "namespace")
        body, namespace = bodies.deployment(await body_of(request)), _namespace(request, caller)
        try:
            obj = await self._client.get(caller, namespace, body.model_name)
        except HttpError as error:
            if error.status != 404:
                raise
            made = await self._client.create(caller, edits.manifest(body, namespace))
            return web.json_response(documents.deployment(made), status=201)
        obj = await self._changed(caller, obj, lambda live: edits.patch(body, live))
        return web.json_response(documents.deployment(obj))

    async def _traffic(self, request: web.Request, caller: Caller) -> web.Response:
        _check_query(request, "namespace")
        split, namespace, name = bodies.split(await body_of(request)), _namespace(request, caller), _name(request)
        obj = await self._client.get(caller, namespace, name)
        percent = 0

        def change_of(live: Object) -> Object | None:
            nonlocal percent
            change, percent = edits.traffic_patch(split, live)
            return change

        obj = await self._changed(caller, obj, change_of)
        obj, is_acknowledged = await self._acknowledged(caller, obj, percent)
        document = {"object": "traffic", "model_name": name, "namespace": namespace, "traffic": documents.traffic(obj)}
        if is_acknowledged:
            return web.json_response(document)
        awaited = (obj.get("status") or {}).get("message") or "the operator has not answered the change yet"
        return web.json_response({**document, "awaiting": awaited}, status=202)

    async def _changed(self, caller: Caller, obj: Object, change_of: Callable[[Object], Object | None]) -> Object:
        """The ModelDeployment with the patch that follows from it, decided again where it changed meanwhile.

        A patch names the version that it follows from, and the operator writes the status of a rollout every second.
        """
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        for attempt in range(MOST_ATTEMPTS):
            change = change_of(obj)
            if change is None:
                return obj
            try:
                return await self._client.patch(caller, namespace, name, change)
            except HttpError as error:
                if error.status != 409 or attempt == MOST_ATTEMPTS - 1:
                    raise
            obj = await self._client.get(caller, namespace, name)
        return obj

    async def _acknowledged(self, caller: Caller, obj: Object, percent: int) -> tuple[Object, bool]:
        """(the ModelDeployment as it is then, whether each ready gateway has the weight); waits ACKNOWLEDGED_S."""
        metadata = obj["metadata"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ACKNOWLEDGED_S):
                while not _has_weight(obj, percent):
                    await _pause()
                    obj = await self._client.get(caller, metadata["namespace"], metadata["name"])
        return obj, _has_weight(obj, percent)

    def _handle(
        self, route: str, answer: Answer, *, known: bool = True
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            response = await self._answer(request, answer, known=known)
            self._counted(route, response.status)
            return response

        return handle

    async def _answer(self, request: web.Request, answer: Answer, *, known: bool) -> web.Response:
        try:
            async with self._place(self._requests, f"address {request.remote}"), asyncio.timeout(REQUEST_S):
                if not known:
                    raise HttpError(404, f"there is no {request.method} {request.path[:128]} here", code="not_found")
                caller = await self._client.who(_token(request))
                async with self._place(self._calls, caller.share):
                    return await answer(request, caller)
        except HttpError as error:
            return _refused(error)
        except web.HTTPRequestEntityTooLarge:
            return _refused(HttpError(413, f"the body has more than {bodies.MAX_BYTES} bytes", code="too_large"))
        except TimeoutError:
            return _refused(too_late(f"the request took more than {REQUEST_S:.0f} s"))
        except Exception:
            log.exception("a bug: a request of the control API failed")
            return _refused(failed("the control API failed; see the operator's log"))

    @contextlib.asynccontextmanager
    async def _place(self, places: Places, owner: str) -> AsyncIterator[None]:
        if places.take(owner):
            message = "too many requests are in progress: try again in a second"
            raise HttpError(429, message, code="too_many_requests", retry_after_s=1)
        try:
            yield
        finally:
            places.leave(owner)


async def _pause() -> None:
    await asyncio.sleep(LOOK_S)


async def _nothing_here(request: web.Request, caller: Caller) -> web.Response:
    raise NotImplementedError("unknown paths are refused before the API server is called")


def _has_weight(obj: Object, percent: int) -> bool:
    weight = (obj.get("status") or {}).get("weight") or 0
    return documents.is_observed(obj) and bool(weight == percent)


def _token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token.strip()):
        raise unauthorized()
    return token.strip()


def _check_query(request: web.Request, *known: str) -> None:
    for name in request.query:
        if name not in known:
            raise invalid(
                f"there is no parameter {name[:64]}; there are {', '.join(known)}", name[:64], "unknown_parameter"
            )


def _namespace(request: web.Request, caller: Caller) -> str:
    """The one of the query, else that of the caller's ServiceAccount, else `default`, as kubectl has it."""
    namespace = request.query.get("namespace") or caller.namespace or DEFAULT_NAMESPACE
    if not _LABEL.fullmatch(namespace):
        raise invalid("namespace is no name of a namespace", "namespace", "invalid_value")
    return namespace


def _name(request: web.Request) -> str:
    name = request.match_info["name"]
    if not _LABEL.fullmatch(name):
        raise HttpError(404, f"there is no deployment {name[:64]}", code="not_found")
    return name


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(PAGE))
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_PAGE):
        raise invalid(f"limit is 1 to {MOST_PAGE}", "limit", "invalid_value")
    return int(text)


def _refused(error: HttpError) -> web.Response:
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else {}
    return web.Response(body=error.encode(), status=error.status, content_type="application/json", headers=headers)
