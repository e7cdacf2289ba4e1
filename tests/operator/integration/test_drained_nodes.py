"""A drained node on a real API server: its pod gets a successor, and the budget keeps the pod until then."""

import pytest

from slipway_operator.kube.resources import DISRUPTION_BUDGETS, NODES, PODS, REPLICA_SETS
from testkit.until import until_async
from testkit.world.rights import operator_rules

pytestmark = pytest.mark.integration

MERGE = "application/merge-patch+json"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
async def operator_flags(client, namespace):
    """The rights that docs/operator.md lists, as a ClusterRole: nodes belong to no namespace."""
    metadata = {"name": f"{namespace}-operator"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **metadata}
    subjects = [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}]
    await client.request("POST", f"{RBAC}/clusterroles", [], {"metadata": metadata, "rules": operator_rules()})
    binding = {"metadata": metadata, "roleRef": role, "subjects": subjects}
    await client.request("POST", f"{RBAC}/clusterrolebindings", [], binding)
    return ()


@pytest.fixture
async def node(client, namespace):
    name = f"node-{namespace}"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
    await client.request("POST", NODES.path(), [], body)
    yield name
    live = await client.get(NODES, None, name)
    await client.delete(NODES, None, name, live["metadata"]["uid"])


async def bind(client, namespace, pod, node):
    """Give a pod its node, as the scheduler does."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    await client.request("POST", PODS.path(namespace, pod, "binding"), [], body)


async def test_a_pod_on_a_cordoned_node_gets_a_successor_and_is_kept_until_it_is_ready(cluster, chat, client, node):
    async def replicas():
        [found] = await client.list(REPLICA_SETS, cluster.namespace)
        return found["spec"]["replicas"]

    async def kept():
        budget = await client.get(DISRUPTION_BUDGETS, cluster.namespace, "chat-pdb")
        return budget["spec"]["minAvailable"]

    async def cordon(yes):
        await client.request("PATCH", NODES.path(None, node), [], {"spec": {"unschedulable": yes}}, MERGE)

    await cluster.reaches("it serves", lambda now: now.get("phase") == "Healthy")
    [pod] = await client.list(PODS, cluster.namespace)
    await bind(client, cluster.namespace, pod["metadata"]["name"], node)
    await until_async(kept, "the only pod is kept", 30, holds=lambda number: number == 1)
    assert await replicas() == 1
    await cordon(yes=True)
    await until_async(replicas, "it has a successor", 30, holds=lambda number: number == 2)
    assert await kept() == 1
    await cordon(yes=False)
    await until_async(replicas, "nothing is replaced any more", 30, holds=lambda number: number == 1)
