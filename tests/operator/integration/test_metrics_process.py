"""The operator's process serving the metrics API: by the rights that its documentation lists, with a real gateway."""

import contextlib
import re
import ssl

import aiohttp
import pytest
import yaml

from devcluster.ports import reserve_port
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import API_SERVICES, CLUSTER_ROLES, MODEL_DEPLOYMENTS
from testkit import ROOT
from testkit.until import until_async

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUPS = ("v1beta2.custom.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")


async def allow_registration(client, namespace):
    """What docs/operator.md lists for the metrics API; the name of the ClusterRole."""
    text = (ROOT / "docs" / "operator.md").read_text()
    block = re.search(r"```yaml\n# ClusterRole (\S+)\n(rules:.*?)```", text, re.DOTALL)
    name, subjects = (
        f"{namespace}-metrics-api",
        [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
    )
    rules = yaml.safe_load(block[2].replace(block[1], name))["rules"]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    reader = {**role, "kind": "Role", "name": "extension-apiserver-authentication-reader"}
    metadata = {"name": name}
    await client.request("POST", f"{RBAC}/clusterroles", [], {"metadata": metadata, "rules": rules})
    binding = {"metadata": metadata, "roleRef": role, "subjects": subjects}
    await client.request("POST", f"{RBAC}/clusterrolebindings", [], binding)
    binding = {"metadata": metadata, "roleRef": reader, "subjects": subjects}
    await client.request("POST", f"{RBAC}/namespaces/kube-system/rolebindings", [], binding)
    return name


@pytest.fixture
def metrics_port():
    return reserve_port()


@pytest.fixture
async def operator_flags(client, namespace, metrics_port, registrations):
    owner = await allow_registration(client, namespace)
    return [
        "--metrics-api-service=operator-metrics",
        f"--metrics-api-port={metrics_port}",
        f"--metrics-api-owner={owner}",
        "--prices=cpu=0.5,nvidia.com/gpu=2.5",
    ]


def as_front_proxy(api_server):
    """The credentials of the control plane's front proxy; another cluster keeps them to itself."""
    folder = api_server.parent / "front-proxy"
    if not folder.exists():
        pytest.skip("the front proxy's key is in reach on a control plane of one's own only")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the API server's test verifies ours
    context.load_cert_chain(folder / "front-proxy.crt", folder / "front-proxy.key")
    return context


async def test_process_registers_serves_gateway_metrics_and_exits_cleanly(
    cluster, client, namespace, api_server, metrics_port
):
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}}
    scaled = {"maxReplicas": 2, "metrics": [{"type": "InFlight", "target": "8"}]}
    await client.create(MODEL_DEPLOYMENTS, manifest | {"spec": manifest["spec"] | {"autoscaling": scaled}})
    await until_async(lambda: registered(client), "the operator has registered the metrics API")
    owners = {
        owner["uid"]
        for name in GROUPS
        for owner in (await client.get(API_SERVICES, None, name))["metadata"]["ownerReferences"]
    }
    assert owners == {(await client.get(CLUSTER_ROLES, None, f"{namespace}-metrics-api"))["metadata"]["uid"]}
    await until_async(lambda: provides(cluster), "its metrics show that it serves")

    context, place = as_front_proxy(api_server), f"namespaces/{namespace}/modeldeployments.slipway.dev/chat"
    base = f"https://127.0.0.1:{metrics_port}/apis/custom.metrics.k8s.io/v1beta2/{place}"
    async with aiohttp.ClientSession() as session:

        async def ask(metric):
            async with session.get(f"{base}/{metric}", ssl=context) as answer:
                return answer.status, await answer.json()

        async def measured():
            status, document = await ask("slipway_in_flight")
            return document["items"] if status == 200 else None

        (item,) = await until_async(measured, "the gateway's count has arrived")
        assert (item["value"], item["describedObject"]["name"]) == ("0", "chat")

        async def silent():
            status, document = await ask("slipway_queue_depth")
            # No server listens at the addresses of the pods of this test.
            message = "slipway_queue_depth has no fresh value: ModelDeployment chat: 0 of "
            return status == 503 and document["message"].startswith(message)

        await until_async(silent, "the operator knows pods, and none of them answers")
    code, seconds = await cluster.operator.end()
    assert (code, seconds < 20) == (0, True), cluster.operator.log()
    assert await registered(client), "the next operator serves on: nothing is unregistered in between"


async def test_pods_their_cost_and_what_their_engine_lacks_are_shown(cluster, client, namespace):
    """Also with a custom engine that names no metric: what no page can have needs no scrape."""
    engine = {"type": "custom", "image": "other:1"}
    scaled = {"maxReplicas": 2, "metrics": [{"type": "QueueDepth", "target": "4"}]}
    spec = {**MANIFEST["spec"], "engine": engine, "autoscaling": scaled, "resources": {"cpu": 2}}
    await client.create(
        MODEL_DEPLOYMENTS, {**MANIFEST, "metadata": {"name": "chat", "namespace": namespace}, "spec": spec}
    )

    def lacks(status):
        found = {item["type"]: item for item in status.get("conditions") or ()}
        return found.get("EngineMetricsAvailable", {}).get("reason") == "MetricMissing"

    status = await cluster.reaches("the missing metric is named", lacks)
    revision = status["currentRevision"]
    (message,) = [it["message"] for it in status["conditions"] if it["type"] == "EngineMetricsAvailable"]
    assert message.startswith(f"QueueDepth of spec.autoscaling needs a metric that revision {revision} does not name")
    await cluster.reaches("chat is stable", lambda now: now.get("phase") == "Healthy")
    which = f'name="chat",namespace="{namespace}"'

    async def shown():
        _, page = await cluster.admin("/metrics")
        cost = f'slipway_cost_per_hour{{{which},revision="{revision}"}} 1.0' in page
        return cost and page.count(f"slipway_pod_info{{{which},") == 1

    await until_async(shown, "one pod of two cores is shown with its cost")
    live = await client.get(MODEL_DEPLOYMENTS, namespace, "chat")
    await client.delete(MODEL_DEPLOYMENTS, namespace, "chat", live["metadata"]["uid"])

    async def gone():
        _, page = await cluster.admin("/metrics")
        return which not in page

    await until_async(gone, "no series is left")


async def registered(client):
    with contextlib.suppress(NotFound):
        return [await client.get(API_SERVICES, None, name) for name in GROUPS]
    return None


async def provides(cluster):
    _, page = await cluster.admin("/metrics")
    return 'slipway_operator_metrics_api_provider{group="custom.metrics.k8s.io",provider="slipway"} 1.0' in page
