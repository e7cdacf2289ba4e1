"""The ready gateways of this release, by list and watch of its Service's EndpointSlices."""

from ..routing.reflector import KubernetesClient, KubernetesObject, Reflector, Resource, ResourceCallbacks, key_of
from ..telemetry.metrics import GatewayMetrics
from .ready_gateways import ReadyGateways, ready_pods

_SERVICE_LABEL = "kubernetes.io/service-name"


def endpoint_slices(service: str) -> Resource:
    return ("endpointslices", "/apis/discovery.k8s.io/v1", {"labelSelector": f"{_SERVICE_LABEL}={service}"})


class GatewaySource:
    """Keeps the ready gateways equal to the cluster's; the last ones stay while the API server is away."""

    def __init__(
        self, kubeconfig: str, service: tuple[str, str], gateways: ReadyGateways, metrics: GatewayMetrics
    ) -> None:
        """`service`: namespace and name of the gateways' Service."""
        namespace, name = service
        self._gateways = gateways
        owner = ResourceCallbacks(self._seen, gateways.gone, metrics.watch_event, refused=metrics.unreadable_object)
        self._reflector = Reflector(KubernetesClient(kubeconfig), endpoint_slices(name), namespace, owner)

    async def run(self) -> None:
        try:
            await self._reflector.run()
        finally:
            await self._reflector.close()

    def _seen(self, item: KubernetesObject) -> None:
        self._gateways.seen(key_of(item), ready_pods(item))
