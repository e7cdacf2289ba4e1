"""One list+watch of a resource, and the calls that it makes. The only importer of kubernetes.aio."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from kubernetes.aio import client
from kubernetes.aio import config as _config
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from slipway_process import pages

log = logging.getLogger(__name__)
# The client's configuration half has no annotations.
config: Any = _config

Resource = tuple[str, str, dict[str, str]]  # plural, root of its path, query

_WATCH_S = 300
# The API server sends a bookmark about every 60 s: a stream silent for longer than this is dead, whatever TCP thinks.
_INACTIVITY_S = 75.0
_STREAM = aiohttp.ClientTimeout(total=_WATCH_S + 30, sock_connect=10, sock_read=_INACTIVITY_S)
_REQUEST = aiohttp.ClientTimeout(total=30, sock_connect=10)
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 10.0
_BACKOFF = wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_MAX_PAUSE_S)
# Limit of one event. etcd takes objects of up to 1.5 MiB, and in JSON a byte of them is up to six: "<" is \u003c.
_MAX_EVENT_BYTES = 32 << 20

_DONE = (200, 201)
_EXPIRED = 410
# Statuses after which the last resourceVersion is still valid.
_BUSY = frozenset({401, 429, 503, 504})
# Network, TLS, credentials, responses that are not the API's: the last good table stays meanwhile.
TROUBLES = (
    *(aiohttp.ClientError, HttpProcessingError, config.ConfigException, pages.PageTooLarge),
    *(OSError, TimeoutError, ValueError, LookupError, TypeError),
)

KubernetesObject = dict[str, Any]


class KubernetesApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class KubernetesClient:
    """Calls the API server; objects are dicts. Credentials are read again after a 401 and, in a pod, every minute."""

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._client: Any = None
        self._opening = asyncio.Lock()

    async def get(self, path: str, query: dict[str, str]) -> KubernetesObject:
        response: aiohttp.ClientResponse = (await self._call("GET", path, query, _REQUEST)).response
        return dict(json.loads(await pages.read_page(response)))

    async def watch(self, path: str, query: dict[str, str]) -> aiohttp.ClientResponse:
        """The open stream: one JSON event a line. The caller closes it."""
        opened: aiohttp.ClientResponse = (await self._call("GET", path, query, _STREAM)).response
        return opened

    async def create(self, path: str, body: KubernetesObject, timeout_s: float) -> KubernetesObject:
        """Creates an object and returns it as the API server answers with it."""
        limits = aiohttp.ClientTimeout(total=timeout_s)
        response: aiohttp.ClientResponse = (await self._call("POST", path, {}, limits, body)).response
        return dict(json.loads(await pages.read_page(response)))

    async def close(self) -> None:
        opened, self._client = self._client, None
        if opened:
            await opened.close()

    async def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        limits: aiohttp.ClientTimeout,
        body: KubernetesObject | None = None,
    ) -> Any:
        api = await self._open()
        kinds = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body else {})
        request = await api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=kinds,
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await api.call_api(*request, _request_timeout=limits)
        if response.status in _DONE:
            return response
        message = (await response.read())[:500].decode("utf-8", "replace")
        if response.status == 401:
            await self.close()
        raise KubernetesApiError(response.status, message)

    async def _open(self) -> Any:
        async with self._opening:  # several requests may be the first one
            if self._client is None:
                settings = client.Configuration()
                await _load(settings, self._kubeconfig)
                self._client = client.ApiClient(settings)
            return self._client


def _drop(stream: aiohttp.ClientResponse) -> None:
    """Aborts at once: a TLS shutdown of an endless stream would take time."""
    if stream.connection and stream.connection.transport:
        stream.connection.transport.abort()
    stream.close()


async def _load(settings: Any, kubeconfig: str) -> None:
    if not kubeconfig:
        try:
            config.load_incluster_config(client_configuration=settings)
            return
        except config.ConfigException:
            log.debug("not in a pod: reading the default kubeconfig")
    await config.load_kube_config(config_file=kubeconfig or None, client_configuration=settings, persist_config=False)


@dataclass(frozen=True, slots=True)
class ResourceCallbacks:
    """`seen` and `gone` receive changes; `contacted` is called for every response of the API server.

    `absent`: the API server does not know the resource, and no object of it was seen before. `refused` is called for
    each object that `seen` cannot read: such an object is left out, and its last good version stays.
    """

    seen: Callable[[KubernetesObject], None]
    gone: Callable[[str], None]
    contacted: Callable[[str], None]
    absent: Callable[[], None] = lambda: None
    refused: Callable[[str], None] = lambda resource: None


class Reflector:
    """One list+watch."""

    def __init__(
        self,
        api: KubernetesClient,
        resource: Resource,
        namespace: str,
        owner: ResourceCallbacks,
        on_missing: Callable[[], None] | None = None,
    ) -> None:
        """`on_missing`: for a resource without which there is a table, too; called when it turns out to be missing."""
        self._on_missing = on_missing
        self.is_missing = False  # of such a resource: the API server does not know it, or it may not be read
        self.name, root, self._query = resource
        self._path = f"{root}/namespaces/{namespace}/{self.name}" if namespace else f"{root}/{self.name}"
        self._api = api
        self._owner = owner
        self._keys: set[str] = set()
        self._refused: dict[str, str] = {}  # why an object cannot be read, by its key
        self._version = ""
        self.synced = False
        self.trouble = "not listed yet"
        self.contacted_s = 0.0  # Unix time

    async def run(self) -> None:
        while True:
            retrying = AsyncRetrying(
                wait=_pause_s,
                retry=retry_if_exception_type((KubernetesApiError, *TROUBLES)),
                before_sleep=lambda state: self._failed(_error_of(state)),
            )
            stream: aiohttp.ClientResponse = await retrying(self._open)
            try:
                await self._follow(stream)
            except (KubernetesApiError, *TROUBLES) as error:
                self._failed(error)
            finally:
                _drop(stream)
            # A server that ends streams at once must not make us spin.
            await asyncio.sleep(_FIRST_PAUSE_S * random.random())

    async def close(self) -> None:
        await self._api.close()

    async def _open(self) -> aiohttp.ClientResponse:
        """The stream of what changed since the last list, or since the last event."""
        if not self._version:
            await self._list()
        query = self._query | {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(_WATCH_S * random.uniform(0.8, 1.0))),
        }
        stream = await self._api.watch(self._path, query)
        self._recovered()
        return stream

    async def _list(self) -> None:
        """Lists all objects, in pages: thousands of pods are many megabytes, of which little is kept."""
        now: set[str] = set()
        version = ""
        async for page in pages.pages(lambda query: self._api.get(self._path, query), self._query):
            for item in page.get("items") or ():
                now.add(key_of(item))
                self._seen(item)
            version = page["metadata"]["resourceVersion"]
        # Objects that were deleted while no watch was open.
        for key in self._keys - now:
            self._gone(key)
        self._keys, self._version = now, version
        self._recovered()
        self._contacted()

    async def _follow(self, stream: aiohttp.ClientResponse) -> None:
        while line := await stream.content.readline(max_line_length=_MAX_EVENT_BYTES):
            event = json.loads(line)
            self._take(event["type"], event["object"])
            self._contacted()

    def _contacted(self) -> None:
        self.contacted_s = time.time()
        self._owner.contacted(self.name)

    def _recovered(self) -> None:
        if self.trouble and self.synced:
            log.info("watching %s again", self.name)
        self.synced, self.trouble, self.is_missing = True, "", False

    def _take(self, kind: str, item: KubernetesObject) -> None:
        if kind == "ERROR":
            raise KubernetesApiError(int(item.get("code") or 500), str(item.get("message")))
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        key = key_of(item)
        if kind == "DELETED":
            self._keys.discard(key)
            self._gone(key)
        else:
            self._keys.add(key)
            self._seen(item)

    def _seen(self, item: KubernetesObject) -> None:
        """One object that cannot be read must not keep the others from being read: the next list would have it again.

        Anyone who may write such objects chooses what is in them, so any exception of a parser counts.
        """
        key = key_of(item)
        try:
            self._owner.seen(item)
        except Exception as error:
            self._owner.refused(self.name)
            text = f"{type(error).__name__}: {error}"
            if self._refused.get(key) != text:  # logged once, not with each version
                log.error("%s %s is not used, its last good version stays: %s", self.name, key, text)
            self._refused[key] = text
        else:
            self._refused.pop(key, None)

    def _gone(self, key: str) -> None:
        self._refused.pop(key, None)
        self._owner.gone(key)

    def _failed(self, error: BaseException) -> None:
        """Keeps the resourceVersion if the server is busy; after any other error status the next try lists again."""
        if isinstance(error, HttpProcessingError):
            self._version = ""  # the event that cannot be read would be the first one again
        if not isinstance(error, KubernetesApiError):
            self._warn(f"{type(error).__name__}: {error}")
            return
        had_version = bool(self._version)
        if self._on_missing and error.status in (403, 404) and not self.synced:
            self._missing(self._on_missing, error)
            return
        if error.status not in _BUSY:
            self._version = ""
        if error.status == _EXPIRED and had_version:
            log.info("the version of %s is too old: listing again", self.name)
        elif error.status == 404:
            if not self._keys:
                self._owner.absent()
            self._warn(f"the API server does not know {self.name}: is the CRD installed?")
        elif error.status == 403:
            self._warn(f"not allowed to list and watch {self.name}: check the RBAC rules of the gateway")
        else:
            self._warn(str(error))

    def _missing(self, on_missing: Callable[[], None], error: KubernetesApiError) -> None:
        if self.is_missing:
            return
        why = "the API server does not know them" if error.status == 404 else "this gateway may not list and watch them"
        log.info("there are no %s for now: %s", self.name, why)
        self.is_missing, self.trouble = True, why
        on_missing()

    def _warn(self, trouble: str) -> None:
        # Logged once per problem, not once per attempt.
        if trouble != self.trouble:
            log.warning("%s: %s; the last good table stays in use", self.name, trouble)
        self.trouble = trouble


def _pause_s(state: RetryCallState) -> float:
    """Seconds until the next try: 0 after the first 410, which only needs a new list, else a growing random pause."""
    error = _error_of(state)
    if isinstance(error, KubernetesApiError) and error.status == _EXPIRED and state.attempt_number == 1:
        return 0.0
    return _BACKOFF(state)


def _error_of(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "only errors are retried"
    return error


def key_of(item: KubernetesObject) -> str:
    """`namespace/name`; `/name` for an object without a namespace."""
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
