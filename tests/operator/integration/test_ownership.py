"""Children that another controller took over: left alone, reported, and created again under another name."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from slipway_operator.api.v1alpha1.status import RevisionStatus, Status
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.observe import observe
from slipway_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    EVENTS,
    MODEL_DEPLOYMENTS,
    REPLICA_SETS,
    SERVICES,
)
from slipway_operator.kube.writing import apply
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment import status
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.plan import plan
from testkit.world.pods import MERGE

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SETTINGS = PlanSettings("slipway-server:test", "http://gateway/v1")
KINDS = (REPLICA_SETS, SERVICES, CONTROLLER_REVISIONS)


class NoGateways:
    async def answers(self):
        return ()


async def seen(client, chat):
    children = await ObjectCache().read(client, (chat["metadata"]["namespace"], "chat"))
    return await observe(client, NoGateways(), chat, children)


async def made(client, chat):
    """The children of the first plan, by kind."""
    planned = plan(chat, Status(), Observed(), SETTINGS, NOW)
    for create in planned.create:
        await apply.create_child(client, chat, create)
    namespace = chat["metadata"]["namespace"]
    return {kind: (await client.list(kind, namespace, "slipway.dev/modeldeployment=chat"))[0] for kind in KINDS}


async def keeper(client, namespace):
    found = await client.create(CONFIG_MAPS, {"metadata": {"name": "keeper", "namespace": namespace}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "keeper", "uid": found["metadata"]["uid"]}
    return reference | {"controller": True}


async def owned_by(client, kind, item, owners):
    path = kind.path(item["metadata"]["namespace"], item["metadata"]["name"])
    return await client.request("PATCH", path, [], {"metadata": {"ownerReferences": owners}}, MERGE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
async def test_child_of_another_controller_is_reported_and_created_again(client, chat, kind):
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    name, revision = found[kind]["metadata"]["name"], found[kind]["metadata"]["labels"]["slipway.dev/revision"]
    taken = await owned_by(client, kind, found[kind], [await keeper(client, namespace)])
    observed = await seen(client, chat)
    planned = plan(chat, Status(), observed, SETTINGS, NOW)
    assert [item.manifest["kind"] for item in planned.create] == [kind.kind]
    (foreign,) = [item for item in planned.status.conditions if item.type == "ForeignObjects"]
    assert (foreign.status, foreign.reason) == ("True", "ControlledByOther")
    assert f"{kind.kind} {name} is controlled by ConfigMap keeper" in foreign.message
    with pytest.raises(apply.NameTaken, match=f"{name} is controlled by ConfigMap keeper"):
        await apply.execute(client, chat, planned, NOW)
    again = plan(chat, Status(collision_count=1), observed, SETTINGS, NOW)
    for create in again.create:
        await apply.create_child(client, chat, create)
    names = {item["metadata"]["name"] for item in await client.list(kind, namespace)}
    assert {name, f"chat-{revision[:8]}-1"} <= names
    assert await client.get(kind, namespace, name) == taken, "what others control is left alone"
    assert not plan(chat, Status(collision_count=1), await seen(client, chat), SETTINGS, NOW).create


async def test_returned_replica_set_is_deleted_once_requests_go_to_the_other(client, chat):
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    ours = found[REPLICA_SETS]["metadata"]["ownerReferences"]
    await owned_by(client, REPLICA_SETS, found[REPLICA_SETS], [await keeper(client, namespace)])
    again = plan(chat, Status(collision_count=1), await seen(client, chat), SETTINGS, NOW)
    for create in again.create:
        await apply.create_child(client, chat, create)
    (workload,) = (await seen(client, chat)).workloads.values()
    await owned_by(client, REPLICA_SETS, found[REPLICA_SETS], ours)
    written = plan(chat, again.status, await seen(client, chat), SETTINGS, NOW).status
    cache = replace(written, revisions=tuple(replace(one, replica_set_uid=workload.uid) for one in written.revisions))
    live = {**chat, "status": status.render(cache)}
    observed = await seen(client, live)
    assert observed.workloads[workload.revision].name == workload.name
    assert [one.name for one in observed.spare] == [found[REPLICA_SETS]["metadata"]["name"]]
    (gone,) = plan(live, cache, observed, SETTINGS, NOW).delete
    assert gone.name == found[REPLICA_SETS]["metadata"]["name"]
    unknown = replace(cache, revisions=tuple(replace(one, replica_set_uid=None) for one in cache.revisions))
    assert not plan(live, unknown, observed, SETTINGS, NOW).delete, "gateways may still send requests to its pods"


async def test_orphans_are_adopted(client, chat):
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    for kind in KINDS:
        await owned_by(client, kind, found[kind], [])
    for create in plan(chat, Status(), await seen(client, chat), SETTINGS, NOW).create:
        await apply.create_child(client, chat, create)
    for kind in KINDS:
        live = await client.get(kind, namespace, found[kind]["metadata"]["name"])
        assert live["metadata"]["ownerReferences"] == found[kind]["metadata"]["ownerReferences"]


@pytest.mark.parametrize("change", [{"labels": None}, {"ownerReferences": []}], ids=lambda change: next(iter(change)))
async def test_a_replica_set_of_a_former_name_is_found_by_its_uid(client, chat, change):
    """A second ReplicaSet beside it would leave the first one running unknown to the operator."""
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    item = found[REPLICA_SETS]
    (workload,) = (await seen(client, chat)).workloads.values()
    path = REPLICA_SETS.path(namespace, item["metadata"]["name"])
    await client.request("PATCH", path, [], {"metadata": change}, MERGE)
    row = RevisionStatus(workload.revision, "canary", 1, 1, 100, replica_set_uid=workload.uid)
    cache = Status(collision_count=3, revisions=(row,))
    for create in plan(chat, cache, await seen(client, chat), SETTINGS, NOW).create:
        await apply.create_child(client, chat, create)
    (live,) = await client.list(REPLICA_SETS, namespace)
    for key in ("name", "uid", "labels", "ownerReferences"):
        assert live["metadata"][key] == item["metadata"][key]


async def test_a_former_namesakes_name_is_waited_for(client, chat):
    """The garbage collector deletes it soon: no other name is needed."""
    found = await made(client, chat)
    former = found[REPLICA_SETS]["metadata"]["ownerReferences"][0] | {"uid": "of-the-former-one"}
    await owned_by(client, REPLICA_SETS, found[REPLICA_SETS], [former])
    planned = plan(chat, Status(), await seen(client, chat), SETTINGS, NOW)
    with pytest.raises(apply.CannotCreate) as refused:
        await apply.execute(client, chat, planned, NOW)
    assert not isinstance(refused.value, apply.NameTaken)


async def test_a_held_replica_set_without_pods_is_replaced(client, chat):
    """A finalizer keeps the deleted ReplicaSet, and no controller creates pods for it."""
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    name = found[REPLICA_SETS]["metadata"]["name"]
    path = REPLICA_SETS.path(namespace, name)
    await client.request("PATCH", path, [], {"metadata": {"finalizers": ["example.com/held"]}}, MERGE)
    await client.delete(REPLICA_SETS, namespace, name, found[REPLICA_SETS]["metadata"]["uid"])
    planned = plan(chat, Status(), await seen(client, chat), SETTINGS, NOW)
    with pytest.raises(apply.NameTaken, match="a finalizer holds it"):
        await apply.execute(client, chat, planned, NOW)


@pytest.mark.parametrize("data", [{}, {"inputs": {"model": 5}}, {"inputs": []}], ids=str)
async def test_a_record_with_other_data_is_replaced(client, chat, data):
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    metadata = found[CONTROLLER_REVISIONS]["metadata"]
    await client.delete(CONTROLLER_REVISIONS, namespace, metadata["name"], metadata["uid"])
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "ownerReferences")}
    await client.create(CONTROLLER_REVISIONS, {"metadata": kept, "revision": 1, "data": data})
    observed = await seen(client, chat)
    assert not observed.snapshots
    with pytest.raises(apply.NameTaken, match="which cannot be changed"):
        await apply.execute(client, chat, plan(chat, Status(), observed, SETTINGS, NOW), NOW)
    for create in plan(chat, Status(collision_count=1), observed, SETTINGS, NOW).create:
        await apply.create_child(client, chat, create)
    again = await seen(client, chat)
    assert [item.name for item in again.snapshots.values()] == [
        f"chat-{metadata['labels']['slipway.dev/revision'][:8]}-1"
    ]
    assert [one.name for one in again.spare] == [metadata["name"]]


def serves(status):
    return status.get("phase") == "Healthy"


async def test_the_operator_recovers_service(client, cluster):
    """With the rights that docs/operator.md lists; the Event names the owner of the former ReplicaSet."""
    await client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}})
    before = (await cluster.reaches("chat serves", serves))["revisions"][0]["replicaSetUid"]
    (item,) = await client.list(REPLICA_SETS, cluster.namespace)
    await owned_by(client, REPLICA_SETS, item, [await keeper(client, cluster.namespace)])
    status = await cluster.reaches(
        "another ReplicaSet serves",
        lambda now: serves(now) and now["revisions"][0].get("replicaSetUid", before) != before,
    )
    assert status["collisionCount"] == 1
    (event,) = [one for one in await client.list(EVENTS, cluster.namespace) if one["reason"] == "NameTaken"]
    assert f"ReplicaSet {item['metadata']['name']} is controlled by ConfigMap keeper" in event["message"]
    await client.delete(REPLICA_SETS, cluster.namespace, item["metadata"]["name"], item["metadata"]["uid"])
    await cluster.reaches(
        "nothing foreign is left",
        lambda now: not [one for one in now["conditions"] if one["type"] == "ForeignObjects"],
    )
