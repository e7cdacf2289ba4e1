"""Calls to the API server with a caller's own token: nothing that the operator may is used for one."""

import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from slipway_operator.api.objects import Object
from slipway_operator.control_api.edits import FIELD_MANAGER
from slipway_operator.kube.auth import Credentials
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS
from slipway_operator.model.text import printable
from slipway_process import json_bounds, pages
from slipway_process.serving.errors import HttpError

TIMEOUT_S = 10.0
SERVICE_ACCOUNT = "system:serviceaccount:"
_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_MERGE, _JSON = "application/merge-patch+json", "application/json"
_MANAGER = {"fieldManager": FIELD_MANAGER}


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is, as the API server says."""

    user: str
    token: str

    @property
    def share(self) -> str:
        """Whose places a request takes: who may create one ServiceAccount of a namespace may create hundreds."""
        namespace = self.namespace
        return f"{SERVICE_ACCOUNT}{namespace}" if namespace else self.user

    @property
    def namespace(self) -> str:
        """The namespace of a ServiceAccount; "" of any other user."""
        if not self.user.startswith(SERVICE_ACCOUNT):
            return ""
        return self.user.removeprefix(SERVICE_ACCOUNT).partition(":")[0]


class CallerClient:
    """The API server, for callers. Each method raises HttpError with the API server's reason; 403 where it refuses."""

    def __init__(self, session: aiohttp.ClientSession, server: str, proxy: str | None = None) -> None:
        """`session`: one of `open_session`."""
        self._session, self._server, self._proxy = session, server.rstrip("/"), proxy

    async def who(self, token: str) -> Caller:
        """Whose token this is, by a SelfSubjectReview, which every user may create. Raises HttpError: 401."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        found = await self._send(Caller("", token), "POST", _REVIEWS, {}, body)
        user = str(((found.get("status") or {}).get("userInfo") or {}).get("username") or "")
        if not user or user == "system:anonymous":
            raise unauthorized()
        return Caller(user, token)

    async def get(self, caller: Caller, namespace: str, name: str) -> Object:
        """One ModelDeployment."""
        return await self._send(caller, "GET", MODEL_DEPLOYMENTS.path(namespace, name), {})

    async def list(self, caller: Caller, namespace: str, limit: int, after: str) -> tuple[list[Object], str]:
        """(a page of the ModelDeployments of a namespace, where the next one begins)."""
        query = {"limit": str(limit)} | ({"continue": after} if after else {})
        found = await self._send(caller, "GET", MODEL_DEPLOYMENTS.path(namespace), query)
        return list(found.get("items") or ()), str((found.get("metadata") or {}).get("continue") or "")

    async def create(self, caller: Caller, manifest: Object) -> Object:
        """Create a ModelDeployment."""
        path = MODEL_DEPLOYMENTS.path(manifest["metadata"]["namespace"])
        return await self._send(caller, "POST", path, {**_MANAGER, "fieldValidation": "Strict"}, manifest)

    async def patch(self, caller: Caller, namespace: str, name: str, body: Object) -> Object:
        """Change a ModelDeployment by merge patch; 409 where it changed since it was read."""
        path = MODEL_DEPLOYMENTS.path(namespace, name)
        return await self._send(caller, "PATCH", path, {**_MANAGER, "fieldValidation": "Strict"}, body)

    async def _send(
        self, caller: Caller, method: str, path: str, query: dict[str, str], body: Object | None = None
    ) -> Object:
        headers = {"Authorization": f"Bearer {caller.token}", "Accept": _JSON}
        if body is not None:
            headers["Content-Type"] = _MERGE if method == "PATCH" else _JSON
        data = None if body is None else msgspec.json.encode(body)
        url = URL(self._server + path, encoded=True).with_query(query)
        try:
            async with (
                # A redirect would carry the token to another address.
                self._session.request(
                    method, url, headers=headers, data=data, proxy=self._proxy, allow_redirects=False
                ) as response,
            ):
                status, text = response.status, await pages.read_page(response)
        except pages.PageTooLarge:
            raise HttpError(
                413, "the list is too large: take a smaller limit", code="too_large", param="limit"
            ) from None
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise HttpError(503, "the API server does not answer", code="unavailable", retry_after_s=2) from None
        found = _decoded(text)
        if not 200 <= status < 300:
            raise _refusal(status, printable(str(found.get("message") or f"status {status}")))
        return found


def open_session(credentials: Credentials) -> aiohttp.ClientSession:
    """Connections to the API server that carry no credentials of the operator: neither token nor certificate."""
    context = ssl.create_default_context(cafile=credentials.ca_path)
    if credentials.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def unauthorized() -> HttpError:
    return HttpError(
        401,
        "the API server accepts no such token: send a Kubernetes token, as Authorization: Bearer TOKEN",
        code="invalid_token",
    )


def _refusal(status: int, message: str) -> HttpError:
    if status == 401:
        return unauthorized()
    code = {403: "forbidden", 404: "not_found", 409: "conflict", 410: "expired"}.get(status)
    if status in (400, 410, 422):
        return HttpError(400, message, code=code or "invalid_value", param="after" if status == 410 else None)
    if status == 429 or status >= 500:
        return HttpError(503, f"the API server is not available: {message}", code="unavailable", retry_after_s=2)
    return HttpError(status, message, code=code)


def _decoded(text: bytes) -> dict[str, Any]:
    """An object of JSON; empty for anything else, such as a proxy's page."""
    try:
        json_bounds.check(text)
        found = msgspec.json.decode(text) if text else {}
    except json_bounds.TooManyValues as error:
        message = f"the answer {error}: take a smaller limit"
        raise HttpError(413, message, code="too_large", param="limit") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
