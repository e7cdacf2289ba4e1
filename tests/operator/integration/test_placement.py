"""Fields of a placement and of spec.pod on a real API server: the ReplicaSet has them as they were written."""

import json

import pytest

from slipway_operator.kube.resources import REPLICA_SETS
from tests.operator.manifests.test_workload import PLACEMENT

pytestmark = pytest.mark.integration

RULES = [{"namespaces": ["*"], "images": ["*"], "serviceAccountNames": ["reader"], "labels": ["team=*"]}]
TYPES = {"h100-spot": {"resource": "example.com/gpu", "nodeSelector": {"pool": "spot"}, "sharedMemory": "4Gi"}}
POD = {
    "serviceAccountName": "reader",
    "labels": {"team": "a"},
    "volumes": [
        {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "ca", "configMap": {"name": "ca"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
    ],
}
ENGINE = {
    "envFrom": [{"prefix": "A_", "secretRef": {"name": "keys"}}],
    "volumeMounts": [{"name": name, "mountPath": f"/data/{name}"} for name in ("cache", "ca", "keys", "data")],
}


@pytest.fixture
def operator_flags():
    return [f"--pod-policy={json.dumps(RULES)}", f"--accelerator-types={json.dumps(TYPES)}"]


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


async def test_allowed_pod_fields_and_an_own_accelerator_type_reach_the_pods(cluster, chat):
    accelerator = {"accelerator": {"type": "h100-spot", "count": 1}}
    await cluster.edit({"pod": POD, "engine": ENGINE, "resources": accelerator})
    status = await cluster.reaches(
        "the new revision is stable",
        lambda now: now.get("phase") == "Healthy" and now["stableRevision"] == now["currentRevision"],
    )
    made = {
        item["metadata"]["labels"]["slipway.dev/revision"]: item["spec"]["template"]
        for item in await cluster.client.list(REPLICA_SETS, cluster.namespace)
    }[status["stableRevision"]]
    spec, [server] = made["spec"], made["spec"]["containers"]
    assert spec["serviceAccountName"] == "reader" and made["metadata"]["labels"]["team"] == "a"
    assert {f"user-{volume['name']}" for volume in POD["volumes"]} <= {volume["name"] for volume in spec["volumes"]}
    assert server["envFrom"] == ENGINE["envFrom"] and server["resources"]["limits"]["example.com/gpu"] == "1"
    assert spec["nodeSelector"] == {"pool": "spot"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}} in spec["volumes"]


async def test_what_no_rule_allows_is_a_condition_and_changes_nothing(cluster, chat):
    await cluster.reaches("it serves", lambda now: now.get("phase") == "Healthy")
    before = await cluster.client.list(REPLICA_SETS, cluster.namespace)
    await cluster.edit({"pod": {"priorityClassName": "system-node-critical"}})
    status = await cluster.reaches("it is refused", lambda now: now.get("reason") == "NotAllowed")
    assert "spec.pod.priorityClassName 'system-node-critical' is not allowed in namespace" in status["message"]
    after = await cluster.client.list(REPLICA_SETS, cluster.namespace)
    assert [item["metadata"]["name"] for item in after] == [item["metadata"]["name"] for item in before] != []
