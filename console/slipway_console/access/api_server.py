"""The API server: calls with the viewer's token, bounded in time, bytes and number."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from slipway_console.access.refusal import ApiRefusal, Call, refusal_of, unavailable
from slipway_process import json_bounds
from slipway_process.shares import Shares

Json = dict[str, Any]

GROUP = "slipway.dev"
FIELD_MANAGER = "slipway-console"
MOST_BYTES = 4 << 20  # of a response: etcd's largest object is 1.5 MiB
PAGE_ROWS = 50
WAIT_S = 5.0  # for a place among the calls
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_JSON, _MERGE = "application/json", "application/merge-patch+json"
_GROUPS = {
    "pods": "/api/v1",
    "events": "/api/v1",
    "controllerrevisions.apps": "/apis/apps/v1",
    "leases.coordination.k8s.io": "/apis/coordination.k8s.io/v1",
}


@dataclass(frozen=True, slots=True)
class Viewer:
    """On whose behalf a call is made."""

    user: str
    token: str


def path_of(call: Call) -> str:
    """The path of a resource, or of one object, at the API server."""
    plural, _, group = call.resource.partition(".")
    root = _GROUPS.get(call.resource, f"/apis/{group}/v1alpha1")
    where = f"/namespaces/{quote(call.namespace, safe='')}" if call.namespace else ""
    return f"{root}{where}/{plural}" + (f"/{quote(call.name, safe='')}" if call.name else "")


class ApiServer:
    """Each method raises ApiRefusal with a sentence for the viewer: SignedOut where the token is not accepted."""

    def __init__(self, session: aiohttp.ClientSession, url: str, most_calls: int) -> None:
        self._session, self._url = session, url
        self._shares, self._freed = Shares(most_calls), asyncio.Condition()

    async def get(self, viewer: Viewer, call: Call) -> Json:
        """One object."""
        return await self._send(viewer, call, "GET", path_of(call))

    async def list(self, viewer: Viewer, call: Call, rows: int = PAGE_ROWS, **query: str) -> Json:
        """The first `rows` objects of a list that a selector makes short."""
        return await self._send(viewer, call, "GET", f"{path_of(call)}?{urlencode(query | {'limit': str(rows)})}")

    async def table(self, viewer: Viewer, call: Call, **query: str) -> Json:
        """One page of a list, as the Table that kubectl prints. A page that is too large is read with fewer rows."""
        rows = PAGE_ROWS
        while True:
            narrow = {name: value for name, value in query.items() if value} | {"limit": str(rows)}
            try:
                return await self._send(viewer, call, "GET", f"{path_of(call)}?{urlencode(narrow)}", accept=_TABLE)
            except _TooLarge:
                if rows == 1:
                    raise
                rows = max(1, rows // 8)

    async def patch(self, viewer: Viewer, call: Call, body: Mapping[str, Any]) -> Json:
        """Change an object by merge patch. Raises Conflict where `body` has another resourceVersion than the object."""
        where = f"{path_of(call)}?fieldManager={FIELD_MANAGER}"
        return await self._send(viewer, call, "PATCH", where, body)

    async def user_of(self, token: str, client: str) -> str:
        """The name of the user whose token this is. `client`: the address that the call counts for."""
        call = Call("create", "selfsubjectreviews.authentication.k8s.io")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        where = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        found = await self._send(Viewer(f"address {client}", token), call, "POST", where, body)
        return str(((found.get("status") or {}).get("userInfo") or {}).get("username") or "")

    async def may(self, viewer: Viewer, call: Call) -> bool:
        """Whether the viewer may do this."""
        plural, _, group = call.resource.partition(".")
        attributes = {
            "verb": call.verb,
            "group": group,
            "resource": plural,
            "namespace": call.namespace,
            "name": call.name,
        }
        review = {"spec": {"resourceAttributes": attributes}}
        where = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        found = await self._send(viewer, Call("create", "selfsubjectaccessreviews"), "POST", where, review)
        return bool((found.get("status") or {}).get("allowed"))

    async def _send(
        self, viewer: Viewer, call: Call, method: str, where: str, body: Any = None, accept: str = _JSON
    ) -> Json:
        headers = {"Authorization": f"Bearer {viewer.token}", "Accept": accept}
        if body is not None:
            headers["Content-Type"] = _MERGE if method == "PATCH" else _JSON
        data = None if body is None else msgspec.json.encode(body)
        url = URL(self._url + where, encoded=True)
        async with self._place(viewer.user):
            try:
                # A redirect would carry the token to another address.
                async with self._session.request(
                    method, url, headers=headers, data=data, allow_redirects=False
                ) as response:
                    status, text = response.status, await _read(response)
            except TimeoutError:
                raise unavailable("The API server does not answer in time.") from None
            except (aiohttp.ClientError, OSError) as error:
                raise unavailable("The API server cannot be reached.", str(error)) from None
        found = _decoded(text)
        if not 200 <= status < 300:
            raise refusal_of(status, str(found.get("message", "")), call)
        return found

    @contextlib.asynccontextmanager
    async def _place(self, user: str) -> AsyncIterator[None]:
        """A place among the calls. Raises ApiRefusal when the user has none in time."""
        async with self._freed:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._freed.wait_for(lambda: self._shares.take(user))
            except TimeoutError:
                raise unavailable("The console makes as many calls to the API server as it may.") from None
        try:
            yield
        finally:
            async with self._freed:
                self._shares.give_back(user)
                self._freed.notify_all()


class _TooLarge(ApiRefusal):
    """A response has more than the console reads."""


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            response.close()
            raise _TooLarge(502, f"The answer has more than {MOST_BYTES >> 20} MiB, which a page cannot show.")
    return bytes(body)


def _decoded(text: bytes) -> Json:
    """An object of JSON; empty for anything else, such as a proxy's page."""
    try:
        json_bounds.check(text)
        found = msgspec.json.decode(text) if text else {}
    except json_bounds.TooManyValues as error:
        raise _TooLarge(502, f"The answer {error}, which a page cannot show.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.asynccontextmanager
async def open_session(ca_file: str, timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to the API server, verified; without cookies, and without proxies of the environment.

    Raises:
        OSError: the file of certificates cannot be read, or has none.
    """
    context = ssl.create_default_context(cafile=ca_file or None)
    connector = aiohttp.TCPConnector(ssl=context, limit=0, ttl_dns_cache=30)
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(5.0, timeout_s))
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as session:
        yield session
