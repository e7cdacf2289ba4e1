"""The operator's only client of the Kubernetes API: plain dicts, explicit timeouts, retries, our own errors."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio import client as kubernetes_client
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from slipway_operator.api.objects import Object
from slipway_operator.kube import auth
from slipway_operator.kube.errors import (
    ApiError,
    Exists,
    Fenced,
    Leaving,
    ListTooLarge,
    NotFound,
    Refused,
    Stale,
    Unavailable,
)
from slipway_operator.kube.resources import ACCESS_REVIEWS, PODS, Resource
from slipway_operator.model import labels
from slipway_operator.model.text import printable
from slipway_process import pages

Objects = list[Object]
Body = Object | list[Mapping[str, Any]]  # an object, or the operations of a JSON Patch
Query = list[tuple[str, str]]
Keys = list[tuple[str, str]]
OnWrite = Callable[[str, str], None]
OnCall = Callable[[str, str], None]
OnAnswer = Callable[[Resource, Object], None]

TIMEOUT_S = 10.0
CONCURRENCY = 16
ATTEMPTS = 4  # the first and three retries
RETRY_WITHIN_S = 0.4  # the first retry; each further one within twice as much
RETRY_LIMIT_S = 10.0
# The API server's response to an apply that violates the schema, for example by a list with a duplicate key.
SERVER_ERROR, NO_MANIFEST = 500, "failed to create typed patch object"

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_FIELD_MANAGER = ("fieldManager", labels.FIELD_MANAGER)


class Client:
    """Calls to one API server. Use it as an async context manager."""

    def __init__(
        self,
        configuration: kubernetes_client.Configuration,
        on_write: OnWrite | None = None,
        *,
        may_write: Callable[[], bool] = lambda: True,
        timeout_s: float = TIMEOUT_S,
        write_timeout_s: float | None = None,
        attempts: int = ATTEMPTS,
        on_call: OnCall | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        """`on_write(kind, result)` is called after every attempted write, `on_call(verb, resource)` before every call.

        `on_answer(resource, object)` receives the object that a write of ours returned; `may_write` is checked before
        each attempt. A write ends within `write_timeout_s`, here and at the API server; without it within `timeout_s`.
        """
        # Parts of the library have annotations and others none.
        self._api: Any = kubernetes_client.ApiClient(configuration)
        self._api.user_agent = labels.FIELD_MANAGER
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._may_write, self._timeout_s, self._attempts = may_write, timeout_s, attempts
        self._write_timeout_s = min(timeout_s, write_timeout_s or timeout_s)
        # By write without a response: the last moment at which it may arrive.
        self._open: dict[object, float] = {}
        self._answered = asyncio.Event()
        self._on_write = on_write or (lambda kind, result: None)
        self._on_call = on_call or (lambda verb, resource: None)
        self._on_answer = on_answer or (lambda resource, obj: None)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.close()

    async def credentials(self) -> auth.Credentials:
        """Return the current credentials, for the watches."""
        return await auth.credentials(self._api.configuration)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Return the current version of one object."""
        return await self._read("get", resource, resource.path(namespace, name))

    async def list(
        self, resource: Resource, namespace: str | None, selector: str = "", cached: bool = False, fields: str = ""
    ) -> Objects:
        """Return the objects of a namespace, or of all; `cached` as in `pages`. All of them are in memory at once."""
        found = self.pages(resource, namespace, selector, cached=cached, fields=fields)
        return [item async for page in found for item in page.get("items") or ()]

    def pages(
        self,
        resource: Resource,
        namespace: str | None,
        selector: str = "",
        *,
        cached: bool = False,
        accept: str = _JSON,
        fields: str = "",
    ) -> AsyncIterator[Object]:
        """Yield the pages of one consistent list of a namespace, or of all, each of bounded size.

        `selector` is by labels, `fields` by fields. `cached` spares etcd and may be slightly stale.
        """

        async def page(query: pages.Query) -> Object:
            return await self._read("list", resource, resource.path(namespace), list(query.items()), accept=accept)

        query = {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": fields} if fields else {}
        return pages.pages(page, query | ({"resourceVersion": "0"} if cached else {}))

    async def keys(self, resource: Resource, namespace: str | None) -> Keys:
        """Return namespace and name of every object; reads no bodies."""
        found = await self.metadata(resource, namespace)
        return [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in found]

    async def metadata(self, resource: Resource, namespace: str | None, selector: str = "") -> Objects:
        """Return the metadata of every object; spares etcd and may be slightly stale."""
        found = self.pages(resource, namespace, selector, cached=True, accept=_NAMES_ONLY)
        return [item async for page in found for item in page.get("items") or ()]

    async def create(self, resource: Resource, body: Object) -> Object:
        """Create an object; raises Exists when there is one of this name."""
        path = resource.path(body["metadata"]["namespace"])
        return await self._write("create", resource, "POST", path, [_FIELD_MANAGER], body)

    async def apply(self, resource: Resource, manifest: Object, *, force: bool = True) -> Object:
        """Create or update an object by server-side apply; we become the field manager of the manifest's fields.

        Without `force` it raises Stale on a conflict with another field manager.
        """
        path = resource.path(manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
        forced = [("force", "true")] if force else []
        return await self._write("apply", resource, "PATCH", path, [_FIELD_MANAGER, *forced], manifest, _APPLY)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        """Change some fields by merge patch."""
        path = resource.path(namespace, name)
        return await self._write("patch", resource, "PATCH", path, [_FIELD_MANAGER], body, _MERGE)

    async def edit(
        self, resource: Resource, namespace: str | None, name: str, operations: Sequence[Mapping[str, Any]]
    ) -> Object:
        """Change parts of lists by JSON Patch: its `test` of resourceVersion is refused when the object has changed."""
        path = resource.path(namespace, name)
        return await self._write("patch", resource, "PATCH", path, [_FIELD_MANAGER], list(operations), _JSON_PATCH)

    async def replace(self, resource: Resource, body: Object) -> Object:
        """Replace an object that was read; raises Stale when it has changed since."""
        path = resource.path(body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._write("update", resource, "PUT", path, [_FIELD_MANAGER], body)

    async def set_condition(
        self, resource: Resource, namespace: str, name: str, uid: str, condition: str, *, met: bool
    ) -> None:
        """Set one condition of an object; those of others stay, because the API server merges them by their type."""
        entry = {"type": condition, "status": "True" if met else "False"}
        body = {"metadata": {"uid": uid}, "status": {"conditions": [entry]}}
        path = resource.path(namespace, name, "status")
        await self._write("patch", resource, "PATCH", path, [_FIELD_MANAGER], body, _STRATEGIC)

    async def put_status(self, resource: Resource, body: Object) -> Object:
        """Replace the status of an object that was read; raises Stale when it has changed since."""
        # The API server maintains managedFields, and keeps them when they are left out.
        metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        path = resource.path(metadata.get("namespace"), metadata["name"], "status")
        whole = {**body, "metadata": metadata}
        return await self._write("update", resource, "PUT", path, [_FIELD_MANAGER], whole)

    async def delete(self, resource: Resource, namespace: str | None, name: str, uid: str) -> None:
        """Delete the object with this uid; the garbage collector deletes what it owns."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._write("delete", resource, "DELETE", resource.path(namespace, name), [], body)

    async def may(self, verb: str, resource: Resource, namespace: str, name: str) -> bool:
        """Whether we have a permission, by a SelfSubjectAccessReview: no object is read to find out."""
        group, _ = resource.group_version
        attributes = {"verb": verb, "group": group, "resource": resource.plural, "namespace": namespace, "name": name}
        kind = ACCESS_REVIEWS
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": {"resourceAttributes": attributes}}
        self._on_call("create", kind.plural)
        answer = await self.request("POST", kind.path(), [], body)
        return bool((answer.get("status") or {}).get("allowed"))

    async def serves(self, group_version: str) -> bool:
        """Whether the API server has this version of an optional group; every user may read that."""
        try:
            await self.request("GET", f"/apis/{group_version}")
        except NotFound:
            return False
        return True

    async def serves_kind(self, resource: Resource) -> bool:
        """Whether the API server has this kind; every user may read that."""
        try:
            found = await self.request("GET", f"/apis/{resource.api_version}")
        except NotFound:
            return False
        return any(item.get("name") == resource.plural for item in found.get("resources") or ())

    async def evict(self, namespace: str, pod: str, uid: str = "", *, with_dependents: bool = False) -> None:
        """Request the eviction of a pod; raises Unavailable when a disruption budget forbids it now.

        With a `uid` it raises Stale for another pod of this name.
        `with_dependents`: foreground deletion: the pod goes only after all that it owns, such as a group's workers.
        """
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        options: Object = {"preconditions": {"uid": uid}} if uid else {}
        if with_dependents:
            options["propagationPolicy"] = "Foreground"
        if options:
            body["deleteOptions"] = options
        await self._write("evict", PODS, "POST", PODS.path(namespace, pod, "eviction"), [], body)

    async def settle(self) -> None:
        """Wait until each write has its response, or cannot arrive any more. Send none meanwhile."""
        while (left_s := max(self._open.values(), default=0.0) - time.monotonic()) > 0:
            self._answered.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._answered.wait()

    async def _read(
        self, verb: str, resource: Resource, path: str, query: Query | None = None, accept: str = _JSON
    ) -> Object:
        self._on_call(verb, resource.plural)
        return await self.request("GET", path, query, accept=accept)

    async def _write(
        self,
        verb: str,
        resource: Resource,
        method: str,
        path: str,
        query: Query,
        body: Body,
        content: str = _JSON,
    ) -> Object:
        result = "ok"
        self._on_call(verb, resource.plural)
        try:
            answer = await self.request(method, path, query, body, content)
            if answer.get("kind") == resource.kind:  # an eviction and most deletions return a Status
                self._on_answer(resource, answer)
            return answer
        except ApiError as error:
            result = type(error).__name__.lower()
            raise
        finally:
            self._on_write(resource.kind, result)

    async def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Body | None = None,
        content: str = _JSON,
        accept: str = _JSON,
    ) -> Object:
        """Send one request to a path, with retries. It calls neither `on_call` nor `on_write`: the other methods do.

        Raises:
            ApiError: the API server refused or did not respond.
        """
        headers = {"Content-Type": content, "Accept": accept}
        # A new object for each call, because it holds the state of that call.
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=_pause_s,
            retry=retry_if_exception_type(Unavailable),
            reraise=True,
        )
        answer: Object = await retrying(self._attempt, method, path, query or [], body, headers)
        return answer

    async def _attempt(
        self, method: str, path: str, query: Query, body: Body | None, headers: dict[str, str]
    ) -> Object:
        try:
            async with self._slots:
                status, retry_after, answer = await self._send(method, path, query, body, dict(headers))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {type(error).__name__}: {error}") from error
        if failure := _failure(status, answer, retry_after):
            raise failure
        return answer

    async def _send(
        self, method: str, path: str, query: Query, body: Body | None, headers: dict[str, str]
    ) -> tuple[int, str | None, Object]:
        # Checked right before sending: the process may have been suspended since the write was decided.
        if method == "GET":
            return await self._exchange(method, path, query, body, headers, self._timeout_s)
        if not self._may_write():
            raise Fenced(f"{method} {path}: not sent, for another operator may hold the lease")
        # The API server gives up too: kubernetes.io, "Kubernetes API Concepts", the parameter `timeout`.
        bounded = [*query, ("timeout", f"{self._write_timeout_s:g}s")]
        write, now_s = object(), time.monotonic()
        self._open = {other: until for other, until in self._open.items() if until > now_s}
        self._open[write] = now_s + self._write_timeout_s
        answer = await self._exchange(method, path, bounded, body, headers, self._write_timeout_s)
        self._open.pop(write, None)
        self._answered.set()
        return answer

    async def _exchange(
        self, method: str, path: str, query: Query, body: Body | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, str | None, Object]:
        request = await self._api.param_serialize(
            method=method,
            resource_path=path,
            query_params=query,
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        # One timeout for the whole exchange: the library's own does not reliably cover the body or a hanging connect.
        async with asyncio.timeout(timeout_s):
            response = await self._api.call_api(*request, _request_timeout=aiohttp.ClientTimeout(total=timeout_s))
            try:
                text = await pages.read_page(response.response)
            except pages.PageTooLarge as error:
                raise ListTooLarge(f"{method} {path}: {error}") from error
        return response.status, response.headers.get("Retry-After"), _parse(text)


def _parse(text: bytes) -> Object:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {"message": text.decode(errors="replace")[:200]}
    return value if isinstance(value, dict) else {"message": str(value)[:200]}


def _failure(status: int, answer: Object, retry_after: str | None) -> ApiError | None:
    message = printable(str(answer.get("message") or f"status {status}"))
    if status < 400:
        return None
    if status == 404:
        return NotFound(message)
    if status == 409:
        return Exists(message) if answer.get("reason") == "AlreadyExists" else Stale(message)
    if status == SERVER_ERROR and NO_MANIFEST in message:
        return Refused(status, message)
    if status == 429 or status >= 500:
        after_s = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
        return Unavailable(f"{status}: {message}", after_s)
    return Leaving(status, message) if _namespace_leaves(answer) else Refused(status, message)


def _namespace_leaves(answer: Object) -> bool:
    causes = (answer.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


def _pause_s(state: RetryCallState) -> float:
    """Return the seconds before a retry: random exponential backoff, at least Retry-After, at most RETRY_LIMIT_S."""
    backoff_s = wait_random_exponential(multiplier=RETRY_WITHIN_S, max=RETRY_LIMIT_S)(state)
    error = state.outcome.exception() if state.outcome else None
    wanted_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
    return min(RETRY_LIMIT_S, max(backoff_s, wanted_s))
