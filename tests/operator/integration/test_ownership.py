"""Children that another controller took over: left alone, reported, and created again under another name."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from slipway_operator.api.v1alpha1.status import RevisionStatus, Status
from slipway_operator.kube.errors import Refused, Stale
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    EVENTS,
    MODEL_DEPLOYMENTS,
    REPLICA_SETS,
    SERVICES,
)
from slipway_operator.kube.writing import apply
from slipway_operator.kube.writing.adoption import adopt
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment import status
from slipway_operator.model.deployment.spec import parse
from slipway_operator.planning.decided import PlanSettings
from testkit.until import until_async
from testkit.world.pods import MERGE
from tests.support.planned import plan
from tests.support.reconciling import NoGateways

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SETTINGS = PlanSettings("slipway-server:test", "http://gateway/v1")
KINDS = (REPLICA_SETS, SERVICES, CONTROLLER_REVISIONS)


async def seen(client, chat):
    children = await ObjectCache().read(client, (chat["metadata"]["namespace"], "chat"))
    return await Observer(client, NoGateways()).observe(chat, parse(chat), children)


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


@pytest.mark.finding("L1")
async def test_restored_children_without_a_controller_are_adopted(client, chat):
    """A backup tool drops the references to owners: records of former revisions were not seen any more."""
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    for kind in KINDS:
        await owned_by(client, kind, found[kind], [])
    alien = {"metadata": {"name": "alien", "namespace": namespace, "labels": found[SERVICES]["metadata"]["labels"]}}
    await client.create(SERVICES, alien | {"spec": {"clusterIP": "None"}})
    assert not (await seen(client, chat)).snapshots
    assert await adopted(client, chat)
    observed = await seen(client, chat)
    assert set(observed.snapshots) == set(observed.workloads) == set(observed.services) != set()
    assert not await adopted(client, chat)
    assert not (await client.get(SERVICES, namespace, "alien"))["metadata"].get("ownerReferences"), "another name"
    [event] = [one for one in await client.list(EVENTS, namespace) if one["reason"] == "OrphansAdopted"]
    assert f"ReplicaSet {found[REPLICA_SETS]['metadata']['name']}" in event["message"]


async def adopted(client, chat):
    children = await ObjectCache().read(client, (chat["metadata"]["namespace"], "chat"))
    return await adopt(client, chat, children, NOW)


@pytest.mark.finding("L1")
async def test_what_another_controls_or_another_hash_has_is_not_adopted(client, chat):
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    workload, record = found[REPLICA_SETS], found[CONTROLLER_REVISIONS]
    await owned_by(client, SERVICES, found[SERVICES], [await keeper(client, namespace)])
    await owned_by(client, REPLICA_SETS, workload, [])
    await client.delete(CONTROLLER_REVISIONS, namespace, record["metadata"]["name"], record["metadata"]["uid"])
    kept = {key: record["metadata"][key] for key in ("name", "namespace", "labels")}
    data = record["data"] | {"inputs": {"model": {"uri": "file:///other"}}}
    await client.create(CONTROLLER_REVISIONS, {"metadata": kept, "revision": 1, "data": data})
    change = {"metadata": {"annotations": {labels.RECORD: None}}}
    await client.request("PATCH", REPLICA_SETS.path(namespace, workload["metadata"]["name"]), [], change, MERGE)
    assert not await adopted(client, chat)
    assert not (await seen(client, chat)).workloads


@pytest.mark.finding("L1")
@pytest.mark.parametrize("selector", [None, {labels.REVISION: "elsewhere"}], ids=["emptied", "another"])
async def test_a_service_that_selects_other_pods_is_mended(client, chat, selector):
    namespace, found = chat["metadata"]["namespace"], (await made(client, chat))[SERVICES]
    path = SERVICES.path(namespace, found["metadata"]["name"])
    await client.request("PATCH", path, [], {"spec": {"selector": selector}}, MERGE)
    planned = plan(chat, Status(), await seen(client, chat), SETTINGS, NOW)
    assert [item.manifest["kind"] for item in planned.create] == ["Service"]
    for create in planned.create:
        await apply.create_child(client, chat, create)
    assert (await client.request("GET", path, []))["spec"]["selector"] == found["spec"]["selector"]
    assert not plan(chat, Status(), await seen(client, chat), SETTINGS, NOW).create


@pytest.mark.finding("L1")
async def test_a_deployment_that_is_another_object_now_adopts_nothing(client, chat):
    namespace, found = chat["metadata"]["namespace"], await made(client, chat)
    await owned_by(client, REPLICA_SETS, found[REPLICA_SETS], [])
    former = {**chat, "metadata": {**chat["metadata"], "uid": "of-the-former-one"}}
    with pytest.raises(Stale, match="another object"):
        await adopted(client, former)
    live = await client.get(REPLICA_SETS, namespace, found[REPLICA_SETS]["metadata"]["name"])
    assert not live["metadata"].get("ownerReferences")


@pytest.mark.finding("L1")
async def test_an_adoption_that_is_refused_is_not_tried_in_a_loop(client, chat, monkeypatch):
    await owned_by(client, REPLICA_SETS, (await made(client, chat))[REPLICA_SETS], [])

    async def refuse(*_):
        raise Refused(403, "replicasets is forbidden")

    monkeypatch.setattr(client, "patch", refuse)
    assert not await adopted(client, chat), "the reconcile goes on with what it has"


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
    assert [one.name for one in observed.snapshots.values()] == [""], "from the copy at the ReplicaSet"
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


@pytest.mark.finding("L1")
async def test_an_edit_of_the_status_by_another_writer_is_an_event(client, cluster):
    await client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}})
    before = await cluster.reaches("chat serves", serves)
    await cluster.edit({"progressDeadlineSeconds": 700})  # the status that follows is the operator's own
    obj = await reread(cluster)
    [backend] = before["traffic"]["backends"]
    table = before["traffic"] | {"backends": [backend | {"weight": 1}, backend | {"revision": "other", "weight": 99}]}
    await client.put_status(MODEL_DEPLOYMENTS, obj | {"status": obj["status"] | {"traffic": table}})

    async def edited():
        return [one for one in await client.list(EVENTS, cluster.namespace) if one["reason"] == "StatusEdited"]

    [event] = await until_async(edited, "an Event about the edit")
    assert event["message"].startswith("another writer changed status.traffic: ")
    await cluster.reaches("all requests go to its own revision", lambda now: weights(now) == {backend["revision"]: 100})


def weights(status):
    return {one["revision"]: one["weight"] for one in status["traffic"]["backends"] if one["weight"]}


async def reread(cluster):
    """The ModelDeployment when the operator has acted on its spec."""

    def acted(found):
        return found["status"].get("observedGeneration") == found["metadata"]["generation"]

    return await until_async(cluster.chat, "the operator acts", holds=acted)


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
