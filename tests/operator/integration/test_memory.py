"""Lists of large objects: users who create pods decide the size of a list, but not how much memory we need."""

import pytest
import yaml

from slipway_operator.kube.resources import PODS
from testkit import ROOT
from testkit.world import proc

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(15)]

PODS_MADE = 40
MIB = 1 << 20


def limit_bytes(component: str) -> int:
    """The memory limit of the chart."""
    values = yaml.safe_load((ROOT / "charts/slipway/values.yaml").read_text())
    amount = values[component]["resources"]["limits"]["memory"]
    return int(amount[:-2]) * {"Mi": MIB, "Gi": 1024 * MIB}[amount[-2:]]


@pytest.fixture
async def large_pods(client, namespace):
    """Of 1 MB each, and of 6 MB in JSON, where each `<` is \\u003c: together 240 MB."""
    variables = [{"name": f"V{number}", "value": "<" * 100_000} for number in range(10)]
    marks = {"slipway.dev/modeldeployment": "stranger", "slipway.dev/revision": "r1"}
    for number in range(PODS_MADE):
        metadata = {"name": f"large-{number}", "namespace": namespace, "labels": marks}
        container = {"name": "server", "image": "none", "env": variables}
        await client.create(PODS, {"metadata": metadata, "spec": {"containers": [container]}})


@pytest.mark.usefixtures("large_pods", "chat")
async def test_a_start_amid_large_pods_stays_below_the_memory_limit(cluster):
    await cluster.reaches("Healthy", lambda status: status.get("phase") == "Healthy")
    assert _peak_share("operator", cluster.operator.pid) < 0.7
    assert _peak_share("gateway", cluster.gateway.pid) < 0.25


def _peak_share(component, pid):
    """Of the chart's memory limit; 60 of these pods, unpaged, took 1.5 of the operator's and 0.8 of the gateway's."""
    return proc.peak_bytes(pid) / limit_bytes(component)
