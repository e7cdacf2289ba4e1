"""One revision, one set of bytes: the operator as a process, a real API server, reports of kubelets by the test."""

import json

import pytest

from slipway_operator.kube.errors import NotFound, Refused
from slipway_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    DISRUPTION_BUDGETS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
)
from testkit.until import until_async
from testkit.world.pods import MERGE

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64
COMMIT, MOVED = "a" * 40, "b" * 40


def report(digest, commit, *, pinned=False):
    return json.dumps({"weights": {"digest": digest, "commit": commit, "files": 3, "bytes": 9, "pinned": pinned}})


async def launch(cluster):
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    manifest["spec"] = {"model": {"uri": "hf://org/tiny", "revision": "main"}, "replicas": 2}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    revision = (await cluster.reaches("chat is stable", healthy))["stableRevision"]
    await allow_evictions(cluster)
    return revision


async def allow_evictions(cluster):
    """What the disruption controller, which does not run here, reports of a budget."""
    budget = await until_async(lambda: there(cluster, DISRUPTION_BUDGETS, "chat-pdb"), "the budget is there")
    assert budget["spec"]["minAvailable"] == 1, "one of two pods must stay"
    counts = {"disruptionsAllowed": 9, "currentHealthy": 9, "desiredHealthy": 0, "expectedPods": 9}
    status = {"observedGeneration": budget["metadata"]["generation"], **counts}
    path = DISRUPTION_BUDGETS.path(cluster.namespace, "chat-pdb", "status")
    await cluster.client.request("PATCH", path, [], {"status": status}, MERGE)


def healthy(status):
    return status.get("phase") == "Healthy"


async def pod(cluster, revision, name, message):
    """A ready pod of the revision whose fetcher ended with this termination message."""
    workload = await cluster.client.get(REPLICA_SETS, cluster.namespace, f"chat-{revision}")
    owner = {key: workload["metadata"][key] for key in ("name", "uid")}
    template = workload["spec"]["template"]
    metadata = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": template["metadata"]["labels"],
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True, **owner}],
    }
    await cluster.client.create(PODS, {"metadata": metadata, "spec": template["spec"]})
    ended = {"exitCode": 0, "message": message, "startedAt": None, "finishedAt": None}
    fetched = {"name": "fetch", "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "initContainerStatuses": [{**fetched, "state": {"terminated": ended}}],
    }
    await cluster.client.request("PATCH", PODS.path(cluster.namespace, name, "status"), [], {"status": status}, MERGE)


async def there(cluster, resource, name):
    try:
        return await cluster.client.get(resource, cluster.namespace, name)
    except NotFound:
        return None


async def gone(cluster, name):
    found = await there(cluster, PODS, name)
    return found is None or bool(found["metadata"].get("deletionTimestamp"))


@pytest.mark.finding(20)
@pytest.mark.attack_class(28)
async def test_the_first_report_is_kept_published_and_held_against_others(cluster):
    """Safety 20, with the rights of docs/operator.md: of ConfigMaps create alone."""
    revision = await launch(cluster)
    name = f"chat-{revision}"
    await pod(cluster, revision, "first", report(FIRST, COMMIT))
    made = await until_async(lambda: there(cluster, CONFIG_MAPS, name), "the ConfigMap is there")
    record = await cluster.client.get(CONTROLLER_REVISIONS, cluster.namespace, name)
    kept = {"commit": COMMIT, "digest": FIRST}
    assert json.loads(record["metadata"]["annotations"]["slipway.dev/weights"]) == kept
    assert json.loads(made["data"]["pin.json"]) == kept and made["immutable"] is True
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [record["metadata"]["uid"]]
    with pytest.raises(Refused):
        change = {"data": {"pin.json": json.dumps(kept | {"digest": SECOND})}}
        await cluster.client.patch(CONFIG_MAPS, cluster.namespace, name, change)
    mounted = (await cluster.client.get(REPLICA_SETS, cluster.namespace, name))["spec"]["template"]["spec"]["volumes"]
    assert next(item for item in mounted if item["name"] == "weights")["configMap"]["name"] == name
    shown = await cluster.reaches("the status has it", lambda now: now["revisions"][0].get("digest") == FIRST)
    assert shown["revisions"][0]["commit"] == COMMIT

    # The branch moved between the first two pods: the second one loaded something else.
    await pod(cluster, revision, "second", report(SECOND, MOVED))
    await until_async(lambda: gone(cluster, "second"), "the pod with other bytes makes way")
    assert not await gone(cluster, "first")
    await pod(cluster, revision, "third", report(FIRST, COMMIT, pinned=True))
    await cluster.reaches("all is well again", lambda now: healthy(now) and now["ready"] == "2/2")
    assert not await gone(cluster, "third")
    record = await cluster.client.get(CONTROLLER_REVISIONS, cluster.namespace, name)
    assert json.loads(record["metadata"]["annotations"]["slipway.dev/weights"]) == kept


async def test_a_killed_operator_finishes_what_it_began(cluster):
    """The record is written and the ConfigMap is not: the next operator makes it of the record, and of no report."""
    revision = await launch(cluster)
    name = f"chat-{revision}"
    await cluster.operator.kill()
    kept = json.dumps({"commit": COMMIT, "digest": FIRST})
    change = {"metadata": {"annotations": {"slipway.dev/weights": kept}}}
    await cluster.client.patch(CONTROLLER_REVISIONS, cluster.namespace, name, change)
    await pod(cluster, revision, "other", report(SECOND, MOVED))
    await cluster.operator.start()
    made = await until_async(lambda: there(cluster, CONFIG_MAPS, name), "the ConfigMap is there")
    assert json.loads(made["data"]["pin.json"])["digest"] == FIRST
    await until_async(lambda: gone(cluster, "other"), "the pod with other bytes makes way")


async def test_a_report_of_nonsense_pins_nothing(cluster):
    """A pod may run any image."""
    revision = await launch(cluster)
    for number, message in enumerate(("ready", '{"weights": {"digest": "sha256:1"}}', '{"weights": []}')):
        await pod(cluster, revision, f"odd-{number}", message)
    await pod(cluster, revision, "good", report(FIRST, ""))
    made = await until_async(lambda: there(cluster, CONFIG_MAPS, f"chat-{revision}"), "the ConfigMap is there")
    assert json.loads(made["data"]["pin.json"]) == {"commit": "", "digest": FIRST}


async def test_a_config_map_that_was_deleted_is_made_again_by_the_next_operator(cluster):
    revision = await launch(cluster)
    name = f"chat-{revision}"
    await pod(cluster, revision, "first", report(FIRST, COMMIT))
    made = await until_async(lambda: there(cluster, CONFIG_MAPS, name), "the ConfigMap is there")
    await cluster.client.delete(CONFIG_MAPS, cluster.namespace, name, made["metadata"]["uid"])
    await cluster.operator.kill()
    await cluster.operator.start()
    again = await until_async(lambda: there(cluster, CONFIG_MAPS, name), "the ConfigMap is back")
    assert again["data"] == made["data"]
