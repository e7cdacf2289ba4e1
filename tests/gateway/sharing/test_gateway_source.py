"""The number of ready gateways follows a real API server."""

import asyncio

import pytest

from devcluster.controlplane import ControlPlane
from slipway_gateway.quotas.tenant import Share
from slipway_gateway.sharing.gateway_source import GatewaySource
from slipway_gateway.sharing.ready_gateways import ReadyGateways
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.cluster.api import Api
from testkit.until import until_async

SERVICE = "slipway-gateway"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def endpoint_slice(name: str, service: str, ready: dict[str, bool]) -> dict[str, object]:
    endpoints = [
        {
            "addresses": [f"10.0.0.{number + 1}"],
            "conditions": {"ready": is_ready},
            "targetRef": {"kind": "Pod", "name": pod, "namespace": "default"},
        }
        for number, (pod, is_ready) in enumerate(ready.items())
    ]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints,
    }


@pytest.mark.integration
async def test_parts_follow_the_ready_pods_of_the_service() -> None:
    with ControlPlane() as plane:
        api, counted = Api(plane.kubeconfig), list[int]()
        known = ReadyGateways("gate-b", counted.append)

        def write(name: str, ready: dict[str, bool], service: str = SERVICE) -> None:
            written = api.apply(f"{SLICES}/{name}", endpoint_slice(name, service, ready))
            assert written.ok, written.message

        write("other", {"gate-x": True, "gate-y": True}, "another")
        write("first", {"gate-a": True, "gate-b": True, "gate-c": False})
        source = GatewaySource(str(plane.kubeconfig), ("default", SERVICE), known, GatewayMetrics("test"))
        running = asyncio.create_task(source.run())
        try:
            await until_async(lambda: known.share == Share(2, 1))
            write("first", {"gate-a": False, "gate-b": True, "gate-c": False})
            await until_async(lambda: known.share == Share(1, 0))
            # A second slice, and this one is not ready any more.
            write("second", {"gate-d": True, "gate-e": True})
            write("first", {"gate-a": True, "gate-b": False})
            await until_async(lambda: known.share == Share(3, 2))
            api.delete(f"{SLICES}/second")
            await until_async(lambda: known.share == Share(1, 0))
            assert counted[:2] == [1, 2]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            api.close()
