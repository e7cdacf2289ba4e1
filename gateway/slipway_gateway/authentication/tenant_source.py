"""Tenants from a cluster, by list and watch. The last good table stays in use while the API server is away."""

import logging
import time

from ..identity.tenants import KnownTenant, UnreadableTenant, parse
from ..routing.reflector import KubernetesClient, KubernetesObject, Reflector, Resource, ResourceCallbacks, key_of
from ..telemetry.metrics import GatewayMetrics
from .known_tenants import KnownTenants

log = logging.getLogger(__name__)

TENANTS: Resource = ("tenants", "/apis/slipway.dev/v1alpha1", {})


class TenantSource:
    """Keeps the known tenants equal to the cluster's."""

    def __init__(self, kubeconfig: str, known: KnownTenants, metrics: GatewayMetrics) -> None:
        self._known = known
        self._metrics = metrics
        self._tenants: dict[str, KnownTenant] = {}
        self._listed = False
        owner = ResourceCallbacks(self._seen, self._gone, self._contacted, self._absent, metrics.unreadable_object)
        self._reflector = Reflector(KubernetesClient(kubeconfig), TENANTS, "", owner)
        known.trouble = lambda: self._reflector.trouble

    async def run(self) -> None:
        try:
            await self._reflector.run()
        finally:
            await self._reflector.close()

    def _seen(self, item: KubernetesObject) -> None:
        try:
            tenant = parse(item)
        except UnreadableTenant as error:
            log.error("not used, the last good tenant stays: %s", error)
            self._metrics.unreadable_object(TENANTS[0])
            self._known.problems[item["metadata"]["name"]] = str(error)
            return
        key = key_of(item)
        self._known.problems.pop(item["metadata"]["name"], None)
        if self._tenants.get(key) != tenant:
            self._tenants[key] = tenant
            self._publish_listed()

    def _gone(self, key: str) -> None:
        self._known.problems.pop(key.partition("/")[2], None)
        if self._tenants.pop(key, None):
            self._publish_listed()

    def _contacted(self, resource: str) -> None:
        self._metrics.watch_event(resource)
        if self._reflector.synced:
            if self._listed:
                self._known.confirm(time.time())
            else:
                # The first list is complete; it takes the place of tenants that were restored.
                self._listed = True
                self._publish()

    def _publish_listed(self) -> None:
        """Publishes the tenants, but not before the first list is complete: tenants that it lacks would be refused."""
        if self._listed:
            self._publish()

    def _absent(self) -> None:
        """Publishes an empty table: the cluster has no CRD of Tenants."""
        self._listed = True
        self._publish()

    def _publish(self) -> None:
        self._known.publish(self._tenants.values(), time.time())
