"""Routes from a cluster: lists and watches ModelDeployments and pods. The only importer of kubernetes.aio."""

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from kubernetes.aio import client
from kubernetes.aio import config as _config
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ..telemetry.metrics import GatewayMetrics
from .table import (
    LABEL_REVISION,
    Problem,
    RevisionEndpoints,
    Route,
    RouteTable,
    build,
    merge_route,
    parse_owners,
    parse_pod,
    parse_route,
)

log = logging.getLogger(__name__)
# The client's configuration half has no annotations.
config: Any = _config

Resource = tuple[str, str, dict[str, str]]

DEPLOYMENTS: Resource = ("modeldeployments", "/apis/slipway.dev/v1alpha1", {})
# Pods themselves, not EndpointSlices: these select by labels, which any pod of the namespace can have.
PODS: Resource = ("pods", "/api/v1", {"labelSelector": LABEL_REVISION})


def names_resource(config_map: str) -> Resource:
    """The ConfigMap with the owners of model names."""
    return ("configmaps", "/api/v1", {"fieldSelector": f"metadata.name={config_map}"})


_WATCH_S = 300
# The API server sends a bookmark about every 60 s: a stream silent for longer than this is dead, whatever TCP thinks.
_INACTIVITY_S = 75.0
_STREAM = aiohttp.ClientTimeout(total=_WATCH_S + 30, sock_connect=10, sock_read=_INACTIVITY_S)
_REQUEST = aiohttp.ClientTimeout(total=30, sock_connect=10)
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 10.0
_BACKOFF = wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_MAX_PAUSE_S)
_COALESCE_S = 0.02
# So often an unchanged table is published again with the time of the last contact.
_RENEW_S = 60.0
_PAGE = "500"  # objects in one response to a list
_PAUSE_SHARE = 9  # of the time that the last table took: a table of thousands of routes is made less often

_EXPIRED = 410
# The version we have is still good after these.
_BUSY = frozenset({401, 429, 503, 504})
# Network, TLS, credentials, responses that are not the API's: the last good table stays meanwhile.
_TROUBLES = (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError, config.ConfigException)

KubernetesObject = dict[str, Any]


class KubernetesApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class KubernetesClient:
    """Raw calls, dicts out. Credentials are read again after a 401 and, in a pod, every minute."""

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._client: Any = None

    async def get(self, path: str, query: dict[str, str]) -> KubernetesObject:
        response = await self._call(path, query, _REQUEST)
        return dict(json.loads(await response.read()))

    async def watch(self, path: str, query: dict[str, str]) -> aiohttp.ClientResponse:
        """The open stream: one JSON event a line. The caller closes it."""
        opened: aiohttp.ClientResponse = (await self._call(path, query, _STREAM)).response
        return opened

    async def close(self) -> None:
        opened, self._client = self._client, None
        if opened:
            await opened.close()

    async def _call(self, path: str, query: dict[str, str], limits: aiohttp.ClientTimeout) -> Any:
        api = await self._open()
        request = await api.param_serialize(
            "GET",
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        response = await api.call_api(*request, _request_timeout=limits)
        if response.status == 200:
            return response
        message = (await response.read())[:500].decode("utf-8", "replace")
        if response.status == 401:
            await self.close()
        raise KubernetesApiError(response.status, message)

    async def _open(self) -> Any:
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
    """`seen` and `gone` receive changes; `contacted` is called for every response of the API server."""

    seen: Callable[[KubernetesObject], None]
    gone: Callable[[str], None]
    contacted: Callable[[str], None]


class Reflector:
    """One list+watch."""

    def __init__(
        self,
        api: KubernetesClient,
        resource: Resource,
        namespace: str,
        owner: ResourceCallbacks,
    ) -> None:
        self.name, root, self._query = resource
        self._path = f"{root}/namespaces/{namespace}/{self.name}" if namespace else f"{root}/{self.name}"
        self._api = api
        self._owner = owner
        self._keys: set[str] = set()
        self._version = ""
        self.synced = False
        self.trouble = "not listed yet"
        self.contacted_s = 0.0  # Unix time

    async def run(self) -> None:
        while True:
            retrying = AsyncRetrying(
                wait=_pause_s,
                retry=retry_if_exception_type((KubernetesApiError, *_TROUBLES)),
                before_sleep=lambda state: self._failed(_error_of(state)),
            )
            stream: aiohttp.ClientResponse = await retrying(self._open)
            try:
                await self._follow(stream)
            except (KubernetesApiError, *_TROUBLES) as error:
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
        """In pages: thousands of pods are many megabytes, of which little is kept."""
        now: set[str] = set()
        page: dict[str, str] = {"limit": _PAGE}
        while True:
            response = await self._api.get(self._path, self._query | page)
            for item in response.get("items") or ():
                now.add(key_of(item))
                self._owner.seen(item)
            version, more = response["metadata"]["resourceVersion"], response["metadata"].get("continue")
            if not more:
                break
            page = {"limit": _PAGE, "continue": more}
        # Objects that were deleted while no watch was open.
        for key in self._keys - now:
            self._owner.gone(key)
        self._keys, self._version = now, version
        self._recovered()
        self._contacted()

    async def _follow(self, stream: aiohttp.ClientResponse) -> None:
        async for line in stream.content:
            event = json.loads(line)
            self._take(event["type"], event["object"])
            self._contacted()

    def _contacted(self) -> None:
        self.contacted_s = time.time()
        self._owner.contacted(self.name)

    def _recovered(self) -> None:
        if self.trouble and self.synced:
            log.info("watching %s again", self.name)
        self.synced, self.trouble = True, ""

    def _take(self, kind: str, item: KubernetesObject) -> None:
        if kind == "ERROR":
            raise KubernetesApiError(int(item.get("code") or 500), str(item.get("message")))
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        key = key_of(item)
        if kind == "DELETED":
            self._keys.discard(key)
            self._owner.gone(key)
        else:
            self._keys.add(key)
            self._owner.seen(item)

    def _failed(self, error: BaseException) -> None:
        """Keeps the version for a busy server; after any other refusal the next try lists again."""
        if not isinstance(error, KubernetesApiError):
            self._warn(f"{type(error).__name__}: {error}")
            return
        had_version = bool(self._version)
        if error.status not in _BUSY:
            self._version = ""
        if error.status == _EXPIRED and had_version:
            log.info("the version of %s is too old: listing again", self.name)
        elif error.status == 404:
            self._warn(f"the API server does not know {self.name}: is the CRD installed?")
        elif error.status == 403:
            self._warn(f"not allowed to list and watch {self.name}: check the RBAC rules of the gateway")
        else:
            self._warn(str(error))

    def _warn(self, trouble: str) -> None:
        # Logged once per problem, not once per attempt.
        if trouble != self.trouble:
            log.warning("%s: %s; the last good table stays in use", self.name, trouble)
        self.trouble = trouble


def _pause_s(state: RetryCallState) -> float:
    """A version that is too old needs a new list, at once; only one that never lists well waits longer and longer."""
    error = _error_of(state)
    if isinstance(error, KubernetesApiError) and error.status == _EXPIRED and state.attempt_number == 1:
        return 0.0
    return _BACKOFF(state)


def _error_of(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "only errors are retried"
    return error


def key_of(item: KubernetesObject) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


class ClusterSource:
    """Keeps the table equal to the cluster; the first one is published when everything was listed once.

    An unchanged table is published again each minute while the API server is heard of, for its `as_of_s`.

    `names`: namespace and name of the ConfigMap of model names. There is no table before the operator has written it:
    the owner of a name must not be guessed. After the first read the last good one stays in use.
    """

    def __init__(
        self,
        kubeconfig: str,
        namespaces: Sequence[str],
        publish: Callable[[RouteTable], None],
        metrics: GatewayMetrics,
        names: tuple[str, str] | None = None,
    ) -> None:
        self._publish = publish
        self._names = names
        self._owners: dict[str, str] | None = None
        self._routes: dict[str, Route] = {}
        self._endpoints: dict[str, RevisionEndpoints] = {}
        self._dirty = asyncio.Event()
        self._metrics = metrics
        self._table: RouteTable | None = None  # the last one published
        deployments = ResourceCallbacks(self._deployment_seen, self._deployment_gone, self._contacted)
        pods = ResourceCallbacks(self._pod_seen, self._pod_gone, self._contacted)
        self._mirrors = [
            # A client each: the one that reads its credentials again must not close the other's connections.
            Reflector(KubernetesClient(kubeconfig), resource, namespace, owner)
            for namespace in (namespaces or ("",))
            for resource, owner in ((DEPLOYMENTS, deployments), (PODS, pods))
        ]
        if names:
            owner = ResourceCallbacks(self._names_seen, self._names_gone, self._contacted)
            self._mirrors.append(Reflector(KubernetesClient(kubeconfig), names_resource(names[1]), names[0], owner))

    @property
    def waiting_for(self) -> str:
        waits = [f"{mirror.name}: {mirror.trouble}" for mirror in self._mirrors if not mirror.synced]
        if not waits and self._names and self._owners is None:
            waits = [f"the operator has not written the ConfigMap {'/'.join(self._names)} of model names yet"]
        return "; ".join(waits)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for mirror in self._mirrors:
                    group.create_task(mirror.run())
                group.create_task(self._publish_changes())
        finally:
            for mirror in self._mirrors:
                await mirror.close()

    async def _publish_changes(self) -> None:
        took_s = 0.0  # of the processor
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RENEW_S):
                    await self._dirty.wait()
            if not self._dirty.is_set():
                self._renew()
                continue
            # A rollout changes many slices at once: one table for all of them.
            await asyncio.sleep(max(_COALESCE_S, _PAUSE_SHARE * took_s))
            self._dirty.clear()
            if not self.waiting_for:
                began_s = time.thread_time()
                self._table = build(
                    self._routes.values(), self._endpoints.values(), self._owners, as_of_s=self._as_of_s()
                )
                self._publish(self._table)
                took_s = time.thread_time() - began_s

    def _renew(self) -> None:
        """Publishes the same table with a later time, if all of it was confirmed since."""
        if self._table is not None and (as_of_s := self._as_of_s()) > self._table.as_of_s:
            self._table = replace(self._table, as_of_s=as_of_s)
            self._publish(self._table)

    def _as_of_s(self) -> float:
        """A table is as old as the part of it that was confirmed the longest ago."""
        return min(mirror.contacted_s for mirror in self._mirrors)

    def _contacted(self, resource: str) -> None:
        self._metrics.watch_event(resource)
        if self._table is None:
            # An empty cluster is a table too.
            self._dirty.set()

    def _deployment_seen(self, item: KubernetesObject) -> None:
        key = key_of(item)
        parsed = parse_route(item)
        last = self._routes.get(key)
        if isinstance(parsed, Problem):
            log.error("not used, the last good route stays: %s", parsed.text)
            return
        self._routes[key] = merge_route(last, parsed)
        self._dirty.set()

    def _deployment_gone(self, key: str) -> None:
        self._routes.pop(key, None)
        self._dirty.set()

    def _pod_seen(self, item: KubernetesObject) -> None:
        """A pod changes many times before and after it gets ready; only a change of its endpoint needs a new table."""
        key, parsed = key_of(item), parse_pod(item)
        if parsed == self._endpoints.get(key):
            return
        if parsed is None:
            del self._endpoints[key]
        else:
            self._endpoints[key] = parsed
        self._dirty.set()

    def _pod_gone(self, key: str) -> None:
        if self._endpoints.pop(key, None):
            self._dirty.set()

    def _names_seen(self, item: KubernetesObject) -> None:
        parsed = parse_owners(item)
        if isinstance(parsed, Problem):
            log.error("not used, the last good owners stay: %s", parsed.text)
        elif parsed is None:
            self._names_gone(key_of(item))
        elif parsed != self._owners:
            self._owners = parsed
            self._dirty.set()

    def _names_gone(self, key: str) -> None:
        if self._owners is not None:
            log.error("the ConfigMap %s of model names was emptied or deleted: the last good owners stay", key)
