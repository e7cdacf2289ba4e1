"""Fields of a placement on a real API server: the ReplicaSet has them as they were written."""

import pytest

from slipway_operator.kube.resources import REPLICA_SETS
from tests.operator.manifests.test_workload import PLACEMENT

pytestmark = pytest.mark.integration


async def test_a_placement_is_written_into_the_pods_and_a_change_is_a_new_revision(cluster, chat):
    await cluster.edit({"placement": PLACEMENT, "engine": {"imagePullSecrets": [{"name": "registry"}]}})
    status = await cluster.reaches(
        "the placed revision is stable",
        lambda now: now.get("phase") == "Healthy" and now["stableRevision"] == now["currentRevision"],
    )
    made = {
        item["metadata"]["labels"]["slipway.dev/revision"]: item["spec"]["template"]["spec"]
        for item in await cluster.client.list(REPLICA_SETS, cluster.namespace)
    }
    pod = made.pop(status["stableRevision"])
    [spread] = pod["topologySpreadConstraints"]
    [constraint] = PLACEMENT["topologySpreadConstraints"]
    assert constraint.items() <= spread.items()
    assert spread["labelSelector"]["matchLabels"]["slipway.dev/revision"] == status["stableRevision"]
    assert (pod["nodeSelector"], pod["tolerations"]) == (PLACEMENT["nodeSelector"], PLACEMENT["tolerations"])
    assert pod["affinity"]["nodeAffinity"] == PLACEMENT["affinity"]["nodeAffinity"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert not any("nodeSelector" in former for former in made.values())
