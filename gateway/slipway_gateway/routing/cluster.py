"""Routes from a cluster: ModelDeployments and pods, by list and watch."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipway_contracts import adapters
from slipway_contracts.api.reading import UnreadableObject
from slipway_contracts.experiments import spec as experiments
from slipway_contracts.model_routes.spec import PLURAL

from ..telemetry.metrics import GatewayMetrics
from .experiments import PublishedExperiment, parse_experiment
from .pods import LABEL_REVISION, parse_pod
from .public_names import PublicRoute, parse_model_route
from .reflector import KubernetesClient, KubernetesObject, Reflector, Resource, ResourceCallbacks, key_of
from .table import (
    Problem,
    RevisionEndpoints,
    Route,
    RouteTable,
    build,
    merge_route,
    parse_adapter,
    parse_owners,
    parse_route,
)

log = logging.getLogger(__name__)

DEPLOYMENTS: Resource = ("modeldeployments", "/apis/slipway.dev/v1alpha1", {})
MODEL_ROUTES: Resource = (PLURAL, "/apis/slipway.dev/v1alpha1", {})
ADAPTERS: Resource = (adapters.PLURAL, "/apis/slipway.dev/v1alpha1", {})
EXPERIMENTS: Resource = (experiments.PLURAL, "/apis/slipway.dev/v1alpha1", {})
# Pods themselves, not EndpointSlices: these select by labels, which any pod of the namespace can have.
PODS: Resource = ("pods", "/api/v1", {"labelSelector": LABEL_REVISION})

_COALESCE_S = 0.02
# Interval at which an unchanged table is published again, with the time of the last contact.
_RENEW_S = 60.0
_PAUSE_SHARE = 9  # pause, in multiples of the time that the last table took: a table of many routes is made less often


def names_resource(config_map: str) -> Resource:
    """The ConfigMap with the owners of model names."""
    return ("configmaps", "/api/v1", {"fieldSelector": f"metadata.name={config_map}"})


class ClusterSource:
    """Keeps the table equal to the cluster; the first one is published when everything was listed once.

    An unchanged table is published again each minute while the API server responds, with a later `as_of_s`.

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
        self._model_routes: dict[str, PublicRoute] = {}
        self._experiments: dict[str, PublishedExperiment] = {}
        self._dirty = asyncio.Event()
        self._metrics = metrics
        self._table: RouteTable | None = None  # the last one published
        refused = metrics.unreadable_object
        deployments = ResourceCallbacks(self._deployment_seen, self._deployment_gone, self._contacted, refused=refused)
        pods = ResourceCallbacks(self._pod_seen, self._pod_gone, self._contacted, refused=refused)
        self._mirrors = [
            # A client each: the one that reads its credentials again must not close the other's connections.
            Reflector(KubernetesClient(kubeconfig), resource, namespace, owner)
            for namespace in (namespaces or ("",))
            for resource, owner in ((DEPLOYMENTS, deployments), (PODS, pods))
        ]
        model_routes = ResourceCallbacks(
            self._model_route_seen, self._model_route_gone, self._contacted, refused=refused
        )
        adapted = ResourceCallbacks(self._adapter_seen, self._adapter_gone, self._contacted, refused=refused)
        tests = ResourceCallbacks(self._experiment_seen, self._experiment_gone, self._contacted, refused=refused)
        # Beside the others: without its CRD, or the right to read it, a cluster has all its other routes.
        self._mirrors += [
            Reflector(KubernetesClient(kubeconfig), resource, namespace, owner, self._dirty.set)
            for namespace in (namespaces or ("",))
            for resource, owner in ((MODEL_ROUTES, model_routes), (EXPERIMENTS, tests), (ADAPTERS, adapted))
        ]
        if names:
            owner = ResourceCallbacks(self._names_seen, self._names_gone, self._contacted, refused=refused)
            self._mirrors.append(Reflector(KubernetesClient(kubeconfig), names_resource(names[1]), names[0], owner))

    @property
    def waiting_for(self) -> str:
        waits = [
            f"{mirror.name}: {mirror.trouble}" for mirror in self._mirrors if not (mirror.synced or mirror.is_missing)
        ]
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
        took_s = 0.0  # processor time of the last table
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RENEW_S):
                    await self._dirty.wait()
            if not self._dirty.is_set():
                self._renew()
                continue
            # A rollout changes many pods at once: one table for all of them.
            await asyncio.sleep(max(_COALESCE_S, _PAUSE_SHARE * took_s))
            self._dirty.clear()
            if not self.waiting_for:
                began_s = time.thread_time()
                self._table = build(
                    self._routes.values(),
                    self._endpoints.values(),
                    self._owners,
                    as_of_s=self._as_of_s(),
                    model_routes=self._model_routes.values(),
                    experiments=self._experiments.values(),
                )
                self._publish(self._table)
                took_s = time.thread_time() - began_s

    def _renew(self) -> None:
        """Publishes the same table with a later time, if all of it was confirmed since."""
        if self._table is not None and (as_of_s := self._as_of_s()) > self._table.as_of_s:
            self._table = replace(self._table, as_of_s=as_of_s)
            self._publish(self._table)

    def _as_of_s(self) -> float:
        """Unix time. A table is as old as the part of it that was confirmed the longest ago."""
        return min(mirror.contacted_s for mirror in self._mirrors if not mirror.is_missing)

    def _contacted(self, resource: str) -> None:
        self._metrics.watch_event(resource)
        if self._table is None:
            # An empty cluster is a table too.
            self._dirty.set()

    def _deployment_seen(self, item: KubernetesObject) -> None:
        self._route_seen(key_of(item), parse_route(item), DEPLOYMENTS)

    def _adapter_seen(self, item: KubernetesObject) -> None:
        self._route_seen(_adapter_key(key_of(item)), parse_adapter(item), ADAPTERS)

    def _adapter_gone(self, key: str) -> None:
        self._deployment_gone(_adapter_key(key))

    def _route_seen(self, key: str, parsed: Route | Problem, resource: Resource) -> None:
        if isinstance(parsed, Problem):
            log.error("not used, the last good route stays: %s", parsed.text)
            self._metrics.unreadable_object(resource[0])
            return
        self._routes[key] = merge_route(self._routes.get(key), parsed)
        self._dirty.set()

    def _deployment_gone(self, key: str) -> None:
        self._routes.pop(key, None)
        self._dirty.set()

    def _model_route_seen(self, item: KubernetesObject) -> None:
        try:
            route = parse_model_route(item)
        except UnreadableObject as error:
            log.error("not used, the last good ModelRoute %s stays: %s", key_of(item), error)
            self._metrics.unreadable_object(MODEL_ROUTES[0])
            return
        if self._model_routes.get(route.name) != route:
            self._model_routes[route.name] = route
            self._dirty.set()

    def _model_route_gone(self, key: str) -> None:
        if self._model_routes.pop(key, None):
            self._dirty.set()

    def _experiment_seen(self, item: KubernetesObject) -> None:
        """One that is new has no arms until the operator has accepted it."""
        key = key_of(item)
        try:
            experiment = parse_experiment(item)
        except UnreadableObject as error:
            log.error("not used, the last good Experiment %s stays: %s", key, error)
            self._metrics.unreadable_object(EXPERIMENTS[0])
            return
        if experiment is None:
            self._experiment_gone(key)
        elif self._experiments.get(key) != experiment:
            self._experiments[key] = experiment
            self._dirty.set()

    def _experiment_gone(self, key: str) -> None:
        if self._experiments.pop(key, None):
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
            self._metrics.unreadable_object("configmaps")
        elif parsed is None:
            self._names_gone(key_of(item))
        elif parsed != self._owners:
            self._owners = parsed
            self._dirty.set()

    def _names_gone(self, key: str) -> None:
        if self._owners is not None:
            log.error("the ConfigMap %s of model names was emptied or deleted: the last good owners stay", key)


def _adapter_key(key: str) -> str:
    """The name of the route of a ModelAdapter."""
    namespace, _, name = key.partition("/")
    return f"{namespace}/{adapters.subject_name(name)}"
