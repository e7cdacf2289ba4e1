"""The chart's autoscalers, and the real controller that reads the release's metrics through the API server."""

from dataclasses import replace

import pytest

from devcluster.ports import reserve_port
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.kube.resources import AUTOSCALERS, Resource
from slipway_operator.metrics_api import release as processes
from slipway_operator.metrics_api.release import JobsProcesses, ReleaseLoads
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.server import MetricsApi
from testkit.until import until_async
from tests.chart.rendered import find, objects
from tests.operator.integration.test_metrics_api import controller, everywhere, host, unclosed  # noqa: F401

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")
_AT_ONCE = [{"type": "Pods", "value": 100, "periodSeconds": 1}]
VALUES = {
    "gateway": {
        "autoscaling": {
            "enabled": True,
            "minReplicas": 2,
            "maxReplicas": 6,
            "targetInFlightRequests": 100,
            "targetCPUUtilizationPercentage": 0,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": _AT_ONCE}},
        }
    }
}


class Reported:
    """Two gateways, which have this many requests in flight together."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.answering = True

    async def answers(self):
        one = Answer("gw-1", ready=True, reachable=True, in_flight=self.in_flight // 2)
        two = replace(one, name="gw-2", in_flight=self.in_flight - self.in_flight // 2)
        draining = replace(one, name="gw-3", in_flight=10_000, draining=True)
        return [one, two, draining] if self.answering else [replace(one, reachable=False, in_flight=None)]


@pytest.fixture
async def gateways(client, namespace, host, registrations, monkeypatch):  # noqa: F811
    """The metrics API with the release's metrics, registered and running."""
    reported, port = Reported(), reserve_port()
    monkeypatch.setattr("slipway_operator.kube.writing.aggregation._PORT", port)
    monkeypatch.setattr(processes, "READ_AGAIN_S", 0.2)
    release = ReleaseLoads(namespace, reported, JobsProcesses(client, None, namespace, ""))
    api = MetricsApi(client, MetricsSampler(None, None), host, port, lambda _: None, release)
    await api.keep()
    yield reported
    await api._stop()


async def test_the_real_controller_scales_gateways_by_requests_in_flight(
    client, api_server, namespace, gateways, tmp_path
):
    rendered = objects(namespace=namespace, values=VALUES)
    deployment, scaler = (find(rendered, kind, "slipway-gateway") for kind in ("Deployment", "HorizontalPodAutoscaler"))
    await client.create(DEPLOYMENTS, deployment)
    await client.create(AUTOSCALERS, scaler)
    live = await client.get(DEPLOYMENTS, namespace, "slipway-gateway")
    await client.put_status(DEPLOYMENTS, {**live, "status": {"replicas": 2, "readyReplicas": 2}})
    await everywhere(client)

    async def wanted(replicas):
        return (await client.get(DEPLOYMENTS, namespace, "slipway-gateway"))["spec"]["replicas"] == replicas

    async def follows():
        found = await client.get(AUTOSCALERS, namespace, "slipway-gateway")
        conditions = found.get("status", {}).get("conditions") or ()
        return next((one for one in conditions if one["type"] == "ScalingActive"), {})

    with controller(api_server, tmp_path / "controller.log"):
        gateways.in_flight = 410
        await until_async(lambda: wanted(5), "410 requests at 100 a gateway are 5 gateways")
        gateways.in_flight = 99_999
        await until_async(lambda: wanted(6), "whatever clients send, there are no more than maxReplicas")
        gateways.answering = False
        silent = await until_async(follows, "it holds", holds=lambda one: one.get("status") == "False")
        assert "0 of 1 gateways have fresh numbers; gw-1 does not report it" in silent["message"]
        assert await wanted(6)
        gateways.answering, gateways.in_flight = True, 3
        await until_async(lambda: wanted(2), "3 requests are the minimum")
