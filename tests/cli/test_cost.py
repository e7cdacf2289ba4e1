"""`slipway cost` on a real API server, with a real gateway's ledger and the operator's own page of metrics."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from slipway_cli.commands.root import cli
from slipway_contracts.api.times import format_time
from slipway_operator.model.cluster.cost import RevisionPods
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.telemetry import health
from slipway_operator.telemetry.revisions import RevisionCosts
from testkit.cluster.api import Api
from testkit.world.addresses import own_address
from tests.gateway.harness import upstream

from .test_usage import publish, serving, use, whole

pytestmark = pytest.mark.integration

REVISION = "r1"


def applied(api: Api, path: str, body: dict[str, Any], status: dict[str, Any]) -> None:
    answer = api.apply(path, body)
    assert answer.ok, answer.message
    answer = api.merge(f"{path}/status", {"status": status})
    assert answer.ok, answer.message


def place_deployment(api: Api, namespace: str) -> None:
    """A ModelDeployment that an operator keeps, and the Lease of the operator."""
    path = f"/apis/slipway.dev/v1alpha1/namespaces/{namespace}/modeldeployments/chat"
    spec = {"model": {"uri": "hf://org/model", "task": "generate"}, "replicas": 2}
    made = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "chat"}, "spec": spec}
    applied(api, path, made, {"model": "chat", "lease": f"{namespace}/slipway-operator"})
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/slipway-operator"
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    answer = api.apply(
        lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "slipway-operator"},
            "spec": {"holderIdentity": "operator-1", "renewTime": renewed, "leaseDurationSeconds": 3600},
        },
    )
    assert answer.ok, answer.message


def place_pod(api: Api, namespace: str, name: str, since: datetime) -> None:
    """A model pod that has had its node since then."""
    labels = {"slipway.dev/modeldeployment": "chat", "slipway.dev/revision": REVISION}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}
    made |= {"spec": {"nodeName": "none", "containers": [{"name": "server", "image": "a:1"}]}}
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(since)}
    applied(api, f"/api/v1/namespaces/{namespace}/pods/{name}", made, {"phase": "Running", "conditions": [placed]})


async def test_costs_follow_from_prices_pods_and_the_ledger(
    api: Api, namespace: str, api_server: Path, tmp_path: Path
) -> None:
    address = own_address()
    registry = CollectorRegistry()
    revisions = RevisionCosts({"nvidia.com/gpu": 2.5})
    resources = Resources(accelerator=("nvidia.com/gpu", 2))
    revisions.show((namespace, "chat"), (RevisionPods(REVISION, ("chat-1", "chat-2"), resources),))
    registry.register(revisions)
    page = TestServer(health.application(registry, (), ()), host=address)

    async def run(*arguments: str) -> str:
        where = ("-n", namespace, "--kubeconfig", str(api_server))
        ended = await asyncio.to_thread(CliRunner().invoke, cli, [*where, "cost", "--gateways", namespace, *arguments])
        assert ended.exit_code == 0, (ended.stderr, ended.exception)
        return ended.stdout + ended.stderr

    await asyncio.to_thread(place_deployment, api, namespace)
    hours_ago = datetime.now(UTC) - timedelta(hours=3)
    for name in ("chat-1", "chat-2"):
        await asyncio.to_thread(place_pod, api, namespace, name, hours_ago)
    none = await run("chat")
    assert "the operator operator-1 is no pod" in none and "give --price-hour" in none
    assert "the ledger cannot be read" in none
    async with (
        upstream(whole) as server,
        page,
        serving(f"sqlite:///{tmp_path}/1.db", address, server.url) as edge,
    ):
        await use(edge, "team-a", 4)
        await edge.ledger.flush()
        await asyncio.to_thread(publish, api, namespace, "gate-1", edge.admin_url)
        await asyncio.to_thread(publish, api, namespace, "operator-1", f"http://{address}:{page.port}")
        labels = {"metadata": {"labels": {"app.kubernetes.io/component": "operator"}}}
        answer = await asyncio.to_thread(api.merge, f"/api/v1/namespaces/{namespace}/pods/operator-1", labels)
        assert answer.ok, answer.message
        table = await run("chat")
        seen = json.loads((await run("chat", "-o", "json")).partition("note:")[0])
        own = json.loads((await run("--price-hour", "1", "-o", "json")).partition("note:")[0])
    [row] = seen
    assert (row["pods"], row["price_of_pod"], row["per_hour"]) == (2, 5.0, 10.0)
    assert row["pod_hours"] == pytest.approx(6.0, abs=0.1)
    assert row["cost"] == pytest.approx(30.0, abs=0.5)
    assert row["served"] == {"requests": 4, "input_tokens": 4000, "output_tokens": 40}
    assert row["per_thousand_requests"] == pytest.approx(row["cost"] / 4 * 1000)
    assert row["per_million_tokens"] == pytest.approx(row["cost"] / 4040 * 1e6)
    assert "pods that are gone are not in the cost" in table and "sum: 3" in table
    assert [row["per_hour"] for row in own] == [2.0]
