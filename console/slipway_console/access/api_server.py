"""The API server: calls with the viewer's token, bounded in time, bytes and number."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from slipway_console.access.places import Places
from slipway_console.access.reading import read_whole
from slipway_console.access.refusal import ApiRefusal, Call, refusal_of, unavailable
from slipway_process import json_bounds

Json = dict[str, Any]

GROUP = "slipway.dev"
FIELD_MANAGER = "slipway-console"
MOST_BYTES = 4 << 20  # of a response: etcd's largest object is 1.5 MiB
MOST_NUMBERS = 1 << 16  # numbers, booleans and nulls of a response
PAGE_ROWS = 50
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_SERVICE_ACCOUNT = "system:serviceaccount:"
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

    @property
    def share(self) -> str:
        """Whose places it takes: whoever may create one ServiceAccount in a namespace may create hundreds."""
        if not self.user.startswith(_SERVICE_ACCOUNT):
            return self.user
        return _SERVICE_ACCOUNT + self.user.removeprefix(_SERVICE_ACCOUNT).partition(":")[0]


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
        self._places = Places(most_calls, "The console makes as many calls to the API server as it may.")

    async def get(self, viewer: Viewer, call: Call) -> Json:
        """One object."""
        return await self._send(viewer, call, "GET", path_of(call))

    async def metadata(self, viewer: Viewer, call: Call) -> Json:
        """The metadata of one object alone."""
        return await self._send(viewer, call, "GET", path_of(call), accept=_METADATA)

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
        """The name of the user whose token this is, never empty. `client`: the address that the call counts for."""
        call = Call("create", "selfsubjectreviews.authentication.k8s.io")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        where = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        found = await self._send(Viewer(f"address {client}", token), call, "POST", where, body)
        user = str(((found.get("status") or {}).get("userInfo") or {}).get("username") or "")
        if not user:
            raise unavailable("The API server does not say whose token this is.")
        return user

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
        async with self._places.of(viewer.share):
            try:
                # A redirect would carry the token to another address.
                async with self._session.request(
                    method, url, headers=headers, data=data, allow_redirects=False
                ) as response:
                    status, text = response.status, await read_whole(response, MOST_BYTES)
            except TimeoutError:
                raise unavailable("The API server does not answer in time.") from None
            except (aiohttp.ClientError, OSError) as error:
                raise unavailable("The API server cannot be reached.", str(error)) from None
        if text is None:
            raise _TooLarge(502, f"The answer has more than {MOST_BYTES >> 20} MiB, which a page cannot show.")
        found = _decoded(text)
        if not 200 <= status < 300:
            raise refusal_of(status, str(found.get("message", "")), call)
        return found


class _TooLarge(ApiRefusal):
    """A response has more than the console reads."""


def _decoded(text: bytes) -> Json:
    """An object of JSON; empty for anything else, such as a proxy's page."""
    try:
        json_bounds.check(text, max_numbers=MOST_NUMBERS)
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
